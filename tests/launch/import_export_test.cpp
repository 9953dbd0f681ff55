// import → export must give back what came in, and refuse by name what it cannot honour.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "framework/checkpoint.h"
#include "framework/hf_config.h"
#include "framework/json.h"
#include "framework/safetensors.h"
#include "tests/framework/test_folder.h"
#include "tests/launch/program.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;
using framework::SafetensorsModel;
using framework::SafetensorToWrite;
using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using Json = nlohmann::ordered_json;

void expect_same_tensors(const SafetensorsModel& a, const SafetensorsModel& b) {
  ASSERT_EQ(a.file_of.size(), b.file_of.size());
  for (const auto& [name, index] : a.file_of) {
    ASSERT_EQ(b.file_of.count(name), 1u) << name;
    const auto &first = a.files[index], &second = b.files[b.file_of.at(name)];
    EXPECT_EQ(first.header().tensors.at(name).dtype, second.header().tensors.at(name).dtype) << name;
    EXPECT_EQ(first.header().tensors.at(name).shape, second.header().tensors.at(name).shape) << name;
    EXPECT_EQ(first.raw(name), second.raw(name)) << name;
  }
}

TEST(ImportExport, ATokenizerJsonTravelsUnchanged) {
  const testing::TestFolder folder;
  const std::string json =
      R"({"added_tokens": [{"id": 5, "content": "<end>", "special": true}], "pre_tokenizer": {"type": "ByteLevel",
  "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": ["a b"],
  "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "c": 4}}})";
  folder.write("hf/tokenizer.json", json);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(stories + "/" + name, folder / "hf/" + std::string(name));
  expect_parts(capstan({"import", folder / "hf", "--output", folder / "model", "--end-token", "5"}),
               {"tokenizer.json, 6 tokens", "end 5"});
  EXPECT_EQ(slurp(folder / "model/tokenizer.json"), json);
  expect_parts(capstan({"inspect", folder / "model"}), {"tokenizer.json"});

  const auto loaded = framework::load_model(folder / "model", kernels::Device::cpu, kernels::DType::f32);
  ASSERT_TRUE(loaded.tokenizer);
  EXPECT_EQ(loaded.tokenizer->encode("ab c"), (std::vector<std::int32_t>{2, 3, 4}));
  EXPECT_EQ(loaded.tokenizer->decode({2, 3, 4, 5}), "ab c");
  EXPECT_EQ(loaded.tokenizer->hash(), framework::make_tokenizer(folder / "hf")->hash());

  folder.write("text.txt", "ab c ab");
  capstan({"prepare", folder / "text.txt", "--tokenizer", folder / "model", "--output", folder / "text.h5"});
  expect_parts(capstan({"inspect", folder / "text.h5"}), {"tokenizer.json", loaded.tokenizer->hash()});
  capstan({"eval", "perplexity", "--model", folder / "model", "--data", folder / "text.h5", "--window", "4"});

  capstan({"export", folder / "model", "--output", folder / "out"});
  EXPECT_EQ(slurp(folder / "out/tokenizer.json"), json);
  capstan({"export", folder / "model", "--output", folder / "out"});  // over what is there

  const std::string large = std::string(CAPSTAN_SOURCE_DIR) + "/tests/golden/tokenizers/neox_kind.json";
  const auto mismatch = [&] { capstan({"import", folder / "hf", "--output", folder / "other", "--tokenizer", large}); };
  expect_parts(error_of(ExitCode::bad_data, mismatch), {"neox_kind.json", "3271 tokens", "the model 512"});
  EXPECT_FALSE(fs::exists(folder / "other"));
}

/// The shipped model's tensors, in a folder of their own to be changed.
struct Foreign {
  explicit Foreign(const testing::TestFolder& parent) : folder(parent / "foreign") {
    const SafetensorsModel model = framework::open_safetensors_model(stories);
    for (const auto& [name, index] : model.file_of) {
      const auto& info = model.files[index].header().tensors.at(name);
      tensors.push_back({name, info.dtype, info.shape, model.files[index].raw(name)});
    }
    config = Json::parse(slurp(stories + "/config.json"));
    fs::create_directories(folder);
  }
  void write() const {
    framework::write_safetensors(folder + "/model.safetensors", tensors, {});
    std::ofstream(folder + "/config.json") << config.dump();
  }
  SafetensorToWrite& tensor(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  }
  std::string folder;
  std::vector<SafetensorToWrite> tensors;
  Json config;
};

