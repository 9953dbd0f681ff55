// The training loop on emulated GPUs: alone, on rank threads that share one, and over NCCL with one each.

#include <gtest/gtest.h>

#include "kernels/device_cuda.h"
#include "tests/framework/test_folder.h"
#include "tests/simt/device_calls.h"
#include "tests/simt/gpu_ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_training.h"

namespace capstan::tests {
namespace {

using framework::Recipe;
using framework::Trainer;

class TrainerOnGpu : public OnGpu {
 protected:
  static Recipe recipe_of(const std::string& kind, const std::string& precision, const std::string& device = "cuda") {
    Recipe recipe = tiny_recipe(kind);
    recipe.model.head_size = 8;
    recipe.train.device = device;
    recipe.train.precision = precision;
    recipe.train.tile = 16;
    recipe.optimizer.kind = "adamw";
    recipe.optimizer.lr = 1e-2;
    recipe.optimizer.clip = 1;
    return recipe;
  }

  static void expect_losses_of_any_ranks(const std::string& kind);

  static double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  }
};

constexpr int steps = 2;

/// Losses are as far from f64's as those of the plain kernels in f32 at most twice, on any ranks.
void TrainerOnGpu::expect_losses_of_any_ranks(const std::string& kind) {
  const Trace exact = train_alone(recipe_of(kind, "f64", "ref"), steps),
              naive = train_alone(recipe_of(kind, "f32", "ref"), steps);
  const double floor = f32_floor * exact.losses[0],
               bound = 2 * std::max(floor, largest_difference(naive.losses, exact.losses));
  const Trace alone = train_alone(recipe_of(kind, "f32"), steps);
  EXPECT_LE(largest_difference(alone.losses, exact.losses), bound) << kind;
  EXPECT_EQ(alone.samples, exact.samples);
  parallel::run_on_threads(3, [&](parallel::Communicator& world) {
    Trainer trainer(recipe_of(kind, "f32"), world);
    EXPECT_LE(largest_difference(train(trainer, steps).losses, exact.losses), bound) << kind;
  });
}

TEST_F(TrainerOnGpu, LossesAreThoseOfAnyRanksAndKernels) { expect_losses_of_any_ranks("rope+cope"); }
TEST_F(TrainerOnGpu, MatrixLossesAreThoseOfAnyRanksAndKernels) {
  for (const char* kind : {"tape", "forget", "t5", "rope+hierarchical_cope"}) expect_losses_of_any_ranks(kind);
}

TEST_F(TrainerOnGpu, Bf16ResumesBitExact) {
  const Recipe recipe = recipe_of("rope+cope", "bf16");
  parallel::run_on_threads(2, [&](parallel::Communicator& world) { expect_resumes_bit_exact(recipe, world, 1, 2); });
}

/// A rank's world as mpirun would make it: NCCL over a communicator of the host, and a GPU for each rank.
TEST_F(TrainerOnGpu, RanksWithAGpuEachTrainAlike) {
  const Recipe recipe = recipe_of("rope", "f32");
  Trace on_one;
  parallel::run_on_threads(4, [&](parallel::Communicator& world) {
    Trainer trainer(recipe, world);
    const Trace trace = train(trainer, 2);
    if (world.rank() == 0) on_one = trace;
  });
  const EightGpus gpus;
  parallel::run_on_threads(4, [&](parallel::Communicator& host) {
    AsProcesses processes(host);
    Trainer trainer(recipe, processes);
    const Trace trace = train(trainer, 2);
    EXPECT_EQ(trace.losses, on_one.losses);
    EXPECT_EQ(trace.weights, on_one.weights);
  });
}

TEST_F(TrainerOnGpu, OutOfMemoryNamesTheEstimateAndTheBiggestConsumers) {
  const auto self = parallel::make_self_communicator();
  const Recipe recipe = recipe_of("rope", "f32");
  Trainer trainer(recipe, *self);
  testing::TestFolder folder;
  simt::set_device_memory(1 << 16);
  std::string text;
  try {
    trainer.run(folder.path());
  } catch (const Error& error) { text = error.what(); }
  simt::set_device_memory(std::size_t(16) << 30);
  for (const char* part : {"out of device memory", "bytes asked for", "parameters", "gradients",
                           "capstan plan estimates", "use more ranks"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace capstan::tests
