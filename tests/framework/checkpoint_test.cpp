#include "framework/checkpoint.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "framework/checkpoint_manifest.h"
#include "framework/files.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;
using parallel::Communicator;
using testing::error_of;
using testing::expect_parts;
using testing::slurp;

const std::string frozen_name = "model.layers.0.mlp.up_proj.weight";

/// A small model in training: one tensor frozen, moments for the rest. The same on every rank.
struct Training {
  explicit Training(DType type = DType::f32, std::int64_t step = 7, const std::string& kind = "rope+cope") {
    header.step = header.optimizer_steps = step;
    header.model.from = "runs/base, \"quoted\" é";
    header.model.hidden_size = 12;
    header.model.mlp_size = 20;
    header.model.layers = 2;
    header.model.heads = 2;
    header.model.vocabulary = 260;  // room for the byte tokenizer
    header.model.max_length = 32;
    header.model.norm_eps = 0.1 + 0.2;  // needs all its digits
    header.model.init_std = 1.0 / 3;
    header.position.kind = kind;
    header.position.theta = 12345.678901234567;
    header.position.cope_positions = 5;
    resolve_sizes(header.model, header.position);
    header.recipe = "[train]\nsteps = 7\n";
    header.tokenizer = "bytes";
    header.end_tokens = {3, 1};
    header.bos = 2;
    model = std::make_unique<Model>(header.model, header.position);
    parameters().allocate(Device::ref, type, false, [](const std::string& name) { return name != frozen_name; });
    std::uint64_t seed = std::uint64_t(100 * step);
    for (Parameter& p : parameters().all()) p.value.copy_from(tests::random_tensor(p.shape, type, Device::ref, ++seed));
    const Shape moments{parameters().trainable_elements()};
    m = tests::random_tensor(moments, type, Device::ref, ++seed);
    v = tests::random_tensor(moments, type, Device::ref, ++seed);
  }

  Parameters& parameters() { return model->parameters(); }
  OptimizerShard shard(int rank, int ranks) const {
    const ShardRange range = shard_range(m.view().elements(), rank, ranks);
    return {range.begin, range.end, m.view().rows(range.begin, range.end), v.view().rows(range.begin, range.end)};
  }
  std::string save(Communicator& world, const std::string& parent, const std::string& name = "") {
    return save_checkpoint(world, parent, name, header, extras, parameters(), shard(world.rank(), world.size()));
  }
  std::string save_alone(const std::string& parent, const std::string& name = "") {
    return save(*parallel::make_self_communicator(), parent, name);
  }

  CheckpointHeader header;
  CheckpointExtras extras{"", "{\"model_type\": \"llama\"}", {{"b", "BF16"}, {"a", "F32"}}};
  std::unique_ptr<Model> model;
  Tensor m, v;
};

/// The same folder on every rank.
class SharedFolder {
 public:
  explicit SharedFolder(Communicator& world) : world_(world) {
    if (world.rank() == 0) own_.emplace();
    path_ = world.broadcast(own_ ? own_->path() : std::string(), 0);
  }
  ~SharedFolder() {
    if (std::uncaught_exceptions() == 0) world_.barrier();  // nobody reads any more
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  Communicator& world_;
  std::optional<testing::TestFolder> own_;
  std::string path_;
};

void expect_same(const Option& a, const Option& b) { EXPECT_EQ(a.text(), b.text()) << a.name; }

void expect_same_header(const CheckpointHeader& a, const CheckpointHeader& b) {
  Recipe first, second;
  first.model = a.model;
  first.position = a.position;
  second.model = b.model;
  second.position = b.position;
  const auto all = options(first), others = options(second);
  for (std::size_t i = 0; i < all.size(); ++i) expect_same(all[i], others[i]);
  EXPECT_EQ(a.model.norm_eps, b.model.norm_eps);
  EXPECT_EQ(a.model.init_std, b.model.init_std);
  EXPECT_EQ(a.position.theta, b.position.theta);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.optimizer_steps, b.optimizer_steps);
  EXPECT_EQ(a.recipe, b.recipe);
  EXPECT_EQ(a.tokenizer, b.tokenizer);
  EXPECT_EQ(a.end_tokens, b.end_tokens);
  EXPECT_EQ(a.bos, b.bos);
}

