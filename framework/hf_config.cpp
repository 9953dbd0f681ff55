#include "framework/hf_config.h"

#include <algorithm>
#include <cmath>

#include "framework/encoding.h"
#include "framework/files.h"
#include "framework/json.h"
#include "framework/rotary_frequencies.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t config_limit = 1 << 20;  // bytes
constexpr double largest_length = 2147483647;   // tokens

/// Before the model_type of models whose encoding or block Hugging Face's Llama does not compute: its library refuses the type, where
/// it would load a Llama and leave out the tensors that it does not know.
const std::string own_type = "capstan-";

std::string without_own_type(const std::string& type) {
  return type.starts_with(own_type) ? type.substr(own_type.size()) : type;
}

/// One JSON object with the name that its errors begin with. Null counts as absent, as in Hugging Face's own reader.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t integer(const std::string& key, std::int64_t absent, double least, double most) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number_integer()) refuse(key, fmt::format("a whole number from {:.0f} to {:.0f}", least, most));
    const double rounded = value->get<double>();  // good enough for the range; an unsigned value may not fit an int64
    if (!(rounded >= least && rounded <= most)) refuse(key, fmt::format("{:.0f} to {:.0f}", least, most));
    return value->get<std::int64_t>();
  }

  std::int64_t required_integer(const std::string& key, double least, double most) const {
    if (find(key) == nullptr) fail(ExitCode::bad_data, "{}: {} is missing; get the file again", where_, key);
    return integer(key, 0, least, most);
  }

  double number(const std::string& key, double absent, double least, double most) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    const std::string allowed = fmt::format("a number from {} to {}", least, most);
    if (!value->is_number()) refuse(key, allowed);
    const double found = value->get<double>();
    if (!(found >= least && found <= most)) refuse(key, allowed);
    return found;
  }

  bool flag(const std::string& key, bool absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }

  std::string text(const std::string& key, const std::string& absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_string()) refuse(key, "a text");
    return value->get<std::string>();
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const {
    const Json* value = find(key);
    fail(ExitCode::bad_data, "{}: {} is {}, allowed is {}; such a model cannot be used here", where_, key,
         value == nullptr ? "missing" : printable(value->dump()), allowed);
  }

  const Json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

/// Everything that would give other results than this program computes.
void refuse_unsupported(const Fields& config, const std::string& type) {
  if (config.find("sliding_window") != nullptr) config.refuse("sliding_window", "null");
  // Mistral's window has a default of 4096: absent does not mean none.
  if (type == "mistral" && !config.object().contains("sliding_window"))
    config.refuse("sliding_window", "null (written out)");
  for (const char* bias : {"attention_bias", "mlp_bias"}) {  // Hugging Face's Mistral has none, whatever this says
    if (config.flag(bias, false) && type == "mistral") config.refuse(bias, "false");
  }
  if (config.find("quantization_config") != nullptr)
    config.refuse("quantization_config", "null: weights of F32, F16, BF16");
  if (config.number("partial_rotary_factor", 1, 0, 1) != 1) config.refuse("partial_rotary_factor", "1");
}

ModelConfig read_model(const Fields& config, const std::string& type) {
  ModelConfig model;
  model.hidden_size = config.required_integer("hidden_size", 1, 1 << 20);
  model.mlp_size = config.required_integer("intermediate_size", 1, 1 << 22);
  model.layers = config.required_integer("num_hidden_layers", 1, 4096);
  model.heads = config.required_integer("num_attention_heads", 1, 65536);
  model.vocabulary = config.required_integer("vocab_size", 1, 1 << 24);
  // Defaults of Hugging Face's LlamaConfig and MistralConfig for what a file may leave out.
  model.kv_heads = config.integer("num_key_value_heads", type == "mistral" ? 8 : model.heads, 1, 65536);
  model.norm_eps = config.number("rms_norm_eps", 1e-6, 1e-30, 1);
  model.tied = config.flag("tie_word_embeddings", false);
  model.max_length = config.integer("max_position_embeddings", type == "mistral" ? 131072 : 2048, 1, largest_length);
  if (model.heads % model.kv_heads != 0) {
    config.refuse("num_key_value_heads", fmt::format("a divisor of the {} heads", model.heads));
  }
  if (config.find("head_dim") == nullptr && model.hidden_size % model.heads != 0) {
    config.refuse("num_attention_heads", fmt::format("a divisor of hidden_size {}, or head_dim", model.hidden_size));
  }
  model.head_size = config.integer("head_dim", model.hidden_size / model.heads, 1, 65536);
  if (model.head_size < 1 || model.head_size % 2 != 0) {
    fail(ExitCode::bad_data, "{}: heads of size {}, allowed are even sizes (rotary pairs)", config.where(),
         model.head_size);
  }
  return model;
}