/// The upper half of each value, which is its BF16 form; or half precision of a value cut to 8 mantissa bits.
void narrow(SafetensorToWrite& tensor, const std::string& dtype) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + i, 4);
    std::uint16_t half = std::uint16_t(bits >> 16);
    if (dtype == "F16") {
      const std::int32_t exponent = std::int32_t(bits >> 23 & 0xffu) - 127;
      const std::uint32_t magnitude =
          exponent < -14 ? bits >> 13 & 0x3ffu : (std::uint32_t(exponent + 15) << 10 | (bits >> 13 & 0x3ffu));
      half = std::uint16_t((bits >> 16 & 0x8000u) | magnitude);
    }
    bytes.push_back(std::uint8_t(half & 0xffu));
    bytes.push_back(std::uint8_t(half >> 8));
  }
  tensor.bytes = bytes;
  tensor.dtype = dtype;
}

TEST(ImportExport, GivesBackTheModelByteForByte) {
  const testing::TestFolder folder;
  const std::string imported = capstan({"import", stories, "--output", folder / "deep/model", "--end-token", "1"});
  expect_parts(imported, {"260032 in 47 tensors", "5 layers, width 64", "rope, theta 10000", "trained length 512",
                          "512 tokens; bos 1, end 1", folder / "deep/model"});
  const auto loaded = framework::load_model(folder / "deep/model", kernels::Device::cpu, kernels::DType::f32);
  ASSERT_TRUE(loaded.tokenizer);
  EXPECT_EQ(loaded.tokenizer->end(), std::vector<std::int32_t>{1});
  EXPECT_EQ(loaded.header.bos, 1);

  const std::string exported = capstan({"export", folder / "deep/model", "--output", folder / "hf"});
  expect_parts(exported, {"47 of type F32", "read back and equal", folder / "hf"});
  expect_same_tensors(framework::open_safetensors_model(stories), framework::open_safetensors_model(folder / "hf"));
  EXPECT_EQ(slurp(folder / "hf/config.json"), slurp(stories + "/config.json"));
  EXPECT_EQ(slurp(folder / "hf/tokenizer.model"), slurp(stories + "/tokenizer.model"));
  // Once more over what is there, and back in: same bytes.
  capstan({"export", folder / "deep/model", "--output", folder / "hf"});
  capstan({"import", folder / "hf", "--output", folder / "again"});
  capstan({"export", folder / "again", "--output", folder / "hf2"});
  EXPECT_EQ(slurp(folder / "hf/model.safetensors"), slurp(folder / "hf2/model.safetensors"));
}

TEST(ImportExport, KeepsHalfPrecisionWhileTheValuesAreUnchanged) {
  for (const std::string dtype : {"BF16", "F16"}) {
    const testing::TestFolder folder;
    Foreign foreign(folder);
    for (auto& tensor : foreign.tensors) narrow(tensor, dtype);
    foreign.config["torch_dtype"] = dtype == "F16" ? "float16" : "bfloat16";
    foreign.write();
    capstan({"import", foreign.folder, "--output", folder / "model"});
    capstan({"export", folder / "model", "--output", folder / "hf"});
    expect_same_tensors(framework::open_safetensors_model(foreign.folder),
                        framework::open_safetensors_model(folder / "hf"));
    EXPECT_EQ(slurp(folder / "hf/config.json"), slurp(foreign.folder + "/config.json"));

    // One value that BF16 and F16 cannot hold, as after training: everything is written as F32, and the config says so.
    const auto checkpoint = framework::Checkpoint::open(folder / "model");
    auto loaded = framework::load_model(folder / "model", kernels::Device::ref, kernels::DType::f32);
    loaded.model->parameters().find("model.norm.weight")->value.as<float>()[3] = 0.1f;
    framework::save_checkpoint(*parallel::make_self_communicator(), folder.path(), "trained", checkpoint.header(),
                               checkpoint.extras(), loaded.model->parameters(), {});
    capstan({"export", folder / "trained", "--output", folder / "hf3"});
    const auto file = framework::SafetensorsFile::open(folder / "hf3/model.safetensors");
    for (const auto& [name, info] : file.header().tensors) EXPECT_EQ(info.dtype, "F32") << name;
    EXPECT_EQ(file.as_f32("model.norm.weight")[3], 0.1f);
    EXPECT_EQ(Json::parse(slurp(folder / "hf3/config.json"))["torch_dtype"], "float32");

    // Half of the file is asked for: rounded to the nearest, and an import of it is exact again.
    capstan({"export", folder / "trained", "--output", folder / "rounded", "--type", "bf16"});
    const auto rounded = framework::SafetensorsFile::open(folder / "rounded/model.safetensors");
    for (const auto& [name, info] : rounded.header().tensors) EXPECT_EQ(info.dtype, "BF16") << name;
    EXPECT_EQ(rounded.as_f32("model.norm.weight")[3], 0.10009765625f);  // 0x3dcd, the nearest to 0.1
    EXPECT_EQ(Json::parse(slurp(folder / "rounded/config.json"))["torch_dtype"], "bfloat16");
    capstan({"import", folder / "rounded", "--output", folder / "again"});
    capstan({"export", folder / "again", "--output", folder / "hf4"});
    expect_same_tensors(framework::open_safetensors_model(folder / "rounded"),
                        framework::open_safetensors_model(folder / "hf4"));
  }
}

