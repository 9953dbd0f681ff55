#include "framework/hf_config.h"

#include <cmath>

#include "framework/json.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using nlohmann::ordered_json;
using testing::error_of;
using testing::expect_parts;
using testing::TestFolder;

/// The config of stories260K, as text; `change` is a JSON merge patch (null removes).
ordered_json base() {
  return ordered_json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float32", "x_unknown": {"a": [1]}})");
}
std::string with(const std::string& change) {
  ordered_json config = base();
  config.update(ordered_json::parse(change));
  return config.dump();
}
std::string without(const std::string& key) {
  ordered_json config = base();
  config.erase(key);
  return config.dump();
}
HfConfig parse(const std::string& json) { return parse_hf_config(json, "config.json"); }
std::string refusal(const std::string& json) {
  const std::string line = error_of(ExitCode::bad_data, [&] { parse(json); });
  expect_parts(line, {"config.json"});
  return line;
}

TEST(HfConfig, ReadsALlama) {
  const HfConfig config = parse(base().dump());
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(config.model.mlp_size, 172);
  EXPECT_EQ(config.model.layers, 5);
  EXPECT_EQ(config.model.heads, 8);
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.head_size, 8);
  EXPECT_EQ(config.model.vocabulary, 512);
  EXPECT_EQ(config.model.norm_eps, 1e-5);
  EXPECT_TRUE(config.model.tied);
  EXPECT_EQ(config.model.max_length, 512);
  EXPECT_EQ(config.position.kind, "rope");
  EXPECT_EQ(config.position.scaling, "none");
  EXPECT_EQ(config.position.theta, 10000);
  EXPECT_EQ(config.bos, 1);
  EXPECT_EQ(config.eos, std::vector<int>{2});
  EXPECT_EQ(config.json, base().dump());
}

TEST(HfConfig, HuggingFacesDefaultsFillGaps) {
  EXPECT_EQ(parse(without("num_key_value_heads")).model.kv_heads, 8);
  EXPECT_EQ(parse(without("rms_norm_eps")).model.norm_eps, 1e-6);
  EXPECT_EQ(parse(without("max_position_embeddings")).model.max_length, 2048);
  EXPECT_EQ(parse(without("rope_theta")).position.theta, 10000);
  EXPECT_FALSE(parse(without("tie_word_embeddings")).model.tied);
  EXPECT_EQ(parse(without("bos_token_id")).bos, 1);
  EXPECT_EQ(parse(with(R"({"bos_token_id": null})")).bos, -1);
  EXPECT_TRUE(parse(with(R"({"eos_token_id": null})")).eos.empty());
  EXPECT_EQ(parse(with(R"({"eos_token_id": [2, 7]})")).eos, (std::vector<int>{2, 7}));
  EXPECT_EQ(parse(with(R"({"head_dim": 16})")).model.head_size, 16);
  EXPECT_EQ(parse(with(R"({"head_dim": null, "rope_scaling": null, "sliding_window": null})")).model.head_size, 8);
  EXPECT_EQ(parse(with(R"({"rope_theta": 500000})")).position.theta, 500000);
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    expect_parts(refusal(without(key)), {key, "missing"});
  }
}

TEST(HfConfig, RefusesByNameWhatItCannotHonour) {
  const auto refused = [](const std::string& change, const std::vector<std::string>& parts) {
    expect_parts(refusal(with(change)), parts);
  };
  refused(R"({"model_type": "qwen2"})", {"model_type", "qwen2", "llama"});
  expect_parts(refusal(without("model_type")), {"model_type", "missing"});
  refused(R"({"sliding_window": 4096})", {"sliding_window", "4096", "null"});
  refused(R"({"model_type": "mistral"})", {"sliding_window", "missing"});
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    refused(fmt::format("{{\"{}\": 1}}", bias), {bias, "true or false"});
    refused(fmt::format("{{\"model_type\": \"mistral\", \"sliding_window\": null, \"{}\": true}}", bias),
            {bias, "false"});
  }
  for (const char* approximate : {"gelu_new", "gelu_pytorch_tanh", "relu"})
    refused(fmt::format("{{\"hidden_act\": \"{}\"}}", approximate), {"hidden_act", approximate, "silu, or gelu"});
  refused(R"({"quantization_config": {"bits": 4}})", {"quantization_config"});
  refused(R"({"partial_rotary_factor": 0.5})", {"partial_rotary_factor", "0.5"});
  refused(R"({"num_key_value_heads": 3})", {"num_key_value_heads", "3", "divisor of the 8"});
  refused(R"({"num_attention_heads": 7, "num_key_value_heads": 7})",
          {"num_attention_heads", "7", "divisor of hidden_size 64"});
  refused(R"({"head_dim": 7})", {"size 7", "even"});
  EXPECT_EQ(parse(with(R"({"model_type": "mistral", "sliding_window": null})")).model.layers, 5);
  refused(R"({"model_type": "capstan-llama"})", {"capstan_position", "missing", "beside model_type capstan-llama"});
  refused(R"({"model_type": "capstan-qwen2", "capstan_position": {"kind": "tape"}})", {"model_type", "capstan-qwen2"});
  refused(R"({"model_type": "capstan-mistral", "capstan_position": {"kind": "tape"}})", {"sliding_window", "missing"});
}

