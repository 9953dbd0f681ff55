// The file: 8 bytes header length (little endian), the header (one JSON object), the data part.
//
// The rules, each with the attack or accident it stops:
//   the header is at most 100 MB and fits the file            a length of 2^63 makes a reader allocate or wrap
//   strict JSON that begins with '{', no key twice, no field   two readers must not see two different files
//     but dtype, shape, data_offsets; metadata is text only
//   at most 16 dimensions and 1,000,000 tensors                memory stays a small multiple of the header
//   a name is UTF-8, not empty, without control characters     a NUL cuts names short, a newline forges log lines
//   dtype from the list below                                  a type of unknown size cannot be checked
//   bytes = product of shape x size of dtype, without overflow a reader that trusts the shape would run past the data
//   sorted by offset, the tensors cover the data part without  hidden data, overlaps, truncated or extended files
//     gap or overlap, to the last byte of the file
// Legal, as in the reference implementation: scalars (shape []), empty tensors (an extent 0), NaN and infinite values.

#include "framework/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>

#include "framework/files.h"
#include "framework/json.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr std::uint64_t header_limit = 100'000'000;  // as the reference implementation
constexpr std::size_t tensor_limit = 1'000'000;
constexpr std::size_t dimension_limit = 16;
constexpr std::size_t name_limit = 4096;

constexpr const char* dtype_list = "BOOL U8 I8 F8_E5M2 F8_E4M3 I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64";

/// Bytes of one element; 0 for a type that is not in the list.
std::int64_t size_of_dtype(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

/// Product of the extents and the element size; nothing if it overflows. Zero extents do not hide an overflow of the
/// others.
std::optional<std::int64_t> bytes_of(const std::vector<std::int64_t>& shape, const std::string& dtype) {
  std::int64_t bytes = size_of_dtype(dtype);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool is_tensor_name(const std::string& name) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  return !name.empty() && name.size() <= name_limit && is_utf8(name) && std::none_of(name.begin(), name.end(), control);
}

/// Turns the JSON events of the header into tensors. Each event is legal in one or two places only.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

  bool key(string_t& key) override {
    if (place_ == Place::top) return top_key(key);
    if (place_ == Place::metadata) {
      if (header_.metadata.count(key) != 0) refuse("metadata key '{}' is there twice", printable(key));
      key_ = key;
      return true;
    }
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      refuse("unknown field '{}'; allowed are dtype, shape and data_offsets", printable(key));
    }
    if (!fields_.insert(key).second) refuse("the field '{}' is there twice", key);
    key_ = key;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) place_ = Place::top;
    else if (place_ == Place::top && name_ == "__metadata__") place_ = Place::metadata;
    else if (place_ == Place::top) start_tensor();
    else unexpected("an object");
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) end_tensor();
    else place_ = place_ == Place::metadata ? Place::top : Place::done;
    name_.clear();
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") place_ = Place::shape;
    else if (place_ == Place::tensor && key_ == "data_offsets") place_ = Place::offsets;
    else unexpected("a list");
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata) header_.metadata[key_] = text;
    else if (place_ == Place::tensor && key_ == "dtype") dtype(text);
    else unexpected("a text");
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) unexpected("a number");
    if (value > number_unsigned_t(std::numeric_limits<std::int64_t>::max()))
      refuse("{} is {}; at most 2^63 - 1", key_, value);
    std::vector<std::int64_t>& list = place_ == Place::shape ? tensor_.shape : offsets_;
    if (list.size() == (place_ == Place::shape ? dimension_limit : 2)) {
      refuse("{} has more than {} numbers", key_, list.size());
    }
    list.push_back(std::int64_t(value));
    return true;
  }

  bool number_integer(number_integer_t value) override { refuse("{} is {}; it cannot be negative", key_, value); }
  bool number_float(number_float_t, const string_t& text) override {
    refuse("{} is {}; it must be a whole number below 2^63", key_, printable(text));
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    name_.clear();
    refuse("malformed JSON at byte {} of the header (near '{}')", position, printable(token, 20));
  }

 private:
  enum class Place { start, top, tensor, shape, offsets, metadata, done };

  template <class... Args> [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    const std::string what = fmt::format(text, std::forward<Args>(args)...);
    const std::string where = name_.empty() ? "safetensors header" : "tensor '" + printable(name_) + "'";
    fail(ExitCode::bad_data, "{}: {}: {}; get the file again", file_, where, what);
  }

  [[noreturn]] void unexpected(const char* what) const { refuse("{} where the format has none", what); }

  bool top_key(const std::string& key) {
    if (!is_tensor_name(key)) {
      refuse("tensor name '{}' is empty, longer than {} bytes, or has control characters", printable(key), name_limit);
    }
    const bool again = key == "__metadata__" ? metadata_seen_ : header_.tensors.count(key) != 0;
    if (again) refuse("the name '{}' is there twice", printable(key));
    if (header_.tensors.size() >= tensor_limit) refuse("more than {} tensors", tensor_limit);
    metadata_seen_ = metadata_seen_ || key == "__metadata__";
    name_ = key;
    return true;
  }

  void start_tensor() {
    place_ = Place::tensor;
    tensor_ = {};
    offsets_.clear();
    fields_.clear();
  }

  void dtype(const std::string& text) {
    if (size_of_dtype(text) == 0) refuse("dtype '{}' is not supported; allowed are {}", printable(text), dtype_list);
    tensor_.dtype = text;
  }

  void end_tensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (fields_.count(field) == 0) refuse("the field '{}' is missing", field);
    }
    if (offsets_.size() != 2) refuse("data_offsets has {} numbers, not 2", offsets_.size());
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    if (tensor_.begin > tensor_.end) refuse("data_offsets [{}, {}] are reversed", tensor_.begin, tensor_.end);
    const auto bytes = bytes_of(tensor_.shape, tensor_.dtype);
    if (!bytes) refuse("shape {} of {} has more than 2^63 bytes", shape_text(tensor_.shape), tensor_.dtype);
    if (*bytes != tensor_.end - tensor_.begin) {
      refuse("shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}", shape_text(tensor_.shape), tensor_.dtype,
             *bytes, tensor_.begin, tensor_.end, tensor_.end - tensor_.begin);
    }
    header_.tensors.emplace(name_, std::move(tensor_));
    place_ = Place::top;
  }

  SafetensorsHeader& header_;
  const std::string& file_;
  Place place_ = Place::start;
  std::string name_, key_;  // of the tensor, of the field
  bool metadata_seen_ = false;
  SafetensorInfo tensor_;
  std::vector<std::int64_t> offsets_;
  std::set<std::string> fields_;
};

