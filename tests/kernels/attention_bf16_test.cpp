// The bf16 tile products over the emulated tile unit: the same packing and blocking that runs on the real one. On a machine
// without the unit this is all the proof there is: its speed is measured only where it exists.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/amx.h"
#include "kernels/attention_bf16_cpu.h"
#include "kernels/attention_walk_cpu.h"
#include "tests/kernels/attention_runs.h"
#include "tests/kernels/attention_shapes.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/naive_bf16_attention.h"
#include "tests/support/tensors.h"
#include "tests/support/without_traps.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::View;
using namespace kernels::cpu;

/// f(call, with_products)
template <class F>
void emulated(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings, const F& f) {
  const bool few = std::min(settings.tile, queries.q.dim(0)) <= 16;
  const Call call(queries, keys, settings, few ? 16 : 64, tile_depth);
  f(call, [few](const auto& body) {
    if (few) body(Bf16Products<EmulatedTiles, 16, 4>{});
    else body(Bf16Products<EmulatedTiles, 64, 4>{});
  });
}

const TileKernels on_tiles{
    [](const kernels::AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
       const AttentionSettings& settings, kernels::AttentionStats* stats) {
      emulated(queries, keys, settings, [&](const Call& call, const auto& with_products) {
        forward_pieces(call, with_products, state, *stats);
      });
    },
    [](const kernels::AttentionGradients& out, const kernels::AttentionBackwardState& state, const QueryChunk& queries,
       const KeyChunk& keys, const View& d_o, const kernels::AttentionSaved& saved, const AttentionSettings& settings) {
      const BackwardArrays arrays{out, state, d_o, saved};
      emulated(queries, keys, settings,
               [&](const Call& call, const auto& with_products) { backward_pieces(call, with_products, arrays); });
    }};

TileRun run_on_tiles(const AttentionProblem& problem, std::int64_t tile, const TileCuts& cuts = {}) {
  return run_tiles(problem, DType::bf16, Device::cpu, settings_for(problem, tile), cuts, on_tiles);
}

/// The term shapes that the tile unit takes.
std::vector<NamedShape> shapes_without_z() {
  std::vector<NamedShape> shapes = all_term_shapes();
  std::erase_if(shapes, [](const NamedShape& named) { return named.shape.z; });
  return shapes;
}

/// DESIGN §4: at most twice the naive error, both against f64 on the same bf16 inputs.
void compare_with_naive(const AttentionShape& shape) {
  AttentionProblem problem = rounded_to_bf16(random_attention(shape, std::uint64_t(shape.tokens + shape.depth)));
  if (problem.table) problem.table = gentle_table(problem.table);
  const DenseOutputs exact = dense_attention(problem.inputs());
  const DenseGradients exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
  const NaiveBf16 naive(problem);
  for (std::int64_t tile : {16, 64}) {
    SCOPED_TRACE(fmt::format("T {} H {} G {} D {} npos {} tile {}", shape.tokens, shape.heads, shape.groups,
                             shape.depth, shape.npos, tile));
    const TileRun run = run_on_tiles(problem, tile);
    const auto look = [](const char* name, const Tensor& got, const Tensor& single, const Tensor& expected) {
      EXPECT_LE(relative_error(got, expected), f32_bound(single, expected)) << name;
    };
    look("o", run.o, naive.outputs.o, exact.o);
    look("lse", run.lse, naive.outputs.lse, exact.lse);
    look("dq", run.dq, naive.gradients.dq, exact_back.dq);
    look("dk", run.dk, naive.gradients.dk, exact_back.dk);
    look("dv", run.dv, naive.gradients.dv, exact_back.dv);
    if (run.dtable) look("dtable", run.dtable, naive.gradients.dtable, exact_back.dtable);
  }
}

TEST(AttentionTileUnit, AtMostTwiceTheNaiveError) {
  for (std::int64_t depth : {8, 40, 64, 128})
    for (std::int64_t npos : {0, 64}) {
      compare_with_naive({.tokens = 150, .heads = 2, .depth = depth, .npos = npos});
      compare_with_naive({.tokens = 77, .heads = 4, .groups = 2, .depth = depth, .npos = npos, .documents = {20, 5}});
    }
}