TEST(HfConfig, ReadsBiasesAndActivations) {
  const auto bias = [](const char* fields) { return parse(with(fields)).model.bias; };
  EXPECT_EQ(parse(base().dump()).model.bias, "false");
  EXPECT_EQ(bias(R"({"attention_bias": true})"), "attention");
  EXPECT_EQ(bias(R"({"mlp_bias": true, "attention_bias": null})"), "mlp");
  EXPECT_EQ(bias(R"({"attention_bias": true, "mlp_bias": true})"), "true");
  EXPECT_EQ(parse(without("hidden_act")).model.mlp, "swiglu");
  EXPECT_EQ(parse(with(R"({"hidden_act": "gelu"})")).model.mlp, "geglu") << "Llama's MLP is gated";
  EXPECT_EQ(parse(base().dump()).model.norm, "pre");
}

TEST(HfConfig, RefusesValuesOutOfRange) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const char* value :
         {"0", "-1", "1000000000000000000", "18446744073709551615", "1e18", "64.0", "\"64\"", "true", "[]"}) {
      expect_parts(refusal(with(fmt::format("{{\"{}\": {}}}", key, value))), {key});
    }
  }
  for (const char* value : {"0", "-1e-5", "2", "\"x\"", "true"}) {
    expect_parts(refusal(with(fmt::format("{{\"rms_norm_eps\": {}}}", value))), {"rms_norm_eps"});
  }
  for (const char* value : {"0", "-1", "1e16", "\"x\""}) {
    expect_parts(refusal(with(fmt::format("{{\"rope_theta\": {}}}", value))), {"rope_theta"});
  }
  for (const char* value : {"-1", "512", "1.5", "[1, 512]", "\"x\"", "{}"}) {
    expect_parts(refusal(with(fmt::format("{{\"eos_token_id\": {}}}", value))), {"eos_token_id", "0 to 511"});
  }
  expect_parts(refusal(with(R"({"bos_token_id": [1, 2]})")), {"bos_token_id"});
  expect_parts(refusal(with(R"({"tie_word_embeddings": 1})")), {"tie_word_embeddings", "true or false"});
}

TEST(HfConfig, RefusesBadJson) {
  const testing::WithoutTraps guard;
  for (const char* bad : {"", "{", "[]", "7", "{\"rope_theta\": NaN}", "{\"a\": 1, \"a\": 2}", "{\"a\": 1e999}"})
    refusal(bad);
  const TestFolder folder;
  error_of(ExitCode::io, [&] { read_hf_config(folder / "config.json"); });
  EXPECT_EQ(read_hf_config(folder.write("config.json", base().dump())).model.layers, 5);
}

PositionConfig scaling(const std::string& object) { return parse(with("{\"rope_scaling\": " + object + "}")).position; }

TEST(HfConfig, ReadsEveryScalingInBothSpellings) {
  for (const char* key : {"type", "rope_type"}) {
    EXPECT_EQ(scaling(fmt::format(R"({{"{}": "linear", "factor": 2.0}})", key)).scaling, "linear");
    EXPECT_EQ(scaling(fmt::format(R"({{"{}": "dynamic", "factor": 4}})", key)).factor, 4);
    EXPECT_EQ(scaling(fmt::format(R"({{"{}": "default"}})", key)).scaling, "none");
  }
  const PositionConfig yarn = scaling(R"({"type": "yarn", "rope_type": "yarn", "factor": 16.0, "finetuned": true,
    "original_max_position_embeddings": 256, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5})");
  EXPECT_EQ(yarn.scaling, "yarn");
  EXPECT_EQ(yarn.factor, 16);
  EXPECT_EQ(yarn.original_length, 256);
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_EQ(yarn.beta_slow, 2);
  EXPECT_EQ(yarn.attention_factor, 1.5);
  const PositionConfig llama3 = scaling(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(llama3.scaling, "llama3");
  EXPECT_EQ(llama3.original_length, 8192);
  const HfConfig newest =
      parse(with(R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}})"));
  EXPECT_EQ(newest.position.scaling, "linear");
  EXPECT_EQ(newest.position.theta, 5e5);
}