/// Sets the option of that name to a field's text.
void set_option(Recipe& holder, const std::string& name, const Fields& fields, const std::string& key) {
  for (const Option& option : options(holder)) {
    if (option.name != name) continue;
    const Json& value = *fields.find(key);
    try {
      option.set(value.is_string() ? value.get<std::string>() : value.dump(), fields.where());
    } catch (const Error&) { fields.refuse(key, option.allowed()); }
  }
}

/// Biases and activation by Llama's own fields, the rest by the object capstan_block; see own_block().
void read_block(const Fields& config, bool is_own, ModelConfig& model) {
  const bool attention = config.flag("attention_bias", false), mlp = config.flag("mlp_bias", false);
  model.bias = attention && mlp ? "true" : attention ? "attention" : mlp ? "mlp" : "false";
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu" && activation != "gelu")
    config.refuse("hidden_act", "silu, or gelu (the exact one; not its approximations)");
  model.mlp = activation == "silu" ? "swiglu" : "geglu";
  const Json* found = config.find("capstan_block");
  if (found == nullptr) return;
  if (!found->is_object()) config.refuse("capstan_block", "an object");
  if (!is_own) config.refuse("model_type", "capstan-llama or capstan-mistral, beside capstan_block");
  const Fields own(*found, config.where() + ": capstan_block");
  Recipe holder;
  holder.model = model;
  for (const auto& [key, value] : own.object().items()) {
    if (key != "norm" && key != "mlp") own.refuse(key, "only norm, mlp");
    if (own.find(key) != nullptr) set_option(holder, "model." + key, own, key);
  }
  if ((holder.model.mlp == "swiglu") != (activation == "silu")) own.refuse("mlp", "one of hidden_act " + activation);
  model.norm = holder.model.norm;
  model.mlp = holder.model.mlp;
}

std::vector<int> read_ids(const Fields& config, const std::string& key, int absent, std::int64_t vocabulary) {
  const auto found = config.object().find(key);
  if (found == config.object().end()) return absent < vocabulary ? std::vector<int>{absent} : std::vector<int>{};
  if (found->is_null()) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<int> ids;
  for (const Json& id : list) {
    const bool valid = id.is_number_integer() && id.get<double>() >= 0 && id.get<double>() < double(vocabulary);
    if (!valid) config.refuse(key, fmt::format("ids from 0 to {}", vocabulary - 1));
    ids.push_back(id.get<int>());
  }
  return ids;
}

/// The keys that a scaling uses. Any other key with a value would be something that is not honoured.
void check_scaling_keys(const Fields& scaling, const std::string& type) {
  std::vector<std::string> known{"type", "rope_type", "rope_theta", "finetuned"};
  if (type != "none") known.insert(known.end(), {"factor", "original_max_position_embeddings"});
  if (type == "yarn") known.insert(known.end(), {"beta_fast", "beta_slow", "attention_factor"});
  if (type == "llama3") known.insert(known.end(), {"low_freq_factor", "high_freq_factor"});
  for (const auto& [key, value] : scaling.object().items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (key == "partial_rotary_factor" && value == 1) continue;
    if (key == "truncate" && value == true) continue;  // YaRN's own rule, spelt out
    fail(ExitCode::bad_data, "{}: unknown key '{}' ({}) for the rope type '{}'; such a model cannot be used here",
         scaling.where(), printable(key), printable(value.dump()), type);
  }
}

