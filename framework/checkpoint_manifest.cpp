#include "framework/checkpoint_manifest.h"

#include <algorithm>
#include <map>
#include <set>

#include "framework/files.h"
#include "framework/json.h"

namespace capstan::framework {
namespace {

using Json = nlohmann::ordered_json;

constexpr int format_number = 1;
const std::string format_prefix = "capstan-checkpoint-";
const std::string no_checksum(16, '0');
constexpr std::size_t rank_limit = 5, name_limit = 1024;
constexpr std::int64_t integer_limit = std::int64_t(1) << 53;

// ---- The options of [model] and [position], by the same table as recipes. Doubles are printed shortest, so they
// return bit for bit.

bool belongs(const Option& option, const std::string& section) {
  return option.name.compare(0, section.size() + 1, section + ".") == 0;
}

Json section_json(const Recipe& recipe, const std::string& section) {
  Recipe copy = recipe;  // options bind to fields that can be set
  Json object = Json::object();
  for (const Option& option : options(copy)) {
    if (!belongs(option, section)) continue;
    std::visit([&](const auto* value) { object[option.name.substr(section.size() + 1)] = *value; }, option.value);
  }
  return object;
}

// ---- Reading. A Reader is one JSON value with the words that errors about it begin with.

class Reader {
 public:
  Reader(const Json& value, std::string where) : value_(value), where_(std::move(where)) {}

  template <class... Args> [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ExitCode::bad_data, "{}: {}; use another checkpoint, or get this one again", where_,
         fmt::format(text, std::forward<Args>(args)...));
  }

  Reader field(const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key)) refuse("the field {} is missing", key);
    return {value_[key], where_ + ": " + key};
  }

  std::string text() const {
    if (!value_.is_string()) refuse("not a text");
    return value_.get<std::string>();
  }

  std::int64_t integer(std::int64_t least, std::int64_t most = integer_limit) const {
    const bool fits =
        value_.is_number_integer() && value_.get<double>() >= double(least) && value_.get<double>() <= double(most);
    if (!fits) refuse("{} is not a whole number from {} to {}", printable(value_.dump()), least, most);
    return value_.get<std::int64_t>();
  }

  template <class Function> void for_each(Function&& function) const {
    if (!value_.is_array()) refuse("not a list");
    for (std::size_t i = 0; i < value_.size(); ++i) function(Reader(value_[i], fmt::format("{}[{}]", where_, i)));
  }

  std::size_t size() const { return value_.size(); }
  Reader at(std::size_t index) const { return {value_[index], where_}; }
  const Json& json() const { return value_; }
  const std::string& where() const { return where_; }

 private:
  const Json& value_;
  std::string where_;
};

/// Sets the options of a section. What an older program did not know keeps its default.
void read_section(const Reader& object, Recipe& recipe, const std::string& section) {
  if (!object.json().is_object()) object.refuse("not an object");
  const std::vector<Option> all = options(recipe);
  for (const auto& [key, value] : object.json().items()) {
    const auto option =
        std::find_if(all.begin(), all.end(), [&, k = key](const Option& o) { return o.name == section + "." + k; });
    if (option == all.end()) object.refuse("unknown field '{}'; made by a newer program?", printable(key));
    const bool wants_text = std::holds_alternative<std::string*>(option->value);
    if (value.is_string() != wants_text || value.is_structured())
      object.refuse("{} = {} has the wrong type", key, printable(value.dump()));
    try {
      option->set(wants_text ? value.get<std::string>() : value.dump(), object.where());
    } catch (const Error& error) { throw Error(ExitCode::bad_data, error.what()); }
  }
}

std::string read_name(const Reader& reader) {
  const std::string name = reader.text();
  if (!is_plain_name(name) || name.size() > name_limit) reader.refuse("'{}' is not a plain name", printable(name));
  return name;
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape, const Reader& reader) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(product, extent, &product) || product > integer_limit)
      reader.refuse("more than 2^53 elements");
  return product;
}

Checkpoint::TensorInfo read_tensor(const Reader& reader) {
  Checkpoint::TensorInfo tensor;
  tensor.name = read_name(reader.field("name"));
  tensor.dtype = reader.field("dtype").text();
  if (tensor.dtype != "f32" && tensor.dtype != "f64")
    reader.refuse("dtype '{}', allowed are f32 and f64", printable(tensor.dtype));
  reader.field("shape").for_each([&](const Reader& extent) { tensor.shape.push_back(extent.integer(1)); });
  if (tensor.shape.empty() || tensor.shape.size() > rank_limit)
    reader.refuse("{} dimensions, allowed are 1 to {}", tensor.shape.size(), rank_limit);
  elements_of(tensor.shape, reader);
  return tensor;
}

