#include "framework/checkpoint.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "framework/files.h"
#include "tests/framework/checkpoint_training.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;
using parallel::Communicator;
using testing::error_of;
using testing::expect_parts;
using tests::Training;

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
      const std::int64_t begin = std::max(p.offset, shard.begin),
                         end = std::min(p.offset + p.shape.elements(), shard.end);
      if (p.trainable && begin < end)
        checkpoint.read(kind, p.name, begin - p.offset, end - p.offset, all.view().rows(begin, end));
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
      for (const Parameter& p : training.parameters().all())
        EXPECT_TRUE(tests::same_bits(p.value, other.parameters().find(p.name)->value)) << p.name;
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
  const std::string error = error_of(
      ExitCode::io, [&] { save_checkpoint(*alone, folder / "a/b", "", training.header, training.extras, huge, {}); });
  expect_parts(error, {folder / "a/b", std::to_string(needed), " are free"});
  EXPECT_FALSE(fs::exists(folder / "a"));
  std::int64_t bytes = 0;
  const std::string path = training.save_alone(folder.path());
  for (const std::string& name : list_folder(path)) bytes += std::int64_t(fs::file_size(path + "/" + name));
  EXPECT_LE(bytes, checkpoint_bytes(training.parameters(), true));
  EXPECT_GT(checkpoint_bytes(training.parameters(), true), checkpoint_bytes(training.parameters(), false));
}

/// As on a full disk, from the first byte on to the last: the save fails and says so, and the checkpoint before it
/// stays.
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
    } catch (const Error& thrown) { error = thrown.what(); }
    setrlimit(RLIMIT_FSIZE, &before);
    expect_parts(error, {"weights-0000.h5"});
    EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"model"});
    EXPECT_EQ(Checkpoint::open(folder / "model").header().step, 1);
  }
  std::signal(SIGXFSZ, signal_before);
}

/// A process that saves without end is killed at any time: what its folder then offers is whole, and the next save
/// succeeds.
TEST(Checkpoint, AKillAtAnyTimeLeavesTheNewestWhole) {
  if (tests::under_mpi()) GTEST_SKIP() << "forks";
  const testing::TestFolder run;
  const std::string parent = run / "checkpoints";
  const auto begin = std::chrono::steady_clock::now();
  Training(DType::f32, 1).save_alone(parent);
  const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - begin;
  std::int64_t newest = 1;
  for (int trial = 0; trial < 25 || newest < 4; ++trial) {  // from the middle of the first save to several saves later
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
    std::this_thread::sleep_for(one_save * (0.3 + 0.15 * trial));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a save failed";
    ::testing::internal::CaptureStderr();
    const std::string found = newest_checkpoint(run.path());
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // nothing was passed over
    ASSERT_NE(found, "");
    const std::int64_t step = Checkpoint::open(found).header().step;
    EXPECT_GE(step, newest);
    newest = step;
  }
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
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(training.parameters(), cope); }),
               {"position", "not in this model"});
}

TEST(CheckpointModel, OfAnotherShapeIsRefusedByTensor) {
  const testing::TestFolder folder;
  const Checkpoint checkpoint = Checkpoint::open(Training().save_alone(folder.path()));
  CheckpointHeader other = checkpoint.header();
  other.model.vocabulary = 261;
  Model wider(other.model, other.position);
  wider.parameters().allocate(Device::ref, DType::f32, false, [](const std::string&) { return false; });
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(wider.parameters(), checkpoint); }),
               {"model.embed_tokens.weight", "[260, 12]", "[261, 12]"});
  other = checkpoint.header();
  other.model.tied = false;
  Model untied(other.model, other.position);
  untied.parameters().allocate(Device::ref, DType::f32, false, [](const std::string&) { return false; });
  expect_parts(error_of(ExitCode::bad_data, [&] { load_values(untied.parameters(), checkpoint); }),
               {"lm_head.weight", "missing"});
}

}  // namespace
}  // namespace capstan::framework
