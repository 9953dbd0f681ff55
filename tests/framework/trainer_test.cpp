// The training loop: loss contract over rank grids, optimizer sharding, resume.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>

#include "framework/files.h"
#include "framework/random.h"
#include "framework/trainer.h"
#include "kernels/memory.h"
#include "kernels/threads.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_training.h"

namespace capstan::tests {
namespace {

using framework::Optimizer;
using framework::Recipe;
using framework::Trainer;

/// The f32 rule: how far losses move when one rank takes its micro-batches in reverse order.
double reversed_spread(const Recipe& recipe, const Trace& forward) {
  const Trace reverse = train_alone(recipe, int(forward.losses.size()), true);
  double spread = 0;
  for (std::size_t i = 0; i < forward.losses.size(); ++i)
    spread = std::max(spread, std::abs(forward.losses[i] - reverse.losses[i]));
  return spread;
}

class TrainerOverRanks : public ::testing::TestWithParam<TinyCase> {};

/// Three steps of plain SGD: Adam would hide a wrong scale. Every split data × ring gives what one rank gives, in f64 to 1e-10.
TEST_P(TrainerOverRanks, ThreeSgdStepsEqualOneRankForEverySplit) {
  for (const std::string documents : {"separate", "joined"}) {
    Recipe recipe = tiny_recipe(GetParam().kind, GetParam().form);
    recipe.data.documents = documents;
    recipe.train.micro_batch = 2;
    const Trace expected = train_alone(recipe, 3);
    for_rank_counts({1, 2, 3, 4, 8}, [&](parallel::Communicator& world) {
      for (int ring = 1; ring <= world.size(); ++ring) {
        if (world.size() % ring != 0) continue;
        Recipe split = recipe;
        split.grid.ring = ring;
        Trainer trainer(split, world);
        const Trace got = train(trainer, 3);
        EXPECT_EQ(got.samples, expected.samples);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-10 * expected.losses[i])
              << documents << " ring " << ring << " step " << i;
          EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-10 * expected.norms[i])
              << documents << " ring " << ring << " step " << i;
        }
        EXPECT_LE(distance(got.weights, expected.weights), 1e-10 * norm(expected.weights))
            << documents << " ring " << ring;
      }
    });
  }
}