TEST(ImportExport, KeepsScalingsAndUnknownFields) {
  const testing::TestFolder folder;
  Foreign foreign(folder);
  foreign.config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  foreign.config["initializer_range"] = 0.02;
  foreign.write();
  capstan({"import", foreign.folder, "--output", folder / "model"});
  EXPECT_EQ(framework::Checkpoint::open(folder / "model").header().position.scaling, "linear");
  capstan({"export", folder / "model", "--output", folder / "hf"});
  EXPECT_EQ(slurp(folder / "hf/config.json"), slurp(foreign.folder + "/config.json"));
}

TEST(ImportExport, AnEncodingsOwnParametersComeAlong) {
  const testing::TestFolder folder;
  capstan({"import", stories, "--output", folder / "model"});
  auto position = framework::Checkpoint::open(folder / "model").header().position;
  position.kind = "rope+cope";
  position.cope_positions = 7;
  auto loaded = framework::load_model(folder / "model", kernels::Device::ref, kernels::DType::f32, &position);
  for (auto& p : loaded.model->parameters().all())
    if (p.name.find(".position.") != std::string::npos)
      for (std::int64_t i = 0; i < p.value.elements(); ++i) p.value.as<float>()[i] = float(i) + 0.25f;
  loaded.header.recipe = "[train]\n";
  framework::save_checkpoint(*parallel::make_self_communicator(), folder / "run/checkpoints", "", loaded.header,
                             loaded.extras, loaded.model->parameters(), {});
  capstan({"export", folder / "run", "--output", folder / "hf"});
  capstan({"import", folder / "hf", "--output", folder / "again"});
  const auto again = framework::load_model(folder / "again", kernels::Device::ref, kernels::DType::f32);
  EXPECT_EQ(again.header.position.kind, "rope+cope");
  EXPECT_EQ(again.header.position.cope_positions, 7);
  for (const auto& p : loaded.model->parameters().all()) {
    const auto& q = again.model->parameters().find(p.name)->value;
    EXPECT_EQ(std::memcmp(p.value.data(), q.data(), std::size_t(p.value.bytes())), 0) << p.name;
  }
}