/// Moments of every shard of `ranks` ranks, put together again.
Tensor gathered(const Checkpoint& checkpoint, Training& training, const std::string& kind, int ranks) {
  Tensor all = zeros_like(training.m);
  for (int rank = 0; rank < ranks; ++rank) {
    const ShardRange shard = shard_range(all.view().elements(), rank, ranks);
    for (const Parameter& p : training.parameters().all()) {
      const std::int64_t begin = std::max(p.offset, shard.begin), end = std::min(p.offset + p.shape.elements(), shard.end);
      if (p.trainable && begin < end) checkpoint.read(kind, p.name, begin - p.offset, end - p.offset, all.view().rows(begin, end));
    }
  }
  return all;
}

TEST(Checkpoint, IsReadByAnyRanksAsItWasSavedByAnyOthers) {
  tests::for_rank_counts({1, 2, 3, 4}, [](Communicator& world) {
    for (const DType type : {DType::f32, DType::f64}) {
      const SharedFolder folder(world);
      Training training(type);
      const std::string path = training.save(world, folder.path() + "/new/checkpoints");
      EXPECT_EQ(path, folder.path() + "/new/checkpoints/step-000007");
      EXPECT_EQ(list_folder(folder.path() + "/new/checkpoints").size(), 1u);
      const Checkpoint checkpoint = Checkpoint::open(path);
      expect_same_header(checkpoint.header(), training.header);
      EXPECT_EQ(checkpoint.extras().hf_config, training.extras.hf_config);
      ASSERT_EQ(checkpoint.extras().source.size(), 2u);
      EXPECT_EQ(checkpoint.extras().source[0].name + checkpoint.extras().source[0].dtype, "bBF16");
      EXPECT_EQ(checkpoint.tensors().size(), training.parameters().all().size());
      EXPECT_TRUE(checkpoint.has_optimizer());

      Training other(type, 8);
      EXPECT_TRUE(load_values(other.parameters(), checkpoint).empty());
      for (const Parameter& p : training.parameters().all()) EXPECT_TRUE(tests::same_bits(p.value, other.parameters().find(p.name)->value)) << p.name;
      for (int ranks = 1; ranks <= 4; ++ranks) {
        EXPECT_TRUE(tests::same_bits(gathered(checkpoint, training, "m", ranks), training.m)) << ranks;
        EXPECT_TRUE(tests::same_bits(gathered(checkpoint, training, "v", ranks), training.v)) << ranks;
      }
    }
  });
}

TEST(Checkpoint, ReplacesAFolderOfItsName) {
  tests::for_rank_counts({1, 2, 3, 4}, [](Communicator& world) {
    const SharedFolder folder(world);
    Training before(DType::f32, 1), after(DType::f32, 2);
    before.save(world, folder.path(), "model");
    const Checkpoint checkpoint = Checkpoint::open(after.save(world, folder.path(), "model"));
    EXPECT_EQ(checkpoint.header().step, 2);
    EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"model"});
  });
}

TEST(Checkpoint, AFailureOfOneRankIsToldToAllAndLeavesNothing) {
  tests::for_rank_counts({1, 2, 3, 4}, [](Communicator& world) {
    for (int failing = 0; failing < world.size(); ++failing) {
      const SharedFolder folder(world);
      Training training;
      OptimizerShard shard = training.shard(world.rank(), world.size());
      if (world.rank() == failing) shard.v = shard.v.rows(0, 1);
      const std::string error = error_of(ExitCode::internal, [&] {
        save_checkpoint(world, folder.path(), "", training.header, training.extras, training.parameters(), shard);
      });
      expect_parts(error, {"moments of", failing > 0 ? fmt::format("rank {}: ", failing) : "moments"});
      world.barrier();
      EXPECT_TRUE(list_folder(folder.path()).empty());
    }
  });
}