void read_scaling(const Fields& scaling, PositionConfig& position) {
  const std::string old_name = scaling.text("type", "");
  std::string type = scaling.text("rope_type", old_name);
  if (!old_name.empty() && type != old_name) scaling.refuse("type", "the same as rope_type '" + printable(type) + "'");
  if (type.empty() && scaling.find("factor") != nullptr) scaling.refuse("rope_type", "linear, dynamic, yarn or llama3");
  if (type.empty() || type == "default") type = "none";
  if (type != "none" && type != "linear" && type != "dynamic" && type != "yarn" && type != "llama3") {
    scaling.refuse(scaling.find("rope_type") != nullptr ? "rope_type" : "type",
                   "default, linear, dynamic, yarn or llama3");
  }
  check_scaling_keys(scaling, type);
  position.scaling = type;
  if (type == "none") return;
  if (scaling.find("factor") == nullptr) scaling.refuse("factor", "a number from 1 to 1e6");
  position.factor = scaling.number("factor", 1, 1, 1e6);
  position.original_length = scaling.integer("original_max_position_embeddings", 0, 1, largest_length);
  if (type == "yarn") {
    position.beta_fast = scaling.number("beta_fast", 32, 1e-3, 1e6);
    position.beta_slow = scaling.number("beta_slow", 1, 1e-3, 1e6);
    position.attention_factor = scaling.number("attention_factor", 0, 1e-3, 1e3);
    if (position.beta_slow >= position.beta_fast) scaling.refuse("beta_slow", "less than beta_fast");
  }
  if (type == "llama3") {
    for (const char* key : {"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}) {
      if (scaling.find(key) == nullptr) scaling.refuse(key, "a number");
    }
    position.low_freq_factor = scaling.number("low_freq_factor", 1, 1e-3, 1e6);
    position.high_freq_factor = scaling.number("high_freq_factor", 4, 1e-3, 1e6);
    if (position.low_freq_factor >= position.high_freq_factor)
      scaling.refuse("low_freq_factor", "less than high_freq_factor");
  }
}

/// The object of the rotary scaling: rope_parameters (transformers 5, which also holds the base) or rope_scaling.
const char* scaling_key(const Json& config) {
  const auto found = config.find("rope_parameters");
  return found != config.end() && !found->is_null() ? "rope_parameters" : "rope_scaling";
}

PositionConfig read_rope(const Fields& config, std::int64_t shown_length) {
  PositionConfig position;
  const std::string key = scaling_key(config.object());
  if (key == "rope_parameters" && config.find("rope_scaling") != nullptr)
    config.refuse("rope_scaling", "null beside rope_parameters");
  position.theta = config.number("rope_theta", 10000, 1, 1e15);
  const Json* scaling = config.find(key);
  if (scaling == nullptr) return position;
  if (!scaling->is_object()) config.refuse(key, "an object or null");
  const Fields fields(*scaling, config.where() + ": " + key);
  position.theta = fields.number("rope_theta", position.theta, 1, 1e15);
  read_scaling(fields, position);
  if (position.scaling == "dynamic" && position.original_length > 0 && position.original_length != shown_length)
    fields.refuse("original_max_position_embeddings",
                  fmt::format("max_position_embeddings {}, from which Hugging Face scales dynamically", shown_length));
  return position;
}

/// Options of [position] that Hugging Face has no field for, beside those that own_position() writes by themselves.
std::vector<std::string> own_keys() {
  static const std::vector<std::string> elsewhere{
      "kind",      "theta",     "scaling",          "factor",          "original_length", "length",
      "beta_fast", "beta_slow", "attention_factor", "low_freq_factor", "high_freq_factor"};
  Recipe recipe;
  std::vector<std::string> keys;
  for (const Option& option : options(recipe)) {
    if (!option.name.starts_with("position.")) continue;
    const std::string key = option.name.substr(std::string("position.").size());
    if (std::find(elsewhere.begin(), elsewhere.end(), key) == elsewhere.end()) keys.push_back(key);
  }
  return keys;
}

/// What Hugging Face has no field for; see own_position().
void read_own_position(const Fields& own, ModelConfig& model, PositionConfig& position) {
  Recipe holder;
  std::vector<std::string> known{"kind",           "length",          "theta",     "ntk_factor",
                                 "dynamic_factor", "original_length", "max_length"};
  for (const std::string& key : own_keys()) known.push_back(key);
  for (const auto& [key, value] : own.object().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      own.refuse(key, fmt::format("only {}", fmt::join(known, ", ")));
  }
  holder.position = position;
  holder.position.kind = own.text("kind", "rope");
  try {
    claims_of(holder.position);
  } catch (const Error& error) { own.refuse("kind", fmt::format("names of encodings joined by + ({})", error.what())); }
  for (const std::string& key : own_keys())
    if (own.find(key) != nullptr) set_option(holder, "position." + key, own, key);
  position = holder.position;
  position.length = own.integer("length", position.length, 0, largest_length);
  if (own.find("ntk_factor") != nullptr) {
    position.scaling = "ntk";
    position.factor = own.number("ntk_factor", 1, 1, 1e6);
  }
  if (own.find("dynamic_factor") != nullptr) {
    position.scaling = "dynamic";
    position.factor = own.number("dynamic_factor", 1, 1, 1e6);
  }
  position.theta = own.number("theta", position.theta, 1, 1e15);
  position.original_length = own.integer("original_length", position.original_length, 0, largest_length);
  model.max_length = own.integer("max_length", model.max_length, 1, largest_length);
}

}  // namespace