/// Biases and GEGLU by Llama's own fields; norms after the sums and GELU without a gate by ours.
TEST(ImportExport, OtherBlocksComeBackBitEqual) {
  for (const auto& [norm, bias, mlp] : {std::array{"pre", "attention", "geglu"}, {"post", "true", "gelu"}}) {
    const testing::TestFolder folder;
    auto header = framework::Checkpoint::open([&] {
                    capstan({"import", stories, "--output", folder / "model"});
                    return folder / "model";
                  }())
                      .header();
    header.model.norm = norm, header.model.bias = bias, header.model.mlp = mlp;
    header.tokenizer.clear();
    framework::Model model(header.model, header.position);
    model.parameters().allocate(kernels::Device::ref, kernels::DType::f32, false,
                                [](const std::string&) { return false; });
    model.parameters().initialise(1, 0.5);
    for (auto& p : model.parameters().all())
      if (p.name.ends_with(".bias"))
        for (std::int64_t i = 0; i < p.value.elements(); ++i) p.value.as<float>()[i] = float(i) + 0.25f;
    framework::save_checkpoint(*parallel::make_self_communicator(), folder.path(), "made", header, {},
                               model.parameters(), {});
    const std::string exported = capstan({"export", folder / "made", "--output", folder / "hf"});
    const bool ours = std::string(norm) == "post";
    EXPECT_EQ(exported.find("a block with norm = post, mlp = gelu") != std::string::npos, ours) << exported;
    EXPECT_EQ(Json::parse(slurp(folder / "hf/config.json"))["model_type"], ours ? "capstan-llama" : "llama");
    expect_parts(capstan({"import", folder / "hf", "--output", folder / "again"}),
                 {fmt::format("norm {}, mlp {}, bias {}", norm, mlp, bias)});
    const auto again = framework::load_model(folder / "again", kernels::Device::ref, kernels::DType::f32);
    EXPECT_EQ(again.header.model.norm, norm);
    EXPECT_EQ(again.header.model.bias, bias);
    EXPECT_EQ(again.header.model.mlp, mlp);
    ASSERT_EQ(again.model->parameters().all().size(), model.parameters().all().size());
    for (const auto& p : model.parameters().all()) {
      const auto& q = again.model->parameters().find(p.name)->value;
      EXPECT_EQ(std::memcmp(p.value.data(), q.data(), std::size_t(p.value.bytes())), 0) << p.name;
    }
    capstan({"export", folder / "again", "--output", folder / "hf2"});
    EXPECT_EQ(slurp(folder / "hf/model.safetensors"), slurp(folder / "hf2/model.safetensors"));
    EXPECT_EQ(slurp(folder / "hf/config.json"), slurp(folder / "hf2/config.json"));
  }
}

TEST(ImportExport, TiedOutputMayBeRepeatedButNotDiffer) {
  const testing::TestFolder folder;
  Foreign foreign(folder);
  SafetensorToWrite head = foreign.tensor("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  foreign.tensors.push_back(head);
  foreign.write();
  capstan({"import", foreign.folder, "--output", folder / "model"});
  capstan({"export", folder / "model", "--output", folder / "hf"});
  expect_same_tensors(framework::open_safetensors_model(foreign.folder),
                      framework::open_safetensors_model(folder / "hf"));
  foreign.tensors.back().bytes[0] ^= 1;
  foreign.write();
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"import", foreign.folder, "--output", folder / "no"});
                        }),
               {"'lm_head.weight'", "tie_word_embeddings"});
  EXPECT_FALSE(fs::exists(folder / "no"));
}

TEST(ImportExport, OldFrequencyTensorsAreCheckedAndLeftOut) {
  const testing::TestFolder folder;
  Foreign foreign(folder);
  std::vector<float> frequencies;
  for (int f = 0; f < 4; ++f) frequencies.push_back(float(std::pow(10000.0, -f / 4.0)));
  SafetensorToWrite tensor{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, std::vector<std::uint8_t>(16)};
  std::memcpy(tensor.bytes.data(), frequencies.data(), 16);
  foreign.tensors.push_back(tensor);
  foreign.write();
  expect_parts(capstan({"import", foreign.folder, "--output", folder / "model"}),
               {"left out    1 tensors", "inv_freq"});
  foreign.config["rope_theta"] = 500000.0;
  foreign.write();
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"import", foreign.folder, "--output", folder / "no"});
                        }),
               {"inv_freq", "rope_theta 500000"});
}

class Refused : public ::testing::Test {
 protected:
  void expect(const std::vector<std::string>& parts, ExitCode code = ExitCode::bad_data,
              const std::vector<std::string>& more = {}) {
    foreign_.write();
    std::vector<std::string> words{"import", foreign_.folder, "--output", folder_ / "out"};
    words.insert(words.end(), more.begin(), more.end());
    expect_parts(error_of(code, [&] { capstan(words); }), parts);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
  testing::TestFolder folder_;
  Foreign foreign_{folder_};
};

TEST_F(Refused, UnknownTensor) {
  foreign_.tensors.push_back({"model.layers.5.mlp.up_proj.weight", "F32", {1}, std::vector<std::uint8_t>(4)});
  expect({"'model.layers.5.mlp.up_proj.weight'", "unknown"});
}

TEST_F(Refused, MissingTensor) {
  foreign_.tensor("model.layers.3.self_attn.k_proj.weight").name = "other";
  expect({"'model.layers.3.self_attn.k_proj.weight'", "missing", foreign_.folder});
}

TEST_F(Refused, WrongShape) {
  foreign_.tensor("model.layers.2.self_attn.q_proj.weight").shape = {32, 128};
  expect({"'model.layers.2.self_attn.q_proj.weight'", "[32, 128]", "[64, 64]"});
}

TEST_F(Refused, WrongType) {
  auto& tensor = foreign_.tensor("model.norm.weight");
  tensor.dtype = "I32";
  expect({"'model.norm.weight'", "I32", "F32, F16, BF16"});
}

TEST_F(Refused, ValuesThatAreNotFinite) {
  const float broken[2] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()};
  std::memcpy(foreign_.tensor("model.layers.1.mlp.down_proj.weight").bytes.data() + 40, broken, sizeof broken);
  expect({"'model.layers.1.mlp.down_proj.weight'", "2 of 11008 values are not finite"});
}