/// f32: 20 AdamW steps on any ranks stay within twice the spread of two one-rank runs whose micro-batches come in reverse order,
/// or of two roundings of the loss.
TEST_P(TrainerOverRanks, CoveringF32LossesStayWithinTwiceTheSpreadOfOneRank) {
  Recipe recipe = tiny_recipe(GetParam().kind, GetParam().form);
  recipe.train.device = "cpu";
  recipe.train.precision = "f32";
  recipe.train.tile = 16;
  recipe.optimizer.kind = "adamw";
  recipe.optimizer.lr = 0.01;
  const Trace forward = train_alone(recipe, 20);
  const double spread = reversed_spread(recipe, forward);
  EXPECT_GT(spread, 0);
  const double bound = 2 * std::max(spread, f32_floor * forward.losses.front());  // two orders may be lucky
  for_rank_counts({2, 3, 4, 8}, [&](parallel::Communicator& world) {
    for (int ring = 1; ring <= world.size(); ++ring) {
      if (world.size() % ring != 0) continue;
      Recipe split = recipe;
      split.grid.ring = ring;
      Trainer trainer(split, world);
      const Trace got = train(trainer, 20);
      for (std::size_t i = 0; i < 20; ++i)
        EXPECT_LE(std::abs(got.losses[i] - forward.losses[i]), bound) << "ring " << ring << " step " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Encodings, TrainerOverRanks,
                         ::testing::Values(TinyCase{"none"}, TinyCase{"rope"}, TinyCase{"cope"}, TinyCase{"rope+cope"},
                                           TinyCase{"tape"}, TinyCase{"cope", post_bias_gelu}),
                         [](const auto& each) { return each.param.text(); });

/// Accumulation, micro-batch size and recompute never change N or, beyond rounding, the result.
TEST(Trainer, MicroBatchAndRecomputeDoNotChangeTheStep) {
  for (const BlockForm& form : {BlockForm(), post_bias_gelu}) {
    const Recipe recipe = tiny_recipe("rope+cope", form);
    const Trace expected = train_alone(recipe, 3);
    for (const std::int64_t micro : {1, 2, 3, 4})
      for (const std::string recompute : {"none", "block", "block_full"}) {
        Recipe other = recipe;
        other.train.micro_batch = micro;
        other.train.recompute = recompute;
        const Trace got = train_alone(other, 3);
        EXPECT_LE(distance(got.weights, expected.weights), 1e-12 * norm(expected.weights)) << micro << recompute;
        if (micro == 1) { EXPECT_EQ(got.weights, expected.weights) << recompute; }
      }
  }
}

TEST(Trainer, FrozenParametersKeepTheirValues) {
  Recipe recipe = tiny_recipe("rope");
  recipe.train.trainable = "*.mlp.*,model.norm.weight";
  recipe.train.frozen = "*.layers.1.*";
  const auto self = parallel::make_self_communicator();
  Trainer trainer(recipe, *self);
  std::map<std::string, std::vector<double>> before;
  for (const auto& p : trainer.model().parameters().all()) before[p.name] = values_of(p.value);
  train(trainer, 2);
  for (const auto& p : trainer.model().parameters().all()) {
    const bool trains = p.name == "model.norm.weight" || p.name.find("layers.0.mlp") != std::string::npos;
    EXPECT_EQ(values_of(p.value) != before[p.name], trains) << p.name;
    EXPECT_EQ(bool(p.grad), trains) << p.name;
  }
}

/// Stop and go on against the unbroken run, on the same ranks: weights, moments, losses and samples bit for bit.
TEST(TrainerResume, SameRanksAreBitExact) {
  for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    for (const BlockForm& form : {BlockForm(), post_bias_gelu}) {
      Recipe recipe = tiny_recipe("tape", form);
      recipe.train.device = "cpu";
      recipe.train.precision = "f32";
      recipe.train.tile = 16;
      recipe.train.dropout = 0.1;
      recipe.optimizer.kind = "adamw";
      expect_resumes_bit_exact(recipe, world, 5, 3);
    }
  });
}

Recipe fast_recipe(const std::string& kind, const std::string& precision, const BlockForm& form = {}) {
  Recipe recipe = tiny_recipe(kind, form);
  recipe.train.device = "cpu";
  recipe.train.precision = precision;
  recipe.train.tile = 16;
  recipe.optimizer.kind = "adamw";
  recipe.optimizer.lr = 0.01;
  return recipe;
}

/// bf16: updates go to f32 masters, which a checkpoint keeps; the values are what these round to, and positions stay f32.
TEST(TrainerBf16, ValuesAreRoundedMasters) {
  for_rank_counts({1, 2, 3}, [&](parallel::Communicator& world) {
    Trainer trainer(fast_recipe("rope+cope", "bf16"), world);
    train(trainer, 3);
    const kernels::View masters = trainer.optimizer().values();
    EXPECT_EQ(masters.type(), kernels::DType::f32);
    std::int64_t finer = 0;
    for (const framework::Parameter& p : trainer.model().parameters().all()) {
      EXPECT_EQ(p.value.type(), framework::is_of_position(p.name) ? kernels::DType::f32 : kernels::DType::bf16)
          << p.name;
      EXPECT_EQ(p.grad.type(), kernels::DType::f32) << p.name;
      const std::vector<double> values = values_of(p.value);
      for (std::int64_t i = 0; i < p.value.elements(); ++i) {
        const std::int64_t at = p.offset + i - trainer.optimizer().shard().begin;
        if (at < 0 || at >= masters.elements()) continue;
        const float master = masters.as<float>()[at];
        const float stored =
            framework::is_of_position(p.name) ? master : kernels::to_float(kernels::to_bfloat16(master));
        ASSERT_EQ(values[std::size_t(i)], double(stored)) << p.name << " " << i;
        finer += double(master) != double(stored);
      }
    }
    EXPECT_GT(finer, 0);
  });
}

TEST(TrainerBf16, ResumesBitExact) {
  for_rank_counts({1, 2, 4}, [&](parallel::Communicator& world) {
    expect_resumes_bit_exact(fast_recipe("tape", "bf16"), world, 4, 2);
  });
}

/// Losses of all ranks are near f32's: within what bf16's eight bits do to one (2^-8), while they fall.
TEST(TrainerBf16, FollowsTheF32Run) {
  const Trace f32 = train_alone(fast_recipe("rope", "f32"), 20);
  const Trace bf16 = train_alone(fast_recipe("rope", "bf16"), 20);
  EXPECT_LT(f32.losses.back(), 0.9 * f32.losses.front());
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(bf16.losses[i], f32.losses[i], f32.losses[i] / 256) << i;
}

/// The number of threads changes no bit of a step.
TEST(TrainerThreads, ChangeNoBit) {
  for (const std::string precision : {"f32", "bf16"})
    for (const auto& [kind, form] : {TinyCase{"rope+cope"}, {"tape"}, {"fire"}, {"cope", post_bias_gelu}}) {
      Trace first;
      for (std::int64_t threads : {1, 2, 3}) {
        Recipe recipe = fast_recipe(kind, precision, form);
        recipe.grid.threads = threads;
        recipe.train.micro_batch = 4;
        const Trace trace = train_alone(recipe, 3);
        if (threads == 1) first = trace;
        EXPECT_EQ(trace.losses, first.losses) << kind << precision << threads;
        EXPECT_EQ(trace.weights, first.weights) << kind << precision << threads;
      }
    }
  kernels::set_threads(1);
}

/// The second step takes no memory from the system: all of it comes from what the first one gave back.
TEST(TrainerMemory, IsTakenInTheFirstStepOnly) {
  for (const std::string precision : {"f32", "bf16"})
    for (const std::string recompute : {"none", "block", "block_full"})
      parallel::run_on_threads(2, [&](parallel::Communicator& world) {
        Recipe recipe = fast_recipe("rope+cope", precision, recompute == "block" ? post_bias_gelu : BlockForm());
        recipe.train.recompute = recompute;
        Trainer trainer(recipe, world);
        trainer.train_step();
        world.barrier();
        const std::int64_t taken = kernels::memory_report().taken;
        world.barrier();
        for (int step = 0; step < 3; ++step) trainer.train_step();
        world.barrier();
        EXPECT_EQ(kernels::memory_report().taken, taken) << precision << " " << recompute;
      });
}

/// The moments of all ranks in the order of the trainable buffer.
std::vector<double> gathered(parallel::Communicator& world, Trainer& trainer, const kernels::View& shard_values,
                             std::int64_t begin) {
  kernels::Tensor all({trainer.model().parameters().trainable_elements()}, shard_values.type(), kernels::Device::ref);
  if (shard_values.elements() > 0) all.view().rows(begin, begin + shard_values.elements()).copy_from(shard_values);
  world.all_reduce(all);  // others add exact zeros
  return values_of(all);
}

/// A checkpoint of two ranks goes on with 1, 3 and 4: values and moments byte-equal, the same samples, losses as f32 allows.
TEST(TrainerResume, OtherRanksGetTheSameState) {
  Recipe recipe = tiny_recipe("rope+cope");
  recipe.train.device = "cpu";
  recipe.train.precision = "f32";
  recipe.train.tile = 16;
  recipe.optimizer.kind = "adamw";
  const std::string run =
      (std::filesystem::path(::testing::TempDir()) / fmt::format("capstan-other-ranks-{}", getpid())).string();
  if (under_mpi()) GTEST_SKIP() << "changes the number of ranks";
  const double spread = reversed_spread(recipe, train_alone(recipe, 8));
  Trace all;
  std::vector<double> weights, m, v;
  parallel::run_on_threads(2, [&](parallel::Communicator& world) {
    Trainer trainer(recipe, world);
    train(trainer, 5);
    trainer.save(run + "/checkpoints");
    const Optimizer& optimizer = trainer.optimizer();
    const std::vector<double> my_m = gathered(world, trainer, optimizer.m(), optimizer.shard().begin);
    const std::vector<double> my_v = gathered(world, trainer, optimizer.v(), optimizer.shard().begin);
    const std::vector<double> values =
        values_of(trainer.model().parameters().trainable_values().rows(0, std::int64_t(my_m.size())));
    const Trace rest = train(trainer, 3);
    if (world.rank() != 0) return;
    all = rest;
    weights = values;
    m = my_m;
    v = my_v;
  });
  for_rank_counts({1, 3, 4}, [&](parallel::Communicator& world) {
    Trainer trainer(recipe, world);
    trainer.load(framework::Checkpoint::open(framework::newest_checkpoint(run)));
    const Optimizer& optimizer = trainer.optimizer();
    EXPECT_EQ(gathered(world, trainer, optimizer.m(), optimizer.shard().begin), m);
    EXPECT_EQ(gathered(world, trainer, optimizer.v(), optimizer.shard().begin), v);
    EXPECT_EQ(values_of(trainer.model().parameters().trainable_values().rows(0, std::int64_t(m.size()))), weights);
    const Trace rest = train(trainer, 3);
    EXPECT_EQ(rest.samples, all.samples);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(std::abs(rest.losses[i] - all.losses[i]), 2 * spread);
  });
  std::filesystem::remove_all(run);
}

TEST(Trainer, WeightsThatAreNotFiniteAreNotSaved) {
  const testing::TestFolder folder;
  const auto self = parallel::make_self_communicator();
  Trainer trainer(tiny_recipe("rope"), *self);
  trainer.model().parameters().trainable_values().as<double>()[0] = std::numeric_limits<double>::infinity();
  try {
    trainer.save(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'model.embed_tokens.weight' not finite"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Trainer, TooFewTokensNameBothNumbers) {
  Recipe recipe = tiny_recipe("rope");
  recipe.train.sequences = 1000;
  const auto self = parallel::make_self_communicator();
  try {
    Trainer trainer(recipe, *self);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("train.sequences = 1000"), std::string::npos) << error.what();
  }
}

TEST(Schedule, FractionsAtTheEdges) {
  framework::ScheduleConfig s;
  s.kind = "trapezoid";
  s.warmup = 4;
  s.cooldown = 3;
  s.final = 0;
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 0, 20), 0.25);
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 3, 20), 1);
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 16, 20), 1);
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 17, 20), 0.75);
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 19, 20), 0.25);
  s.kind = "cosine";
  s.final = 0.1;
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 4, 20), 1);
  EXPECT_NEAR(framework::schedule_fraction(s, 19, 20), 0.1, 1e-15);
  s.kind = "constant";
  EXPECT_DOUBLE_EQ(framework::schedule_fraction(s, 19, 20), 1);
}

}  // namespace
}  // namespace capstan::tests