/// Scores are exact products summed in f32, so that whatever depends on them alone is what f32 makes of the same inputs.
TEST(AttentionTileUnit, AllTermsAgreeWithF32) {
  for (const NamedShape& named : shapes_without_z()) {
    SCOPED_TRACE(named.name);
    AttentionShape shape = named.shape;
    shape.groups = 1;
    const AttentionProblem problem = rounded_to_bf16(random_attention(shape, 41)), single = problem.cast(DType::f32);
    const TileRun run = run_on_tiles(problem, 64);
    EXPECT_LE(relative_error(run.lse, dense_attention(problem.inputs()).lse),
              f32_bound(dense_attention(single.inputs()).lse, dense_attention(problem.inputs()).lse));
    const TileRun f32 = run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, 64));
    EXPECT_EQ(run.stats.tiles, f32.stats.tiles);
    EXPECT_EQ(run.stats.gates, f32.stats.gates);
    for (const Tensor& left : run.carry_left) EXPECT_TRUE(!left || same_bits(left, zeros_like(left)));
  }
}

TEST(AttentionTileUnit, RowsDoNotDependOnOtherRowsNorOnPieces) {
  for (const NamedShape& named : shapes_without_z()) {
    SCOPED_TRACE(named.name);
    const AttentionProblem problem = random_attention(named.shape, 42);
    const TileRun all = run_on_tiles(problem, 64), pieces = run_on_tiles(problem, 64, {{64, 128}});
    EXPECT_TRUE(same_bits(all.o, pieces.o));
    EXPECT_TRUE(same_bits(all.lse, pieces.lse));
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{64, 80}, {100, 101}, {129, 130}}) {
      const TileRun some = run_on_tiles(problem, 64, {{}, begin, end});
      EXPECT_TRUE(same_bits(all.o.view().rows(begin, end), some.o));
      EXPECT_TRUE(same_bits(all.lse.view().rows(begin, end), some.lse));
      EXPECT_TRUE(same_bits(all.dq.view().rows(begin, end), some.dq));
    }
    if (HasFailure()) return;
  }
}

TEST(AttentionTileUnit, EarlierCallsLeaveNothingBehind) {
  const testing::WithoutTraps nan_is_the_subject;
  const AttentionProblem problem = random_attention({.tokens = 130, .heads = 2, .depth = 40, .npos = 9}, 43);
  const TileRun fresh = run_on_tiles(problem, 64);
  AttentionProblem bad = random_attention({.tokens = 130, .depth = 128}, 44);
  for (Tensor* x : {&bad.q, &bad.k, &bad.v})
    std::fill_n(x->as<double>(), x->view().elements(), std::numeric_limits<double>::quiet_NaN());
  run_on_tiles(bad, 64);
  expect_same_run(run_on_tiles(problem, 64), fresh);
}

/// The unit itself, where there is one.
TEST(AttentionTileUnit, HardwareEqualsTheEmulation) {
  if (!kernels::has_amx()) GTEST_SKIP() << "this machine has no tile unit (AMX)";
  for (const NamedShape& named : shapes_without_z()) {
    const AttentionProblem problem = random_attention(named.shape, 45);
    const TileRun hardware = run_tiles(problem, DType::bf16, Device::cpu, settings_for(problem, 64)),
                  emulation = run_on_tiles(problem, 64);
    // The unit may round a sum of two products once, and exponentials are made with or without fused operations: sums over at
    // most 130 keys, 2^-23 each; a weight that this moves over an edge falls on the neighbouring bf16, 2^-8 away.
    EXPECT_LE(relative_error(hardware.o, emulation.o), 0x1p-8) << named.name;
    EXPECT_LE(relative_error(hardware.lse, emulation.lse), 130 * 0x1p-23) << named.name;
  }
}

}  // namespace
}  // namespace capstan::tests
