#include "framework/hf_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "framework/files.h"
#include "framework/linear.h"
#include "kernels/host_view.h"

namespace capstan::framework {
namespace {

constexpr char embedding_name[] = "model.embed_tokens.weight";
constexpr char output_name[] = "lm_head.weight";
constexpr std::string_view frequencies_suffix = ".self_attn.rotary_emb.inv_freq";

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> result;
  for (int axis = 0; axis < shape.rank(); ++axis) result.push_back(shape[axis]);
  return result;
}

std::string text_of(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// The tensors of all files, file by file, each in the order of its data.
std::vector<std::string> stored_order(const SafetensorsModel& model) {
  std::vector<std::string> names;
  for (const SafetensorsFile& file : model.files) {
    std::vector<std::pair<std::int64_t, std::string>> begins;
    for (const auto& [name, info] : file.header().tensors) begins.emplace_back(info.begin, name);
    std::sort(begins.begin(), begins.end());
    for (auto& [begin, name] : begins) names.push_back(std::move(name));
  }
  return names;
}

/// One tensor of the model with the words that errors about it begin with.
class Source {
 public:
  Source(const SafetensorsModel& model, const std::string& name)
      : file_(model.files[model.file_of.at(name)]), info_(file_.header().tensors.at(name)), name_(name),
        where_(fmt::format("{}: tensor '{}'", file_.path(), printable(name))) {}

  const SafetensorInfo& info() const { return info_; }
  const std::string& where() const { return where_; }

  void check_shape(const std::vector<std::int64_t>& shape) const {
    if (info_.shape != shape)
      fail(ExitCode::bad_data, "{}: shape {}, config.json asks for {}; do both files belong together?", where_,
           text_of(info_.shape), text_of(shape));
  }

  std::vector<float> values(const std::vector<std::int64_t>& shape) const {
    check_shape(shape);
    if (info_.dtype != "F32" && info_.dtype != "F16" && info_.dtype != "BF16")
      fail(ExitCode::bad_data, "{}: type {}, allowed are F32, F16, BF16; convert it", where_, info_.dtype);
    std::vector<float> values = file_.as_f32(name_);
    const auto broken = std::count_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (broken > 0)
      fail(ExitCode::bad_data, "{}: {} of {} values are not finite; get a sound model", where_, broken, values.size());
    return values;
  }

 private:
  const SafetensorsFile& file_;
  const SafetensorInfo& info_;
  std::string name_, where_;
};

/// Old files hold the rotation frequencies, which the configuration says too. They must be the plain ones.
void check_frequencies(const Source& source, const PositionConfig& position) {
  if (source.info().shape.size() != 1)
    fail(ExitCode::bad_data, "{}: shape {}, allowed is [D / 2]", source.where(), text_of(source.info().shape));
  const std::vector<float> values = source.values(source.info().shape);
  constexpr double half_precision = 1e-3, smallest_half = 6e-8;
  for (std::size_t f = 0; f < values.size(); ++f) {
    const double expected = std::pow(position.theta, -double(f) / double(values.size()));
    if (std::abs(values[f] - expected) > half_precision * expected + smallest_half)
      fail(ExitCode::bad_data, "{}: frequency {} is {}, rope_theta {} gives {}; such a model cannot be used here",
           source.where(), f, values[f], position.theta, expected);
  }
}

void copy_values(const View& out, const std::vector<float>& values) {
  kernels::update_on_host(out, [&](const View& host) {
    kernels::with_real(out.type(),
                       [&](auto real) { std::copy(values.begin(), values.end(), host.as<decltype(real)>()); });
  });
}

}  // namespace

void check_hf_shapes(const Parameters& parameters, const SafetensorsModel& model, const std::string& folder) {
  for (const Parameter& p : parameters.all()) {
    if (model.file_of.count(p.name) == 0)
      fail(ExitCode::bad_data, "{}: tensor '{}' {} is missing; config.json asks for it, get the model again", folder,
           p.name, p.shape.text());
    Source(model, p.name).check_shape(extents(p.shape));
  }
}

ImportedWeights load_hf_weights(Parameters& parameters, const SafetensorsModel& model, const std::string& folder,
                                const PositionConfig& position, bool tied) {
  check_hf_shapes(parameters, model, folder);
  ImportedWeights result;
  for (const std::string& name : stored_order(model)) {
    const Source source(model, name);
    if (name.size() > frequencies_suffix.size() && name.ends_with(frequencies_suffix)) {
      check_frequencies(source, position);
      result.left_out.push_back(name);
      continue;
    }
    const Parameter* p = parameters.find(name);
    const bool repeats_embedding = !p && tied && name == output_name;
    if (repeats_embedding) p = parameters.find(embedding_name);
    if (!p)
      fail(ExitCode::bad_data, "{}: unknown; config.json describes a model of {} tensors without it", source.where(),
           parameters.all().size());
    const std::vector<float> values = source.values(extents(p->shape));
    if (repeats_embedding) {
      if (values != Source(model, embedding_name).values(extents(p->shape)))
        fail(ExitCode::bad_data, "{}: differs from {}, but config.json has tie_word_embeddings = true; set it to false",
             source.where(), embedding_name);
    } else {
      copy_values(p->value, values);
    }
    result.source.push_back({name, source.info().dtype});
  }
  return result;
}

namespace {

std::optional<std::uint16_t> exact_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0xffffu) != 0) return std::nullopt;
  return std::uint16_t(bits >> 16);
}