TEST(HfConfig, RefusesBadScalings) {
  const auto refused = [](const std::string& object, const std::vector<std::string>& parts) {
    expect_parts(refusal(with("{\"rope_scaling\": " + object + "}")), parts);
  };
  refused(R"({"type": "longrope", "factor": 2})", {"longrope", "llama3"});
  refused(R"({"type": "su"})", {"su"});
  refused(R"({"factor": 2})", {"rope_type"});
  refused(R"({"type": "linear"})", {"factor", "missing"});
  refused(R"({"type": "linear", "factor": 0})", {"factor"});
  refused(R"({"type": "linear", "factor": 0.5})", {"factor"});
  refused(R"({"type": "linear", "factor": "2"})", {"factor"});
  refused(R"({"type": "linear", "rope_type": "yarn", "factor": 2})", {"type", "yarn"});
  refused(R"({"type": "dynamic", "factor": 2, "alpha": 1000})", {"'alpha'", "dynamic"});
  refused(R"({"type": "yarn", "factor": 2, "mscale": 0.7})", {"'mscale'"});
  refused(R"({"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2})", {"beta_slow"});
  refused(R"({"rope_type": "llama3", "factor": 8})", {"original_max_position_embeddings", "missing"});
  refused(R"("linear")", {"rope_scaling"});
  // Hugging Face scales dynamically from max_position_embeddings, whatever this key says.
  refused(R"({"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 256})",
          {"original_max_position_embeddings", "256", "max_position_embeddings 512"});
  EXPECT_EQ(
      scaling(R"({"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 512})").original_length,
      512);
}

/// Equal in everything that the encoding uses.
void expect_same(const PositionConfig& a, const PositionConfig& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.theta, b.theta);
  EXPECT_EQ(a.scaling, b.scaling);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.original_length, b.original_length);
  EXPECT_EQ(a.length, b.length);
  EXPECT_EQ(a.beta_fast, b.beta_fast);
  EXPECT_EQ(a.beta_slow, b.beta_slow);
  EXPECT_EQ(a.attention_factor, b.attention_factor);
  EXPECT_EQ(a.low_freq_factor, b.low_freq_factor);
  EXPECT_EQ(a.high_freq_factor, b.high_freq_factor);
  EXPECT_EQ(a.cope_positions, b.cope_positions);
  EXPECT_EQ(a.tape_width, b.tape_width);
}
void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.mlp_size, b.mlp_size);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_size, b.head_size);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.tied, b.tied);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.bias, b.bias);
  EXPECT_EQ(a.mlp, b.mlp);
}

TEST(UpdatedHfConfig, UnchangedModelsKeepTheirTextByteForByte) {
  for (const std::string& json :
       {base().dump(3), with(R"({"rope_scaling": {"type": "yarn", "factor": 2}})"), without("rope_theta"),
        with(R"({"rope_theta": null, "head_dim": null, "max_position_embeddings": null})")}) {
    const HfConfig config = parse(json);
    EXPECT_EQ(updated_hf_config(json, config.model, config.position, config.model.max_length), json);
    EXPECT_EQ(updated_hf_config(json, config.model, config.position, 0), json);
  }
}