TEST(Checkpoint, LeftoversOfAKilledSaveAreClearedAndHarmless) {
  tests::for_rank_counts({1, 2}, [](Communicator& world) {
    const SharedFolder folder(world);
    const std::string run = folder.path(), parent = run + "/checkpoints";
    Training training;
    if (world.rank() == 0) {
      fs::create_directories(parent + "/.tmp-step-000007-0123456789abcdef");
      write_text_atomically(parent + "/.tmp-step-000007-0123456789abcdef/weights-0000.h5", "half");
      fs::create_directories(parent + "/.tmp-step-000009-0123456789abcdef");
      EXPECT_EQ(newest_checkpoint(run), "");
    }
    world.barrier();
    training.save(world, parent);
    if (world.rank() == 0) {
      EXPECT_EQ(list_folder(parent), (std::vector<std::string>{".tmp-step-000009-0123456789abcdef", "step-000007"}));
      EXPECT_EQ(newest_checkpoint(run), parent + "/step-000007");
      prune_checkpoints(parent, 1);
      EXPECT_EQ(list_folder(parent), std::vector<std::string>{"step-000007"});
    }
  });
}

TEST(Checkpoint, NeedsRoomOnTheDisk) {
  Training training;
  Parameters huge;
  huge.declare("model.norm.weight", {std::int64_t(1) << 50}, Init::one);
  const testing::TestFolder folder;
  const auto alone = parallel::make_self_communicator();
  const std::int64_t needed = checkpoint_bytes(huge, false) + std::int64_t(training.extras.hf_config.size());
  const std::string error = error_of(ExitCode::io, [&] { save_checkpoint(*alone, folder / "a/b", "", training.header, training.extras, huge, {}); });
  expect_parts(error, {folder / "a/b", std::to_string(needed), " are free"});
  EXPECT_FALSE(fs::exists(folder / "a"));
  std::int64_t bytes = 0;
  const std::string path = training.save_alone(folder.path());
  for (const std::string& name : list_folder(path)) bytes += std::int64_t(fs::file_size(path + "/" + name));
  EXPECT_LE(bytes, checkpoint_bytes(training.parameters(), true));
  EXPECT_GT(checkpoint_bytes(training.parameters(), true), checkpoint_bytes(training.parameters(), false));
}

/// As on a full disk, from the first byte on to the last: the save fails and says so, and the checkpoint before it stays.
TEST(Checkpoint, AWriteThatFailsLeavesTheOldOne) {
  if (tests::under_mpi()) GTEST_SKIP() << "limits the files of the whole process";
  const testing::TestFolder folder;
  Training(DType::f32, 1).save_alone(folder.path(), "model");
  Training training(DType::f32, 2);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {0, 100, 3000, 20000}) {
    const rlimit limited{bytes, before.rlim_max};
    std::string error;
    setrlimit(RLIMIT_FSIZE, &limited);
    try {
      training.save_alone(folder.path(), "model");
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    expect_parts(error, {"weights-0000.h5"});
    EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"model"});
    EXPECT_EQ(Checkpoint::open(folder / "model").header().step, 1);
  }
  std::signal(SIGXFSZ, signal_before);
}

/// A process that saves without end is killed at any time: what its folder then offers is whole, and the next save succeeds.
TEST(Checkpoint, AKillAtAnyTimeLeavesTheNewestWhole) {
  if (tests::under_mpi()) GTEST_SKIP() << "forks";
  const testing::TestFolder run;
  const std::string parent = run / "checkpoints";
  std::int64_t newest = 0;
  for (std::int64_t trial = 0; trial < 25; ++trial) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::int64_t step = newest + 1;; ++step) {
        try {
          Training(DType::f32, step).save_alone(parent);
          prune_checkpoints(parent, 2, step);
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          _exit(1);
        }
      }
    }
    usleep(useconds_t(20000 + 7000 * trial));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a save failed";
    ::testing::internal::CaptureStderr();
    const std::string found = newest_checkpoint(run.path());
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // nothing was passed over
    if (found.empty()) continue;
    const std::int64_t step = Checkpoint::open(found).header().step;
    EXPECT_GE(step, newest);
    newest = step;
  }
  EXPECT_GT(newest, 0);
}

// ---- Damage

void overwrite(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    if (tests::under_mpi()) return;
    training_.extras.tokenizer_model = "a tokenizer";
    parallel::run_on_threads(2, [&](Communicator& world) {
      const std::string path = Training(training_.header.step).save_with(world, folder_.path(), training_.extras);
      if (world.rank() == 0) path_ = path;
    });
  }
  void SetUp() override {
    if (tests::under_mpi()) GTEST_SKIP() << "no ranks of its own";
  }
  struct Training : framework::Training {
    explicit Training(std::int64_t step) : framework::Training(DType::f32, step) {}
    std::string save_with(Communicator& world, const std::string& parent, const CheckpointExtras& all) {
      extras = all;
      return save(world, parent);
    }
  };

  void expect_refused(const std::string& file) {
    const std::string error = error_of(ExitCode::bad_data, [&] { Checkpoint::open(path_); });
    expect_parts(error, {path_ + "/" + file});
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  testing::TestFolder folder_;
  Training training_{7};
  std::string path_;
};