/// IEEE half: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
std::optional<std::uint16_t> exact_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = std::uint16_t(bits >> 16 & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) {  // zero or subnormal: a multiple of 2^-24
    const float units = magnitude * 0x1p24f;
    if (units != std::floor(units)) return std::nullopt;
    return std::uint16_t(sign | std::uint16_t(units));
  }
  if (magnitude > 65504.0f || (bits & 0x1fffu) != 0) return std::nullopt;
  return std::uint16_t(sign | ((bits >> 13 & 0x3ffffu) - (112u << 10)));
}

/// The values as `dtype`; nothing if one of them is not exact in it.
std::optional<std::vector<std::uint8_t>> encoded(const std::vector<float>& values, const std::string& dtype) {
  std::vector<std::uint8_t> bytes;
  if (dtype == "F32") {
    bytes.resize(values.size() * sizeof(float));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  if (dtype != "F16" && dtype != "BF16") return std::nullopt;
  bytes.reserve(values.size() * 2);
  for (const float value : values) {
    const auto half = dtype == "F16" ? exact_f16(value) : exact_bf16(value);
    if (!half) return std::nullopt;
    bytes.push_back(std::uint8_t(*half & 0xffu));
    bytes.push_back(std::uint8_t(*half >> 8));
  }
  return bytes;
}

const Checkpoint::TensorInfo* find_tensor(const Checkpoint& checkpoint, const std::string& name) {
  for (const Checkpoint::TensorInfo& tensor : checkpoint.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

std::vector<float> values_of(const Checkpoint& checkpoint, const Checkpoint::TensorInfo& tensor) {
  const Tensor values(Shape(tensor.shape), DType::f32, Device::ref);
  checkpoint.read("value", tensor.name, 0, values.view().elements(), values);
  return {values.as<float>(), values.as<float>() + values.view().elements()};
}

/// The tensor's values, with its adapter's, if it has one.
std::vector<float> exported_values(const Checkpoint& checkpoint, const Checkpoint::TensorInfo& tensor) {
  constexpr std::string_view weight = ".weight";
  std::vector<float> values = values_of(checkpoint, tensor);
  if (!tensor.name.ends_with(weight)) return values;
  const std::string layer = tensor.name.substr(0, tensor.name.size() - weight.size());
  const auto *a = find_tensor(checkpoint, layer + ".lora_A"), *b = find_tensor(checkpoint, layer + ".lora_B");
  if (!a || !b) return values;
  const ModelConfig& model = checkpoint.header().model;
  return merged_weight(values, values_of(checkpoint, *a), values_of(checkpoint, *b), model.lora_rank,
                       model.lora_alpha / double(model.lora_rank));
}

/// All tensors, each in the type that is wanted, after rounding to bf16 if that is asked; nothing if one cannot be exact.
std::optional<std::vector<SafetensorToWrite>> tensors_as(const Checkpoint& checkpoint,
                                                         const std::vector<SourceTensor>& wanted, bool rounded) {
  std::vector<SafetensorToWrite> result;
  for (const SourceTensor& want : wanted) {
    const Checkpoint::TensorInfo* tensor = find_tensor(checkpoint, want.name);
    if (!tensor && want.name == output_name)
      tensor = find_tensor(checkpoint, embedding_name);  // the source repeated the tied matrix
    CAPSTAN_CHECK(tensor, "{}: no tensor {}", checkpoint.folder(), want.name);
    std::vector<float> values = exported_values(checkpoint, *tensor);
    if (rounded)
      for (float& value : values) value = kernels::to_float(kernels::to_bfloat16(value));
    auto bytes = encoded(values, want.dtype);
    if (!bytes) return std::nullopt;
    result.push_back({want.name, want.dtype, tensor->shape, std::move(*bytes)});
  }
  return result;
}

}  // namespace

std::vector<SafetensorToWrite> hf_tensors(const Checkpoint& checkpoint, const std::string& type) {
  std::vector<SourceTensor> wanted = checkpoint.extras().source;
  std::set<std::string> covered;
  for (const SourceTensor& one : wanted) covered.insert(one.name);
  std::vector<SourceTensor> rest;  // of a model made here, or of an encoding that came later
  for (const auto& tensor : checkpoint.tensors())
    if (covered.count(tensor.name) == 0 && !is_of_adapter(tensor.name)) rest.push_back({tensor.name, "F32"});
  std::sort(rest.begin(), rest.end(), [](const SourceTensor& a, const SourceTensor& b) { return a.name < b.name; });
  wanted.insert(wanted.end(), rest.begin(), rest.end());
  const bool rounded = type == "bf16";
  if (type == "auto")
    if (auto tensors = tensors_as(checkpoint, wanted, false)) return std::move(*tensors);
  for (SourceTensor& one : wanted) one.dtype = rounded ? "BF16" : "F32";
  return std::move(*tensors_as(checkpoint, wanted, rounded));
}

}  // namespace capstan::framework