TEST(UpdatedHfConfig, ChangesOnlyWhatChanged) {
  const HfConfig config = parse(base().dump());
  PositionConfig position = config.position;
  position.scaling = "linear";
  position.factor = 2;
  const ordered_json now = ordered_json::parse(updated_hf_config(config.json, config.model, position, 1024));
  ordered_json expected = base();
  expected["max_position_embeddings"] = 1024;
  expected["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(now, expected) << "same fields in the same order";
}

/// Exports and reads again.
HfConfig round_trip(const std::string& original, const ModelConfig& model, const PositionConfig& position,
                    std::int64_t length) {
  return parse(updated_hf_config(original, model, position, length));
}

TEST(UpdatedHfConfig, EveryEncodingAndScalingComesBack) {
  for (const std::string& original :
       {base().dump(), std::string(), with(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})")}) {
    ModelConfig model = parse(base().dump()).model;
    for (const char* kind : {"none", "rope", "cope", "rope+cope", "tape"}) {
      for (const char* name : {"none", "linear", "ntk", "dynamic", "yarn", "llama3"}) {
        PositionConfig position;
        position.kind = kind;
        position.theta = 12345.5;
        position.scaling = name;
        if (position.scaling != "none") {
          position.factor = 2.5;
          position.original_length = 256;
        }
        if (position.scaling == "yarn")
          position.beta_fast = 20, position.beta_slow = 3, position.attention_factor = 1.25;
        if (position.scaling == "llama3") position.low_freq_factor = 2, position.high_freq_factor = 6;
        if (position.kind.find("cope") != std::string::npos) position.cope_positions = 32;
        if (position.kind == "tape") position.tape_width = 24;
        SCOPED_TRACE(fmt::format("{} {} {}", kind, name, original.size()));
        const HfConfig again = round_trip(original, model, position, 1024);
        expect_same(again.position, position);
        expect_same(again.model, model);
        EXPECT_EQ(again.model.max_length, 1024);
        const HfConfig twice = round_trip(again.json, again.model, again.position, 1024);
        EXPECT_EQ(twice.json, again.json) << "a second round trip changes nothing";
      }
    }
  }
}

/// Every block comes back. Llama's own fields say what they can; what Llama would compute otherwise is not called one.
TEST(UpdatedHfConfig, EveryBlockComesBack) {
  const std::string mistral = with(R"({"model_type": "mistral", "sliding_window": null, "num_key_value_heads": null,
    "max_position_embeddings": null, "architectures": ["MistralForCausalLM"]})");
  for (const std::string& original : {base().dump(), std::string(), mistral})
    for (const char* norm : {"pre", "post"})
      for (const char* bias : {"false", "true", "attention", "mlp"})
        for (const char* mlp : {"swiglu", "geglu", "gelu"}) {
          ModelConfig model = parse(original.empty() ? base().dump() : original).model;
          model.norm = norm, model.bias = bias, model.mlp = mlp;
          SCOPED_TRACE(fmt::format("{} {} {} {}", norm, bias, mlp, original.size()));
          const bool mistral_bias = original == mistral && model.bias != "false";
          if (mistral_bias)
            continue;  // no such model is imported, and none is made of one: [model] is the start model's
          const HfConfig again = round_trip(original, model, PositionConfig(), 1024);
          expect_same(again.model, model);
          EXPECT_EQ(again.model.max_length, 1024);
          EXPECT_EQ(round_trip(again.json, again.model, again.position, 1024).json, again.json);
          const ordered_json config = ordered_json::parse(again.json);
          const bool ours = model.norm == "post" || model.mlp == "gelu";
          const std::string type = original == mistral ? "mistral" : "llama";
          EXPECT_EQ(config["model_type"], (ours ? "capstan-" : "") + type);
          EXPECT_EQ(config["architectures"][0] == "CapstanForCausalLM", ours);
          EXPECT_EQ(config.contains("capstan_block"), ours);
          EXPECT_EQ(config["hidden_act"], model.mlp == "swiglu" ? "silu" : "gelu");
          // Back to Llama's block.
          const HfConfig llama = round_trip(again.json, parse(base().dump()).model, PositionConfig(), 512);
          expect_same(llama.model, parse(base().dump()).model);
          EXPECT_FALSE(ordered_json::parse(llama.json).contains("capstan_block"));
          if (ours) {
            EXPECT_EQ(ordered_json::parse(llama.json)["architectures"][0],
                      type == "mistral" ? "MistralForCausalLM" : "LlamaForCausalLM");
          }
        }
}

