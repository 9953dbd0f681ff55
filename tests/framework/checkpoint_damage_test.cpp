// Damage, hostile manifests, and which checkpoint of a run is taken.

#include <algorithm>
#include <filesystem>

#include "framework/checkpoint_manifest.h"
#include "framework/files.h"
#include "framework/json.h"
#include "tests/framework/checkpoint_training.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;
using parallel::Communicator;
using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using tests::overwrite;
using tests::Training;

// ---- Damage

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    if (tests::under_mpi()) return;
    parallel::run_on_threads(2, [&](Communicator& world) {
      Training training;
      training.extras.tokenizer_model = "a tokenizer";
      const std::string path = training.save(world, folder_.path());
      if (world.rank() == 0) path_ = path;
    });
  }
  void SetUp() override {
    if (tests::under_mpi()) GTEST_SKIP() << "no ranks of its own";
  }
  void expect_refused(const std::string& file) {
    const std::string error = error_of(ExitCode::bad_data, [&] { Checkpoint::open(path_); });
    expect_parts(error, {path_ + "/" + file});
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  testing::TestFolder folder_;
  std::string path_;
};

const std::vector<std::string> all_files{"hf_config.json", "manifest.json", "tokenizer.model", "weights-0000.h5",
                                         "weights-0001.h5"};

TEST_F(DamagedCheckpoint, AFlippedBitAnywhere) {
  ASSERT_EQ(list_folder(path_), all_files);
  for (const std::string& name : all_files) {
    const std::string good = slurp(file(name));
    const std::size_t stride = std::max<std::size_t>(1, good.size() / 40);
    for (std::size_t at = 0; at < good.size(); at += stride) {
      std::string bad = good;
      bad[at] = char(bad[at] ^ (1 << (at % 8)));
      overwrite(file(name), bad);
      expect_refused(name);
    }
    overwrite(file(name), good);
  }
  EXPECT_NO_THROW(Checkpoint::open(path_));
}

TEST_F(DamagedCheckpoint, TruncatedExtendedOrMissing) {
  for (const std::string& name : all_files) {
    const std::string good = slurp(file(name));
    for (const std::size_t size : {std::size_t(0), std::size_t(1), good.size() / 2, good.size() - 1}) {
      overwrite(file(name), good.substr(0, size));
      expect_refused(name);
    }
    overwrite(file(name), good + "x");
    expect_refused(name);
    fs::remove(file(name));
    if (name == manifest_name) expect_parts(error_of(ExitCode::io, [&] { Checkpoint::open(path_); }), {file(name)});
    else expect_refused(name);
    fs::create_directory(file(name));
    EXPECT_TRUE(testing::survives([&] { Checkpoint::open(path_); }));
    fs::remove(file(name));
    overwrite(file(name), good);
  }
}

TEST_F(DamagedCheckpoint, TwoFilesSwapped) {
  fs::rename(file("weights-0000.h5"), file("x"));
  fs::rename(file("weights-0001.h5"), file("weights-0000.h5"));
  fs::rename(file("x"), file("weights-0001.h5"));
  expect_refused("weights-0000.h5");
}

/// The manifest with one change and a checksum that fits it, as a hostile one would have.
class HostileManifest : public DamagedCheckpoint {
 protected:
  using Json = nlohmann::ordered_json;

  void expect_refused_after(const std::string& what, const std::function<void(Json&)>& change) {
    const std::string good = slurp(file(manifest_name));
    Json json = Json::parse(good);
    change(json);
    const std::string zeros(16, '0');
    json["checksum"] = zeros;
    std::string text = json.dump(1);
    text.replace(text.rfind(zeros), zeros.size(), hex(xxh3_of(text.data(), text.size())));
    overwrite(file(manifest_name), text);
    expect_parts(error_of(ExitCode::bad_data, [&] { Checkpoint::open(path_); }), {file(""), what});
    overwrite(file(manifest_name), good);
  }
};

