// What must be the same bits whatever runs the tile kernel of `cpu`: threads, and the type that inputs are stored in.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "kernels/isa.h"
#include "kernels/threads.h"
#include "tests/kernels/attention_runs.h"
#include "tests/kernels/attention_shapes.h"
#include "tests/support/tensors.h"
#include "tests/support/without_traps.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

/// Restores one thread.
struct Threads {
  explicit Threads(int threads) { kernels::set_threads(threads); }
  ~Threads() { kernels::set_threads(1); }
};

AttentionProblem grouped(AttentionShape shape, std::int64_t groups, std::uint64_t seed) {
  shape.heads = 6;
  shape.groups = groups;
  return random_attention(shape, seed);
}

TEST(AttentionThreads, NeverChangeABit) {
  for (const NamedShape& named : all_term_shapes())
    for (DType type : {DType::f32, DType::bf16})
      for (std::int64_t groups : {1, 3}) {
        const AttentionProblem problem = grouped(named.shape, groups, 31);
        for (std::int64_t tile : {16, 64}) {
          const AttentionSettings settings = settings_for(problem, tile);
          const TileRun one = run_tiles(problem, type, Device::cpu, settings, {{64}});
          for (int threads : {2, 3}) {
            SCOPED_TRACE(
                fmt::format("{} {} groups {} tile {} threads {}", named.name, name_of(type), groups, tile, threads));
            const Threads scope(threads);
            expect_same_run(run_tiles(problem, type, Device::cpu, settings, {{64}}), one);
          }
        }
        if (HasFailure()) return;
      }
}

TEST(AttentionThreads, NorDoTheyOfGateSums) {
  const AttentionProblem problem = grouped({.tokens = 300, .npos = 400}, 3, 32);
  const TileInputs inputs(problem, DType::f32, Device::cpu);
  const AttentionSettings settings = settings_for(problem, 16);
  const Tensor one({300, 6}, DType::i64, Device::cpu), three = zeros_like(one);
  attention_gate_sum(one, 0, inputs.queries(0, 300), inputs.keys(0, 300), settings);
  const Threads scope(3);
  attention_gate_sum(three, 0, inputs.queries(0, 300), inputs.keys(0, 300), settings);
  EXPECT_TRUE(same_bits(one, three));
}

/// Scratch is kept between calls: what an earlier one of other extents left there must not matter.
TEST(AttentionThreads, EarlierCallsLeaveNothingBehind) {
  const testing::WithoutTraps nan_is_the_subject;
  const std::vector<NamedShape> shapes = all_term_shapes();
  const auto run = [](const AttentionShape& shape, std::int64_t tile) {
    const AttentionProblem problem = random_attention(shape, 33);
    return run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, tile));
  };
  for (const NamedShape& named : shapes) {
    SCOPED_TRACE(named.name);
    TileRun fresh;
    std::thread([&] { fresh = run(named.shape, 64); }).join();  // with scratch of its own
    AttentionShape other = shapes.back().shape;
    other.depth = 40;
    other.gate_mean = std::numeric_limits<double>::quiet_NaN();
    run(other, 64);
    expect_same_run(run(named.shape, 64), fresh);
  }
}

/// Without a tile unit, storage in bf16 is a cast on the way in: the bits are those of f32 on the rounded numbers, for which the rule of DESIGN §4
/// is tested.
TEST(AttentionBf16, IsF32OnTheRoundedInputs) {
  const kernels::ForcedIsa no_tile_unit(std::max(kernels::best_isa(), kernels::Isa::avx2));
  for (const NamedShape& named : all_term_shapes())
    for (std::int64_t depth : {8, 40}) {
      SCOPED_TRACE(fmt::format("{} depth {}", named.name, depth));
      AttentionShape shape = named.shape;
      shape.depth = depth;
      const AttentionProblem problem = rounded_to_bf16(grouped(shape, 2, 34));
      const AttentionSettings settings = settings_for(problem, 64);
      expect_same_run(run_tiles(problem, DType::bf16, Device::cpu, settings),
                      run_tiles(problem, DType::f32, Device::cpu, settings));
      if (HasFailure()) return;
    }
}

TEST(AttentionBf16, DeltaTakesBothInBf16) {
  const Tensor d_o = random_tensor({50, 2, 40}, DType::bf16, Device::cpu, 35),
               o = random_tensor({50, 2, 40}, DType::bf16, Device::cpu, 36), delta({50, 2}, DType::f32, Device::cpu),
               expected = zeros_like(delta);
  kernels::attention_delta(delta, d_o, o);
  kernels::attention_delta(expected, converted(d_o, DType::f32, Device::cpu), converted(o, DType::f32, Device::cpu));
  EXPECT_TRUE(same_bits(delta, expected));
  EXPECT_THROW(kernels::attention_delta(delta, d_o, converted(o, DType::f32, Device::cpu)), Error);
}

}  // namespace
}  // namespace capstan::tests