/// Reads and checks the first 8 bytes, before anything of the header's length is allocated.
std::int64_t header_length(const std::string& bytes, std::int64_t file_size, const std::string& name) {
  if (file_size < 8 || bytes.size() < 8) {
    fail(ExitCode::bad_data, "{}: {} bytes, a safetensors file has at least 8; get the file again", name,
         std::min<std::int64_t>(std::max<std::int64_t>(file_size, 0), std::int64_t(bytes.size())));
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[std::size_t(i)]);
  const std::uint64_t room = std::uint64_t(file_size) - 8;
  if (length > header_limit || length > room) {
    fail(ExitCode::bad_data,
         "{}: the header length is {}, at most {} fit (file of {} bytes, limit {}); truncated or not safetensors, get "
         "it again",
         name, length, std::min(header_limit, room), file_size, header_limit);
  }
  return std::int64_t(length);
}

/// The tensors, by offset, must tile the data part exactly.
void check_coverage(const SafetensorsHeader& header, std::int64_t file_size, const std::string& name) {
  using Entry = std::map<std::string, SafetensorInfo>::const_pointer;
  std::vector<Entry> order;
  order.reserve(header.tensors.size());
  for (const auto& entry : header.tensors) order.push_back(&entry);
  const auto earlier = [](Entry a, Entry b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  };
  std::sort(order.begin(), order.end(), earlier);
  std::int64_t covered = 0;
  for (const Entry entry : order) {
    if (entry->second.begin != covered) {
      fail(ExitCode::bad_data,
           "{}: tensor '{}' begins at data byte {}, the tensors before it end at {} ({}); get the file again", name,
           printable(entry->first), entry->second.begin, covered,
           entry->second.begin > covered ? "a gap" : "an overlap");
    }
    covered = entry->second.end;
  }
  const std::int64_t data = file_size - header.data_offset;
  if (covered != data) {
    fail(ExitCode::bad_data, "{}: the tensors end at data byte {}, the file has {} data bytes ({}); get the file again",
         name, covered, data, covered > data ? "truncated" : "bytes that belong to no tensor");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& bytes, std::int64_t file_size, const std::string& name) {
  const std::int64_t length = header_length(bytes, file_size, name);
  if (std::int64_t(bytes.size()) - 8 < length) {
    fail(ExitCode::bad_data, "{}: truncated: {} of {} header bytes; get the file again", name, bytes.size() - 8,
         length);
  }
  // JSON parsers skip a byte order mark and white space here; the format does not.
  if (length == 0 || bytes[8] != '{') {
    fail(ExitCode::bad_data, "{}: the header does not begin with '{{'; not a safetensors file", name);
  }
  const std::size_t nul = bytes.find('\0', 8);
  if (nul < std::size_t(8 + length)) {  // the parser takes it for the end and would not look at the rest
    fail(ExitCode::bad_data, "{}: malformed JSON: a NUL at byte {} of the header; get the file again", name, nul - 8);
  }
  SafetensorsHeader header;
  header.data_offset = 8 + length;
  HeaderReader reader(header, name);
  nlohmann::json::sax_parse(bytes.begin() + 8, bytes.begin() + 8 + length, &reader);
  check_coverage(header, file_size, name);
  return header;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const InputFile input(path);
  std::string bytes(std::size_t(std::min<std::int64_t>(input.size(), 8)), '\0');
  input.read(0, bytes.data(), bytes.size());
  const std::int64_t length = header_length(bytes, input.size(), path);
  bytes.resize(std::size_t(8 + length));
  input.read(0, bytes.data(), bytes.size());
  SafetensorsFile file;
  file.path_ = path;
  file.header_ = parse_safetensors_header(bytes, input.size(), path);
  return file;
}

const SafetensorInfo& SafetensorsFile::find(const std::string& tensor) const {
  const auto found = header_.tensors.find(tensor);
  if (found == header_.tensors.end()) {
    fail(ExitCode::bad_data, "{}: has no tensor '{}' among its {}; is it a model of this kind?", path_,
         printable(tensor), header_.tensors.size());
  }
  return found->second;
}

std::vector<std::uint8_t> SafetensorsFile::raw(const std::string& tensor) const {
  const SafetensorInfo& info = find(tensor);
  std::vector<std::uint8_t> bytes(std::size_t(info.end - info.begin));
  InputFile(path_).read(header_.data_offset + info.begin, bytes.data(), bytes.size());
  return bytes;
}

namespace {

template <class T> T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

/// IEEE half: 1 sign, 5 exponent (bias 15), 10 mantissa bits. Every value is exact in float.
float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = float(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);  // infinity, NaN
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

}  // namespace

std::vector<float> SafetensorsFile::as_f32(const std::string& tensor) const {
  const SafetensorInfo& info = find(tensor);
  const std::vector<std::uint8_t> bytes = raw(tensor);
  const std::size_t step = std::size_t(size_of_dtype(info.dtype));
  std::vector<float> values(bytes.size() / step);
  const auto convert = [&](auto&& one) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = one(bytes.data() + i * step);
  };
  if (info.dtype == "F32") {
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  } else if (info.dtype == "BF16") {
    convert([](const std::uint8_t* p) { return from_bf16(load<std::uint16_t>(p)); });
  } else if (info.dtype == "F16") {
    convert([](const std::uint8_t* p) { return from_f16(load<std::uint16_t>(p)); });
  } else if (info.dtype == "F64") {
    convert([](const std::uint8_t* p) { return float(load<double>(p)); });
  } else {
    fail(ExitCode::bad_data, "{}: tensor '{}' is {}, weights must be F32, F16, BF16 or F64; convert it", path_,
         printable(tensor), info.dtype);
  }
  return values;
}