TEST_F(HostileManifest, IsRefusedByWhatIsWrong) {
  expect_refused_after("format capstan-checkpoint-2, this program reads capstan-checkpoint-1",
                       [](Json& j) { j["format"] = "capstan-checkpoint-2"; });
  expect_refused_after("not a checkpoint", [](Json& j) { j["format"] = "other"; });
  expect_refused_after("format is missing", [](Json& j) { j.erase("format"); });
  expect_refused_after("files", [](Json& j) { j.erase("files"); });
  expect_refused_after("not a plain name", [](Json& j) { j["files"][0]["name"] = "../weights-0000.h5"; });
  expect_refused_after("not a plain name", [](Json& j) { j["files"][0]["name"] = "/etc/passwd"; });
  expect_refused_after("not a plain name", [](Json& j) { j["files"][0]["name"] = ".."; });
  expect_refused_after("listed twice", [](Json& j) { j["files"][1]["name"] = j["files"][0]["name"]; });
  expect_refused_after("listed twice", [](Json& j) { j["files"][0]["name"] = "manifest.json"; });
  expect_refused_after("bytes", [](Json& j) { j["files"][0]["bytes"] = -1; });
  expect_refused_after("less than its slices take", [](Json& j) { j["files"][0]["bytes"] = 16; });
  expect_refused_after("2^53", [](Json& j) { j["tensors"][0]["shape"] = {1ll << 40, 1ll << 40}; });
  expect_refused_after("not a whole number", [](Json& j) { j["tensors"][0]["shape"] = {0.5}; });
  expect_refused_after("not a whole number", [](Json& j) { j["tensors"][0]["shape"] = {-3}; });
  expect_refused_after("do not cover", [](Json& j) { j["tensors"][0]["shape"] = {3, 3}; });
  expect_refused_after("listed twice", [](Json& j) { j["tensors"].push_back(j["tensors"][0]); });
  expect_refused_after("unknown tensor", [](Json& j) { j["tensors"].erase(0); });
  expect_refused_after("do not cover", [](Json& j) { j["files"][0]["slices"].erase(0); });
  expect_refused_after("not [kind, tensor, begin, end]", [](Json& j) { j["files"][0]["slices"][0] = {1, 2}; });
  expect_refused_after("allowed are value, m, v", [](Json& j) { j["files"][0]["slices"][0][0] = "w"; });
  expect_refused_after("model", [](Json& j) { j["model"]["heads"] = 0; });
  expect_refused_after("model", [](Json& j) { j["model"]["kv_heads"] = 0; });
  expect_refused_after("unknown field 'wings'", [](Json& j) { j["model"]["wings"] = 2; });
  expect_refused_after("wrong type", [](Json& j) { j["position"]["kind"] = 3; });
  expect_refused_after("position", [](Json& j) { j["position"]["kind"] = "unheard of"; });
  expect_refused_after("tokenizer", [](Json& j) { j["tokenizer"] = "../x"; });
  expect_refused_after("step", [](Json& j) { j["step"] = "7"; });
  expect_refused_after("end_tokens", [](Json& j) { j["end_tokens"] = {260}; });
}

TEST_F(HostileManifest, EditedWithoutANewChecksum) {
  std::string text = slurp(file(manifest_name));
  text.replace(text.find("\"step\": 7"), 9, "\"step\": 8");
  overwrite(file(manifest_name), text);
  expect_parts(error_of(ExitCode::bad_data, [&] { Checkpoint::open(path_); }),
               {file(manifest_name), "damaged or edited"});
}

// ---- Which checkpoint

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (tests::under_mpi()) GTEST_SKIP() << "one rank's work";
    for (const std::int64_t step : {2, 4, 10}) Training(DType::f32, step).save_alone(parent());
  }
  std::string parent() const { return run_ / "checkpoints"; }
  std::string checkpoint(const std::string& name) const { return parent() + "/" + name; }
  void damage(const std::string& name) const {
    const std::string path = checkpoint(name) + "/weights-0000.h5";
    std::string bytes = slurp(path);
    bytes[bytes.size() / 2] = char(bytes[bytes.size() / 2] ^ 1);
    overwrite(path, bytes);
  }
  testing::TestFolder run_;
};

TEST_F(RunFolder, NewestIsTheHighestStepThatVerifies) {
  EXPECT_EQ(newest_checkpoint(run_.path()), checkpoint("step-000010"));
  EXPECT_EQ(resolve_model_folder(run_.path()), checkpoint("step-000010"));
  EXPECT_EQ(resolve_model_folder(checkpoint("step-000002")), checkpoint("step-000002"));
  damage("step-000010");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest_checkpoint(run_.path()), checkpoint("step-000004"));
  expect_parts(::testing::internal::GetCapturedStderr(),
               {checkpoint("step-000010") + "/weights-0000.h5", "passed over"});
  fs::remove_all(checkpoint("step-000010"));
  fs::rename(checkpoint("step-000002"), checkpoint("step-000020"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest_checkpoint(run_.path()), checkpoint("step-000004"));
  expect_parts(::testing::internal::GetCapturedStderr(), {"step-000020", "step 2"});
}

TEST_F(RunFolder, WithoutAnyGoodOne) {
  for (const char* name : {"step-000002", "step-000004", "step-000010"}) damage(name);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest_checkpoint(run_.path()), "");
  expect_parts(error_of(ExitCode::bad_data, [&] { resolve_model_folder(run_.path()); }),
               {run_.path(), "no checkpoint"});
  ::testing::internal::GetCapturedStderr();
  expect_parts(error_of(ExitCode::io, [&] { resolve_model_folder(run_ / "nowhere"); }),
               {run_ / "nowhere", "no such folder"});
  const std::string foreign = run_.write("hf/config.json", "{}");
  expect_parts(error_of(ExitCode::bad_data, [&] { resolve_model_folder(run_ / "hf"); }),
               {run_ / "hf", "capstan import"});
  EXPECT_EQ(newest_checkpoint(run_ / "nowhere"), "");
}

TEST_F(RunFolder, PruneKeepsTheNewest) {
  fs::create_directory(checkpoint("step-x"));
  prune_checkpoints(parent(), 2);
  EXPECT_EQ(list_folder(parent()), (std::vector<std::string>{"step-000004", "step-000010", "step-x"}));
  prune_checkpoints(parent(), 1);
  EXPECT_EQ(list_folder(parent()), (std::vector<std::string>{"step-000010", "step-x"}));
}

TEST_F(RunFolder, PruneNeverPrefersADamagedFutureToWhatWasJustSaved) {
  damage("step-000010");
  Training(DType::f32, 5).save_alone(parent());
  prune_checkpoints(parent(), 1, 5);
  EXPECT_EQ(list_folder(parent()), std::vector<std::string>{"step-000005"});
}

}  // namespace
}  // namespace capstan::framework