Slice read_slice(const Reader& reader) {
  if (!reader.json().is_array() || reader.size() != 4) reader.refuse("not [kind, tensor, begin, end]");
  Slice slice{reader.at(0).text(), read_name(reader.at(1)), reader.at(2).integer(0), reader.at(3).integer(0)};
  if (slice.kind != "value" && slice.kind != "m" && slice.kind != "v")
    reader.refuse("kind '{}', allowed are value, m, v", printable(slice.kind));
  if (slice.begin >= slice.end) reader.refuse("elements [{}, {}) of {}", slice.begin, slice.end, slice.tensor);
  return slice;
}

ManifestFile read_file_entry(const Reader& reader) {
  ManifestFile file;
  file.name = read_name(reader.field("name"));
  file.bytes = reader.field("bytes").integer(0);
  file.xxh3 = reader.field("xxh3").text();
  reader.field("slices").for_each([&](const Reader& slice) { file.slices.push_back(read_slice(slice)); });
  return file;
}

Json file_json(const ManifestFile& file) {
  Json slices = Json::array();
  for (const Slice& slice : file.slices) slices.push_back({slice.kind, slice.tensor, slice.begin, slice.end});
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}, {"slices", slices}};
}

/// Every name once; every slice within a tensor, once per file; file sizes large enough for their slices.
void check_files(const Manifest& manifest, const Reader& reader) {
  std::set<std::string> tensors, files{manifest_name};
  for (const auto& tensor : manifest.tensors)
    if (!tensors.insert(tensor.name).second) reader.refuse("tensor '{}' is listed twice", tensor.name);
  for (const ManifestFile& file : manifest.files) {
    if (!files.insert(file.name).second) reader.refuse("file '{}' is listed twice", file.name);
    std::set<std::string> datasets;
    std::int64_t bytes = 0;
    for (const Slice& slice : file.slices) {
      if (tensors.count(slice.tensor) == 0) reader.refuse("{} holds the unknown tensor '{}'", file.name, slice.tensor);
      if (!datasets.insert(slice.dataset()).second) reader.refuse("{} lists {} twice", file.name, slice.dataset());
      bytes += (slice.end - slice.begin) * std::int64_t(sizeof(float));
      if (bytes > file.bytes) reader.refuse("{} has {} bytes, less than its slices take", file.name, file.bytes);
    }
  }
}

/// The slices of (kind, tensor) must be [0, a), [a, b), … up to its elements; moments may be absent, but only both.
void check_coverage(const Manifest& manifest, const Reader& reader) {
  std::map<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;
  for (const ManifestFile& file : manifest.files)
    for (const Slice& slice : file.slices) slices[slice.dataset()].emplace_back(slice.begin, slice.end);
  for (auto& [dataset, ranges] : slices) std::sort(ranges.begin(), ranges.end());
  for (const auto& tensor : manifest.tensors) {
    const std::int64_t elements = elements_of(tensor.shape, reader);
    if (slices.count("m:" + tensor.name) != slices.count("v:" + tensor.name))
      reader.refuse("tensor '{}' has one moment without the other", tensor.name);
    for (const std::string kind : {"value", "m", "v"}) {
      const auto found = slices.find(kind + ":" + tensor.name);
      if (found == slices.end() && kind != "value") continue;
      std::int64_t covered = 0;
      if (found != slices.end())
        for (const auto& [begin, end] : found->second) covered = begin == covered ? end : integer_limit + 1;
      if (covered != elements)
        reader.refuse("the slices of {} '{}' do not cover its {} elements once", kind, tensor.name, elements);
    }
  }
}

void check_model(const ModelConfig& model, const Reader& reader) {
  if (model.vocabulary < 1 || model.kv_heads < 1 || model.head_size < 1 || model.max_length < 0)
    reader.refuse("the model's sizes are not resolved");
  if (model.heads % model.kv_heads != 0)
    reader.refuse("{} heads are no multiple of {} kv_heads", model.heads, model.kv_heads);
}