TEST(UpdatedHfConfig, OwnFieldOnlyWhenNeeded) {
  const HfConfig config = parse(base().dump());
  const auto own = [&](const PositionConfig& position) {
    return ordered_json::parse(updated_hf_config(config.json, config.model, position, 512))
        .contains("capstan_position");
  };
  PositionConfig position = config.position;
  EXPECT_FALSE(own(position));
  position.scaling = "linear", position.factor = 2;
  EXPECT_FALSE(own(position));
  position.kind = "rope+cope";
  EXPECT_TRUE(own(position));
  // Going back to plain rope takes it away, and the type that is not Llama's.
  const std::string cope = updated_hf_config(config.json, config.model, position, 512);
  EXPECT_EQ(ordered_json::parse(cope)["model_type"], "capstan-llama");
  const auto back = ordered_json::parse(updated_hf_config(cope, config.model, config.position, 512));
  EXPECT_FALSE(back.contains("capstan_position"));
  EXPECT_EQ(back["model_type"], "llama");
  EXPECT_EQ(back["architectures"], base()["architectures"]);
}

TEST(UpdatedHfConfig, HuggingFaceComputesTheSamePhases) {
  const HfConfig config = parse(base().dump());
  PositionConfig ntk = config.position;
  ntk.scaling = "ntk", ntk.factor = 4;
  const auto exported = ordered_json::parse(updated_hf_config(config.json, config.model, ntk, 2048));
  EXPECT_NEAR(exported["rope_theta"].get<double>(), 10000 * std::pow(4.0, 8.0 / 6.0), 1e-6);
  // Scaled from the model's trained length; Hugging Face's dynamic reads that from max_position_embeddings.
  PositionConfig dynamic = config.position;
  dynamic.scaling = "dynamic", dynamic.factor = 2;
  const std::string text = updated_hf_config(config.json, config.model, dynamic, 1024);
  EXPECT_EQ(ordered_json::parse(text)["max_position_embeddings"], 512);
  EXPECT_EQ(parse(text).model.max_length, 1024);
  EXPECT_EQ(parse(text).position.original_length, 512);
  PositionConfig yarn = config.position;
  yarn.scaling = "yarn", yarn.factor = 2;
  const auto stretched = ordered_json::parse(updated_hf_config(config.json, config.model, yarn, 1024));
  EXPECT_EQ(stretched["max_position_embeddings"], 1024);
  EXPECT_EQ(stretched["rope_scaling"]["original_max_position_embeddings"], 512);
}

TEST(UpdatedHfConfig, ChangedRotationsAreWrittenForOldAndNewReaders) {
  ordered_json original = base();
  original.erase("rope_theta");
  original["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const HfConfig config = parse(original.dump());
  EXPECT_EQ(updated_hf_config(config.json, config.model, config.position, 512), config.json);
  PositionConfig position = config.position;
  position.scaling = "linear", position.factor = 2;
  const auto exported = ordered_json::parse(updated_hf_config(config.json, config.model, position, 1024));
  EXPECT_FALSE(exported.contains("rope_parameters"));
  EXPECT_EQ(exported["rope_theta"], 5e5);
  EXPECT_EQ(exported["rope_scaling"]["rope_type"], "linear");
}

TEST(UpdatedHfConfig, DynamicScalingOfADeclaredLengthIsAnotherBase) {
  const HfConfig config = parse(base().dump());
  PositionConfig position = config.position;
  position.scaling = "dynamic", position.factor = 2, position.length = 2048;
  const std::string text = updated_hf_config(config.json, config.model, position, 1024);
  const auto exported = ordered_json::parse(text);
  // theta (s L / L0 - (s - 1))^(D / (D - 2)) with s = 2, L = 2048, L0 = 512, D = 8
  EXPECT_NEAR(exported["rope_theta"].get<double>(), 10000 * std::pow(2 * 2048.0 / 512 - 1, 8.0 / 6.0), 1e-6);
  EXPECT_FALSE(exported.contains("rope_scaling"));
  EXPECT_EQ(exported["max_position_embeddings"], 1024);
  const HfConfig again = parse(text);
  position.original_length = 512;
  expect_same(again.position, position);
  EXPECT_EQ(again.model.max_length, 1024);
  EXPECT_EQ(updated_hf_config(text, again.model, again.position, 1024), text);
}

TEST(UpdatedHfConfig, YarnShowsTheStretchedLength) {
  const HfConfig config = parse(base().dump());
  PositionConfig position = config.position;
  position.scaling = "yarn", position.factor = 4;
  const std::string text = updated_hf_config(config.json, config.model, position, 1024);
  EXPECT_EQ(ordered_json::parse(text)["max_position_embeddings"], 2048);  // / 512 is the factor
  const HfConfig again = parse(text);
  EXPECT_EQ(again.model.max_length, 1024);
  EXPECT_EQ(updated_hf_config(text, again.model, again.position, 1024), text);
  // What others wrote stays as long as it describes the model.
  const std::string foreign = with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4,
      "original_max_position_embeddings": 512}})");
  const HfConfig imported = parse(foreign);
  EXPECT_EQ(updated_hf_config(foreign, imported.model, imported.position, 512), foreign);
}