const std::vector<std::string> all_files{"hf_config.json", "manifest.json", "tokenizer.model", "weights-0000.h5", "weights-0001.h5"};

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
  expect_refused_after("format capstan-checkpoint-2, this program reads capstan-checkpoint-1", [](Json& j) { j["format"] = "capstan-checkpoint-2"; });
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
  expect_parts(error_of(ExitCode::bad_data, [&] { Checkpoint::open(path_); }), {file(manifest_name), "damaged or edited"});
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
  expect_parts(::testing::internal::GetCapturedStderr(), {checkpoint("step-000010") + "/weights-0000.h5", "passed over"});
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
  expect_parts(error_of(ExitCode::bad_data, [&] { resolve_model_folder(run_.path()); }), {run_.path(), "no checkpoint"});
  ::testing::internal::GetCapturedStderr();
  expect_parts(error_of(ExitCode::io, [&] { resolve_model_folder(run_ / "nowhere"); }), {run_ / "nowhere", "no such folder"});
  const std::string foreign = run_.write("hf/config.json", "{}");
  expect_parts(error_of(ExitCode::bad_data, [&] { resolve_model_folder(run_ / "hf"); }), {run_ / "hf", "capstan import"});
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

// ---- Models

TEST(CheckpointModel, ConvertsExactlyToDouble) {
  const testing::TestFolder folder;
  Training training(DType::f32);
  const LoadedModel loaded = load_model(training.save_alone(folder.path()), Device::ref, DType::f64);
  expect_same_header(loaded.header, training.header);
  for (const Parameter& p : training.parameters().all()) {
    const Parameter& q = *loaded.model->parameters().find(p.name);
    EXPECT_FALSE(q.trainable);
    EXPECT_EQ(tests::values_of(p.value), tests::values_of(q.value)) << p.name;
  }
}

TEST(CheckpointModel, ANewEncodingBeginsAtItsInitialValues) {
  const testing::TestFolder folder;
  Training training(DType::f32, 7, "rope");
  const std::string path = training.save_alone(folder.path());
  PositionConfig position = training.header.position;
  position.kind = "rope+cope";
  const LoadedModel loaded = load_model(path, Device::ref, DType::f32, &position);
  std::size_t added = 0;
  for (const Parameter& p : loaded.model->parameters().all()) {
    if (training.parameters().find(p.name)) continue;
    ++added;
    for (const double value : tests::values_of(p.value)) EXPECT_EQ(value, 0) << p.name;
  }
  EXPECT_GT(added, 0u);
  Training with_cope(DType::f32, 7, "rope+cope");
  EXPECT_EQ(load_values(with_cope.parameters(), Checkpoint::open(path)).size(), added);
  // The other way round something that was trained would be lost.
  const Checkpoint cope = Checkpoint::open(with_cope.save_alone(folder.path(), "cope"));
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(training.parameters(), cope); }), {"position", "not in this model"});
}

TEST(CheckpointModel, OfAnotherShapeIsRefusedByTensor) {
  const testing::TestFolder folder;
  const Checkpoint checkpoint = Checkpoint::open(Training().save_alone(folder.path()));
  CheckpointHeader other = checkpoint.header();
  other.model.vocabulary = 261;
  Model wider(other.model, other.position);
  wider.parameters().allocate(Device::ref, DType::f32, false, [](const std::string&) { return false; });
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(wider.parameters(), checkpoint); }), {"model.embed_tokens.weight", "[260, 12]", "[261, 12]"});
  other = checkpoint.header();
  other.model.tied = false;
  Model untied(other.model, other.position);
  untied.parameters().allocate(Device::ref, DType::f32, false, [](const std::string&) { return false; });
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(untied.parameters(), checkpoint); }), {"lm_head.weight", "missing"});
}

}  // namespace
}  // namespace capstan::framework