namespace {

/// The index's weight_map: tensor -> shard.
std::map<std::string, std::string> read_index(const std::string& path) {
  const std::string text = read_file(path, std::int64_t(header_limit));
  check_json(text, path);
  const nlohmann::json index = nlohmann::json::parse(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty()) {
    fail(ExitCode::bad_data, "{}: no weight_map of tensors and shards; get the file again", path);
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>())) {
      fail(ExitCode::bad_data, "{}: tensor '{}' lies in '{}'; allowed is the plain name of a file in this folder", path,
           printable(tensor), printable(shard.is_string() ? shard.get<std::string>() : shard.dump()));
    }
    shard_of[tensor] = shard.get<std::string>();
  }
  return shard_of;
}

void add_file(SafetensorsModel& model, const std::string& path) {
  model.files.push_back(SafetensorsFile::open(path));
  for (const auto& [tensor, info] : model.files.back().header().tensors) {
    const auto [at, fresh] = model.file_of.emplace(tensor, model.files.size() - 1);
    if (!fresh) {
      fail(ExitCode::bad_data, "{}: tensor '{}' is also in {}; keep one of them", path, printable(tensor),
           model.files[at->second].path());
    }
  }
}

}  // namespace

SafetensorsModel open_safetensors_model(const std::string& folder) {
  // Links are followed (Hugging Face's cache is made of them): the user chose the folder, and a shard's name cannot
  // leave it.
  const std::filesystem::path base(folder);
  const std::string single = (base / "model.safetensors").string();
  const std::string index_path = (base / "model.safetensors.index.json").string();
  SafetensorsModel model;
  if (std::filesystem::exists(single)) {
    add_file(model, single);
    return model;
  }
  if (!std::filesystem::exists(index_path)) {
    fail(ExitCode::io, "{}: holds neither model.safetensors nor model.safetensors.index.json; check the path", folder);
  }
  const auto shard_of = read_index(index_path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) add_file(model, (base / shard).string());
  for (const auto& [tensor, shard] : shard_of) {
    const auto found = model.file_of.find(tensor);
    if (found == model.file_of.end() || model.files[found->second].path() != (base / shard).string()) {
      fail(ExitCode::bad_data, "{}: tensor '{}' is not in {}; get index and shards again", index_path,
           printable(tensor), shard);
    }
  }
  for (const auto& [tensor, file] : model.file_of) {
    if (shard_of.count(tensor) == 0) {
      fail(ExitCode::bad_data, "{}: tensor '{}' is not in the index; get index and shards again",
           model.files[file].path(), printable(tensor));
    }
  }
  return model;
}