TEST(UpdatedHfConfig, EncodingsThatLlamaDoesNotKnowHaveATypeOfTheirOwn) {
  for (const std::string type : {"llama", "mistral"}) {
    ordered_json original = base();
    original["model_type"] = type;
    original["architectures"] = {type == "llama" ? "LlamaForCausalLM" : "MistralForCausalLM"};
    original["sliding_window"] = nullptr;
    const HfConfig config = parse(original.dump());
    for (const char* kind : {"none", "cope", "rope+cope", "tape", "xpos"}) {
      SCOPED_TRACE(type + " " + kind);
      PositionConfig position = config.position;
      position.kind = kind;
      const std::string text = updated_hf_config(config.json, config.model, position, 512);
      const auto exported = ordered_json::parse(text);
      EXPECT_EQ(exported["model_type"], "capstan-" + type);
      EXPECT_EQ(exported["architectures"], ordered_json::array({"CapstanForCausalLM"}));
      const HfConfig again = parse(text);
      expect_same(again.position, position);
      expect_same(again.model, config.model);
      const auto rope = ordered_json::parse(updated_hf_config(text, again.model, config.position, 512));
      EXPECT_EQ(rope, original) << "back to plain rope";
    }
  }
}

TEST(UpdatedHfConfig, ChangedModelsAreWritten) {
  ModelConfig model = parse(base().dump()).model;
  model.hidden_size = 96;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_size = 32;  // not hidden / heads
  model.layers = 7;
  model.tied = false;
  model.norm_eps = 1e-6;
  model.vocabulary = 600;
  for (const std::string& original : {base().dump(), std::string()}) {
    const HfConfig again = round_trip(original, model, PositionConfig(), 512);
    expect_same(again.model, model);
  }
  ModelConfig defaults;  // 0 stands for "as derived"
  defaults.vocabulary = 258;
  const HfConfig again = round_trip("", defaults, PositionConfig(), 512);
  EXPECT_EQ(again.model.kv_heads, 8);
  EXPECT_EQ(again.model.head_size, 8);
  EXPECT_EQ(again.bos, -1);
  EXPECT_TRUE(again.eos.empty());
}

TEST(HfConfig, RefusesABadOwnField) {
  const auto refused = [](const std::string& own, const std::vector<std::string>& parts) {
    expect_parts(refusal(with("{\"capstan_position\": " + own + "}")), parts);
  };
  refused("7", {"capstan_position", "object"});
  refused(R"({"kind": "alibo"})", {"kind", "alibo", "encoding"});
  refused(R"({"kind": "rope+xpos"})", {"kind", "rope+xpos", "a rotation of queries and keys"});
  refused(R"({"kind": "cope", "cope_gate": "queries"})", {"cope_gate", "keys, separate or values"});
  refused(R"({"kind": "cope", "cope_positions": 0})", {"cope_positions"});
  refused(R"({"kind": "cope", "new_field": 1})", {"new_field"});
}

TEST(HfConfig, RefusesABadBlock) {
  const auto refused = [](const std::string& fields, const std::vector<std::string>& parts) {
    expect_parts(refusal(with("{\"model_type\": \"capstan-llama\", " + fields + "}")), parts);
  };
  EXPECT_EQ(parse(with(R"({"model_type": "capstan-llama", "capstan_block": {"norm": "post"}})")).model.norm, "post");
  refused(R"("capstan_block": 7)", {"capstan_block", "object"});
  refused(R"("capstan_block": {"norm": "after"})", {"capstan_block", "norm", "after", "pre or post"});
  refused(R"("capstan_block": {"mlp": "relu"})", {"mlp", "relu", "swiglu, geglu or gelu"});
  refused(R"("capstan_block": {"mlp": "gelu"})", {"mlp", "gelu", "hidden_act silu"});
  refused(R"("capstan_block": {"bias": true})", {"bias", "only norm, mlp"});
  expect_parts(refusal(with(R"({"capstan_block": {"norm": "post"}})")), {"model_type", "capstan-llama"});
}

}  // namespace
}  // namespace capstan::framework