TEST_F(Refused, ConfigThatCannotBeHonoured) {
  foreign_.config["sliding_window"] = 4096;
  expect({"config.json", "sliding_window"});
}

TEST_F(Refused, HugeSizesBeforeMemoryIsTaken) {
  foreign_.config["intermediate_size"] = 1 << 22;
  foreign_.config["num_hidden_layers"] = 4096;
  expect({"model.layers.0.mlp.gate_proj.weight", "[172, 64]", "[4194304, 64]"});
}

TEST_F(Refused, TokenizerLargerThanTheModel) {
  foreign_.config["vocab_size"] = 400;
  expect({"tokenizer", "512", "400"}, ExitCode::bad_data, {"--tokenizer", stories + "/tokenizer.model"});
}

TEST_F(Refused, EndTokensThatAreNone) {
  expect({"--end-token", "'512'", "0 to 511"}, ExitCode::usage, {"--end-token", "1,512"});
  expect({"--end-token", "'x'"}, ExitCode::usage, {"--end-token", "x"});
}

TEST_F(Refused, MissingFiles) {
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"import", folder_ / "none", "--output", folder_ / "out"});
                        }),
               {folder_ / "none"});
  foreign_.write();
  fs::resize_file(foreign_.folder + "/model.safetensors", 500000);
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"import", foreign_.folder, "--output", folder_ / "out"});
                        }),
               {"model.safetensors", "truncated"});
}

TEST(ImportExport, ReplacesOnlyAnEarlierImport) {
  const testing::TestFolder folder;
  capstan({"import", stories, "--output", folder / "model/"});
  expect_parts(capstan({"import", stories, "--output", folder / "model", "--end-token", "1"}),
               {"an earlier import was replaced"});
  EXPECT_EQ(framework::Checkpoint::open(folder / "model").header().end_tokens, std::vector<std::int32_t>{1});
  EXPECT_EQ(framework::Checkpoint::open(folder / "model").folder(), folder / "model");

  folder.write("mine/notes.txt", "keep me");
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"import", stories, "--output", folder / "mine"});
                        }),
               {folder / "mine", "no earlier import"});
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"export", folder / "model", "--output", folder / "mine"});
                        }),
               {folder / "mine", "notes.txt"});
  EXPECT_EQ(slurp(folder / "mine/notes.txt"), "keep me");

  auto loaded = framework::load_model(folder / "model", kernels::Device::ref, kernels::DType::f32);
  loaded.header.step = 3;
  loaded.header.recipe = "[train]\n";
  framework::save_checkpoint(*parallel::make_self_communicator(), folder.path(), "trained", loaded.header,
                             loaded.extras, loaded.model->parameters(), {});
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"import", stories, "--output", folder / "trained"});
                        }),
               {folder / "trained", "step 3"});
}

TEST(Inspect, ShowsModelsCheckpointsAndRuns) {
  const testing::TestFolder folder;
  capstan({"import", stories, "--output", folder / "run/checkpoints/step-000000"});
  for (const std::string path : {"run", "run/checkpoints/step-000000"})
    expect_parts(capstan({"inspect", folder / path}),
                 {"imported model", "260032 in 47 tensors", "verified", "model.hidden_size = 64",
                  "position.kind = rope", "tokenizer.model", "f32", "[512, 64]", "model.embed_tokens.weight"});
  std::ofstream(folder / "run/checkpoints/step-000000/weights-0000.h5", std::ios::app) << "x";
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"inspect", folder / "run/checkpoints/step-000000"});
                        }),
               {"weights-0000.h5", "damaged"});
}

}  // namespace
}  // namespace capstan::launch