CheckpointHeader read_header(const Reader& root) {
  CheckpointHeader header;
  Recipe recipe;
  read_section(root.field("model"), recipe, "model");
  read_section(root.field("position"), recipe, "position");
  check_model(recipe.model, root.field("model"));
  header.model = recipe.model;
  header.position = recipe.position;
  header.step = root.field("step").integer(0);
  header.optimizer_steps = root.field("optimizer_steps").integer(0);
  header.recipe = root.field("recipe").text();
  header.tokenizer = root.field("tokenizer").text();
  header.bos = std::int32_t(root.field("bos").integer(-1, header.model.vocabulary - 1));
  root.field("end_tokens").for_each([&](const Reader& id) {
    header.end_tokens.push_back(std::int32_t(id.integer(0, header.model.vocabulary - 1)));
  });
  if (header.tokenizer != "" && !is_builtin_tokenizer(header.tokenizer) && !is_tokenizer_file(header.tokenizer))
    root.refuse("tokenizer '{}', allowed are {}, {}, {} and none", printable(header.tokenizer),
                fmt::join(builtin_tokenizers(), ", "), tokenizer_model_name, tokenizer_json_name);
  return header;
}

void check_format(const Reader& root) {
  const std::string format = root.field("format").text();
  if (format == format_prefix + std::to_string(format_number)) return;
  if (format.compare(0, format_prefix.size(), format_prefix) == 0)
    fail(ExitCode::bad_data, "{}: format {}, this program reads {}{}; use a newer capstan", root.where(),
         printable(format), format_prefix, format_number);
  root.refuse("format '{}', not a checkpoint", printable(format));
}

/// Where the digits of the checksum stand.
std::size_t checksum_place(const std::string& text, const std::string& name) {
  const std::string key = "\"checksum\": \"";
  const std::size_t place = text.rfind(key);
  if (place == std::string::npos || place + key.size() + no_checksum.size() > text.size())
    fail(ExitCode::bad_data, "{}: the field checksum is missing; use another checkpoint, or get this one again", name);
  return place + key.size();
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  const CheckpointHeader& header = manifest.header;
  Recipe recipe;
  recipe.model = header.model;
  recipe.position = header.position;
  Json root;
  root["format"] = format_prefix + std::to_string(format_number);
  root["step"] = header.step;
  root["optimizer_steps"] = header.optimizer_steps;
  root["model"] = section_json(recipe, "model");
  root["position"] = section_json(recipe, "position");
  root["tokenizer"] = header.tokenizer;
  root["bos"] = header.bos;
  root["end_tokens"] = header.end_tokens;
  root["recipe"] = header.recipe;
  root["source"] = Json::array();
  for (const SourceTensor& one : manifest.source) root["source"].push_back({one.name, one.dtype});
  root["tensors"] = Json::array();
  for (const auto& tensor : manifest.tensors)
    root["tensors"].push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
  root["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) root["files"].push_back(file_json(file));
  root["checksum"] = no_checksum;
  // A path that is not UTF-8 (model.from) must not keep a checkpoint from being written.
  std::string text = root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  text.replace(checksum_place(text, manifest_name), no_checksum.size(), hex(xxh3_of(text.data(), text.size())));
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& name) {
  check_json(text, name);
  const Json json = Json::parse(text);
  const Reader root(json, name);
  check_format(root);
  std::string blank = text;
  const std::size_t place = checksum_place(text, name);
  blank.replace(place, no_checksum.size(), no_checksum);
  const std::string expected = hex(xxh3_of(blank.data(), blank.size())), found = text.substr(place, no_checksum.size());
  if (found != expected)
    root.refuse("damaged or edited: its checksum is {}, its text gives {}", printable(found), expected);

  Manifest manifest;
  manifest.header = read_header(root);
  root.field("source").for_each([&](const Reader& one) {
    if (!one.json().is_array() || one.size() != 2) one.refuse("not [name, dtype]");
    manifest.source.push_back({read_name(one.at(0)), one.at(1).text()});
  });
  root.field("tensors").for_each([&](const Reader& one) { manifest.tensors.push_back(read_tensor(one)); });
  root.field("files").for_each([&](const Reader& one) { manifest.files.push_back(read_file_entry(one)); });
  check_files(manifest, root);
  check_coverage(manifest, root);
  return manifest;
}

std::string write_entry(const ManifestFile& file) { return file_json(file).dump(); }

ManifestFile parse_entry(const std::string& text) {
  const Json json = Json::parse(text);
  return read_file_entry(Reader(json, "another rank's file"));
}

}  // namespace capstan::framework