HfConfig parse_hf_config(const std::string& json, const std::string& name) {
  check_json(json, name);
  const Json root = Json::parse(json);
  if (!root.is_object()) fail(ExitCode::bad_data, "{}: not a JSON object; is it a config.json?", name);
  const Fields config(root, name);
  const std::string stated_type = config.text("model_type", ""), type = without_own_type(stated_type);
  const bool is_own = stated_type != type;
  if (type != "llama" && type != "mistral") config.refuse("model_type", "llama, or mistral without a window");
  if (is_own && config.find("capstan_position") == nullptr && config.find("capstan_block") == nullptr)
    config.refuse("capstan_position", "an object, or capstan_block, beside model_type " + stated_type);
  refuse_unsupported(config, type);
  HfConfig result;
  result.json = json;
  result.model = read_model(config, type);
  read_block(config, is_own, result.model);
  result.position = read_rope(config, result.model.max_length);
  if (const Json* own = config.find("capstan_position")) {
    if (!own->is_object()) config.refuse("capstan_position", "an object");
    read_own_position(Fields(*own, name + ": capstan_position"), result.model, result.position);
  }
  const std::vector<int> bos =
      read_ids(config, "bos_token_id", 1, result.model.vocabulary);  // 1, 2: LlamaConfig's defaults
  if (bos.size() > 1) config.refuse("bos_token_id", "one id or null");
  result.bos = bos.empty() ? -1 : bos.front();
  result.eos = read_ids(config, "eos_token_id", 2, result.model.vocabulary);
  return result;
}

HfConfig read_hf_config(const std::string& path) { return parse_hf_config(read_file(path, config_limit), path); }

namespace {

std::int64_t kv_heads_of(const ModelConfig& model) { return model.kv_heads > 0 ? model.kv_heads : model.heads; }
std::int64_t head_size_of(const ModelConfig& model) {
  return model.head_size > 0 ? model.head_size : model.hidden_size / model.heads;
}

/// What a model made here without an import starts from.
Json fresh_config() {
  return Json{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"hidden_act", "silu"},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr},
              {"torch_dtype", "float32"}};
}

/// Sets a field only where the original, read with its defaults, does not say the same.
template <class T> void set_changed(Json& config, const char* key, const T& before, const T& now) {
  if (before != now) config[key] = now;
}

/// A number of the config as it stands; null counts as absent.
double number_in(const Json& config, const char* key, double absent) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() ? absent : found->get<double>();
}