void write_safetensors(const std::string& path, const std::vector<SafetensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names;
  std::int64_t offset = 0;
  for (const SafetensorToWrite& tensor : tensors) {
    const auto bytes = bytes_of(tensor.shape, tensor.dtype);
    CAPSTAN_CHECK(is_tensor_name(tensor.name) && tensor.name != "__metadata__", "tensor '{}'", printable(tensor.name));
    CAPSTAN_CHECK(names.insert(tensor.name).second, "tensor '{}' is given twice", tensor.name);
    CAPSTAN_CHECK(size_of_dtype(tensor.dtype) > 0 && bytes && *bytes == std::int64_t(tensor.bytes.size()),
                  "tensor '{}': {} {} has {} bytes", tensor.name, tensor.dtype, shape_text(tensor.shape),
                  tensor.bytes.size());
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data part is aligned for whoever maps the file
  std::array<std::uint8_t, 8> length{};
  for (std::size_t i = 0; i < 8; ++i) length[i] = std::uint8_t(std::uint64_t(text.size()) >> (8 * i));
  write_atomically(path, [&](const std::string& temporary) {
    OutputFile file(temporary);
    file.write(length.data(), length.size());
    file.write(text.data(), text.size());
    for (const SafetensorToWrite& tensor : tensors) file.write(tensor.bytes.data(), tensor.bytes.size());
    file.close();
  });
}

}  // namespace capstan::framework