void update_model(Json& config, const ModelConfig& before, const ModelConfig& now) {
  set_changed(config, "hidden_size", before.hidden_size, now.hidden_size);
  set_changed(config, "intermediate_size", before.mlp_size, now.mlp_size);
  set_changed(config, "num_hidden_layers", before.layers, now.layers);
  set_changed(config, "num_attention_heads", before.heads, now.heads);
  set_changed(config, "num_key_value_heads", kv_heads_of(before), kv_heads_of(now));
  const double implied = number_in(config, "head_dim", double(now.hidden_size / now.heads));
  if (implied != double(head_size_of(now))) config["head_dim"] = head_size_of(now);
  set_changed(config, "vocab_size", before.vocabulary, now.vocabulary);
  set_changed(config, "rms_norm_eps", before.norm_eps, now.norm_eps);
  set_changed(config, "tie_word_embeddings", before.tied, now.tied);
  set_changed(config, "attention_bias", before.attention_bias(), now.attention_bias());
  set_changed(config, "mlp_bias", before.mlp_bias(), now.mlp_bias());
  const auto activation = [](const ModelConfig& m) { return std::string(m.mlp == "swiglu" ? "silu" : "gelu"); };
  set_changed(config, "hidden_act", activation(before), activation(now));
}

/// capstan_block: null when Llama's own fields say everything, which they cannot of norms after the sums and MLPs without a gate.
Json own_block(const ModelConfig& model) {
  Json own;
  if (model.norm != "pre") own["norm"] = model.norm;
  if (!model.gated()) own["mlp"] = model.mlp;
  return own;
}

void set_own(Json& config, const char* key, const Json& own) {
  if (own.is_null()) config.erase(key);
  else config[key] = own;
}

/// Readers choose their program by these two. What Hugging Face's Llama would load and compute otherwise has a type that it refuses.
void update_type(Json& config, bool is_llama) {
  const std::string before = config["model_type"], type = without_own_type(before);
  const std::string now = (is_llama ? "" : own_type) + type;
  if (now == before) return;
  config["model_type"] = now;
  const char* known = type == "mistral" ? "MistralForCausalLM" : "LlamaForCausalLM";
  config["architectures"] = Json::array({is_llama ? known : "CapstanForCausalLM"});
}

/// Scalings that are only another base: Hugging Face has no word for them and needs none. Its dynamic scaling goes by the length at
/// hand, so that ours with a declared length is one of these.
bool only_base(const PositionConfig& position) {
  return position.scaling == "ntk" || (position.scaling == "dynamic" && position.length > 0);
}

/// The scaling as Hugging Face spells it; null for none.
Json scaling_object(const PositionConfig& position) {
  if (position.scaling == "none" || only_base(position)) return nullptr;
  Json object{{"rope_type", position.scaling}, {"factor", position.factor}};
  if (position.original_length > 0) object["original_max_position_embeddings"] = position.original_length;
  if (position.scaling == "yarn") {
    object["beta_fast"] = position.beta_fast;
    object["beta_slow"] = position.beta_slow;
    if (position.attention_factor > 0) object["attention_factor"] = position.attention_factor;
  }
  if (position.scaling == "llama3") {
    object["low_freq_factor"] = position.low_freq_factor;
    object["high_freq_factor"] = position.high_freq_factor;
  }
  return object;
}

/// Equal in what the scaling uses.
bool same_scaling(const PositionConfig& a, const PositionConfig& b) { return scaling_object(a) == scaling_object(b); }

/// The base as Hugging Face gets it.
double exported_theta(const PositionConfig& position, std::int64_t head_size) {
  if (!only_base(position)) return position.theta;
  return rotary_base(position, head_size, position.original_length, position.length);
}

/// What changes is written as transformers 4 and 5 read it: rope_theta and rope_scaling; rope_parameters are only for 5.
void update_rope(Json& config, const PositionConfig& before, const PositionConfig& now, std::int64_t head_size) {
  const double theta = exported_theta(now, head_size);
  const bool new_style = std::string(scaling_key(config)) == "rope_parameters";
  const bool base_inside = new_style && config["rope_parameters"].contains("rope_theta");
  const bool same_base = number_in(base_inside ? config["rope_parameters"] : config, "rope_theta", 10000.0) == theta;
  const bool same = same_scaling(before, now);
  if (same_base && same) return;
  if (new_style) config.erase("rope_parameters");
  if (new_style || !same_base) config["rope_theta"] = theta;
  if (new_style || !same) config["rope_scaling"] = scaling_object(now);
}

/// The position as it is exported, and how much of it Hugging Face's own fields can say.
struct Export {
  PositionConfig position;
  std::int64_t length = 0;        // trained so far
  std::int64_t shown_length = 0;  // max_position_embeddings
};

/// What Hugging Face takes max_position_embeddings for. Dynamic scaling: the original length. YaRN: the stretched length, which
/// transformers 4.51 to 4.55 divide by the original one for the factor, whatever the factor says.
std::int64_t length_to_show(const PositionConfig& position, std::int64_t trained) {
  if (position.original_length == 0 || only_base(position)) return trained;
  if (position.scaling == "dynamic") return position.original_length;
  if (position.scaling != "yarn") return trained;
  const double stretched = std::round(position.factor * double(position.original_length));
  return std::int64_t(std::min(stretched, largest_length));
}

/// `stated`: the original's max_position_embeddings.
Export plan_export(const HfConfig& before, std::int64_t stated, const ModelConfig& model,
                   const PositionConfig& position, std::int64_t max_length) {
  Export plan{position, max_length > 0 ? max_length : model.max_length, 0};
  CAPSTAN_CHECK(plan.length > 0, "an exported model needs its trained length");
  PositionConfig& now = plan.position;
  // These scale relative to the length before them; once the trained length has moved on, that must be written out.
  const bool relative = now.scaling == "dynamic" || now.scaling == "yarn" || now.scaling == "llama3";
  const bool moved = model.max_length > 0 && model.max_length != plan.length;
  if (relative && now.original_length == 0 && (moved || now.scaling == "llama3" || only_base(now)))
    now.original_length = model.max_length;
  const bool same = same_scaling(before.position, now) && before.model.max_length == plan.length;
  plan.shown_length = same ? stated : length_to_show(now, plan.length);
  return plan;
}

/// capstan_position: null when Hugging Face's own fields say everything.
Json own_position(const Export& plan) {
  const PositionConfig& position = plan.position;
  const bool hidden_length = plan.shown_length != plan.length;
  if (position.kind == "rope" && !only_base(position) && !hidden_length) return nullptr;
  Json own{{"kind", position.kind}};
  Recipe now, defaults;  // what differs from the default, as recipes write it
  now.position = position;
  const std::vector<Option> values = options(now), usual = options(defaults);
  const std::vector<std::string> keys = own_keys();
  for (std::size_t i = 0; i < values.size(); ++i)
    for (const std::string& key : keys)
      if (values[i].name == "position." + key && values[i].text() != usual[i].text())
        std::visit([&](const auto* held) { own[key] = *held; }, values[i].value);
  if (position.length > 0) own["length"] = position.length;
  if (only_base(position)) {
    own[position.scaling + "_factor"] = position.factor;
    own["theta"] = position.theta;
    if (position.original_length > 0) own["original_length"] = position.original_length;
  }
  if (hidden_length) own["max_length"] = plan.length;
  return own;
}

/// Stands for "no original": differs from every model, so that every field is written.
ModelConfig no_model(const ModelConfig& unlike) {
  ModelConfig none;
  none.hidden_size = none.mlp_size = none.layers = none.heads = none.kv_heads = none.head_size = -1;
  none.norm_eps = -1;
  none.tied = !unlike.tied;
  return none;
}

}  // namespace

std::string updated_hf_config(const std::string& original_json, const ModelConfig& model,
                              const PositionConfig& position, std::int64_t max_length) {
  HfConfig before;
  before.model = no_model(model);
  if (!original_json.empty()) before = parse_hf_config(original_json, "the original config.json");
  const Json original = original_json.empty() ? fresh_config() : Json::parse(original_json);
  // What the file leaves out has Hugging Face's default, which is in before.model unless capstan_position overrides it.
  const auto stated = std::int64_t(number_in(original, "max_position_embeddings", double(before.model.max_length)));
  const Export plan = plan_export(before, stated, model, position, max_length);
  Json config = original;
  const Json block = own_block(model);
  update_type(config, block.is_null() && position.kind == "rope");
  update_model(config, before.model, model);
  if (stated != plan.shown_length) config["max_position_embeddings"] = plan.shown_length;
  update_rope(config, before.position, plan.position, head_size_of(model));
  set_own(config, "capstan_block", block);
  set_own(config, "capstan_position", own_position(plan));
  return config == original && !original_json.empty() ? original_json : config.dump(2) + "\n";
}

}  // namespace capstan::framework
