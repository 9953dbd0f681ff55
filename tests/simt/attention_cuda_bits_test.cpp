// What must be the same bits on the GPU: in every order of threads, for any cut of the keys and of the rows, with and without flat tiles;
// and what the GPU refuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/attention_shapes.h"
#include "tests/simt/attention_cuda_runs.h"
#include "tests/support/tensors.h"
#include "tests/support/without_traps.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::gated_sums;
using kernels::Gates;
using kernels::Tensor;

constexpr DType both_types[] = {DType::f32, DType::bf16};

/// One of all_term_shapes(), with one head.
AttentionShape shape_of(const std::string& name) {
  const std::vector<NamedShape> shapes = all_term_shapes();
  AttentionShape shape =
      std::find_if(shapes.begin(), shapes.end(), [&](const NamedShape& x) { return x.name == name; })->shape;
  shape.heads = 1;
  return shape;
}

std::vector<AttentionShape> some_shapes() {
  return {{.tokens = 130, .depth = 24, .documents = {50}},
          {.tokens = 130, .depth = 8, .npos = 20},
          shape_of("H-B 16"),
          shape_of("two sums of the same gates"),
          shape_of("everything")};
}

void expect_same(const Tensor& a, const Tensor& b, const char* name) {
  EXPECT_EQ(bool(a), bool(b)) << name;
  EXPECT_TRUE(!a || same_bits(a, b)) << name;
}

void expect_same_state(const TileRun& a, const TileRun& b) {
  expect_same(a.o, b.o, "o");
  expect_same(a.lse, b.lse, "lse");
  for (int w = 0; w < gated_sums; ++w) {
    expect_same(a.carry[w], b.carry[w], "carry");
    expect_same(a.horizon[w], b.horizon[w], "horizon");
    expect_same(a.carry_left[w], b.carry_left[w], "carry left");
  }
}

TEST(SimtAttentionBits, KeysInPieces) {
  const simt::Session session;
  for (const AttentionShape& shape : some_shapes())
    for (const DType type : both_types) {
      const AttentionProblem problem = random_attention(shape, 42);
      const AttentionSettings settings = settings_for(problem, 64);
      const TileRun all = run_on_gpu(problem, type, settings),
                    pieces = run_on_gpu(problem, type, settings, {{64, 128}});
      expect_same_state(all, pieces);
      EXPECT_EQ(all.stats.tiles, pieces.stats.tiles);
      EXPECT_EQ(all.stats.gates, pieces.stats.gates);
      EXPECT_EQ(all.stats.saturated_tiles, pieces.stats.saturated_tiles);
      // What is added up over rows or over keys is not: columns of one tile, yet in one launch.
      expect_same(all.dv, pieces.dv, "dv");
    }
}

TEST(SimtAttentionBits, RowsByThemselves) {
  const simt::Session session;
  for (const AttentionShape& shape : some_shapes()) {
    const AttentionProblem problem = random_attention(shape, 43);
    const AttentionSettings settings = settings_for(problem, 64);
    const TileRun all = run_on_gpu(problem, DType::bf16, settings);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{64, 80}, {100, 101}, {129, 130}}) {
      const TileRun some = run_on_gpu(problem, DType::bf16, settings, {{}, begin, end});
      EXPECT_TRUE(same_bits(all.o.view().rows(begin, end), some.o)) << begin;
      EXPECT_TRUE(same_bits(all.lse.view().rows(begin, end), some.lse)) << begin;
      EXPECT_TRUE(same_bits(all.dq.view().rows(begin, end), some.dq)) << begin;
    }
  }
}

/// Saturated tiles, windows out of reach and tiles of one block: the general path gives the same.
TEST(SimtAttentionBits, FlatTiles) {
  const simt::Session session;
  std::vector<AttentionShape> shapes = some_shapes();
  for (const char* name : {"window 2 of blocks of 4", "ends of blocks of 16", "H-B 64"})
    shapes.push_back(shape_of(name));
  for (AttentionShape& shape : shapes)
    for (const std::int64_t tile : {64, 16}) {
      shape.tokens = tile == 64 ? 100 : 40;
      const AttentionProblem problem = random_attention(shape, 44);
      AttentionSettings settings = settings_for(problem, tile);
      TileRun flat = run_on_gpu(problem, DType::f32, settings);
      settings.flat_tiles = false;
      const TileRun general = run_on_gpu(problem, DType::f32, settings);
      EXPECT_EQ(flat.stats.saturated_tiles, general.stats.saturated_tiles);
      flat.stats = general.stats;  // which gates were evaluated
      expect_same_run(flat, general);
    }
}

TEST(SimtAttentionBits, EveryOrder) {
  for (const DType type : both_types)
    for (const char* name : {"everything"}) {
      AttentionShape shape = shape_of(name);
      shape.tokens = 20;
      const AttentionProblem problem = random_attention(shape, 45);
      const AttentionSettings settings = settings_for(problem, 16);
      const TileRun first = [&] {
        const simt::Session session({simt::Order::Kind::forward, 0});
        return run_on_gpu(problem, type, settings);
      }();
      for (std::uint64_t repeat = 0; repeat < 20; ++repeat) {
        const auto kind = repeat == 0 ? simt::Order::Kind::reverse : simt::Order::Kind::random;
        const simt::Session session({kind, repeat});
        expect_same_run(run_on_gpu(problem, type, settings), first);
        if (HasFailure()) return;
      }
    }
}

/// The sum of a chunk's gates is what the chunk adds to carries that are not saturated.
TEST(SimtAttentionBits, GateSums) {
  const simt::Session session;
  for (const char* name : {"floor", "window 3 of blocks of 16, floor", "H-B 16", "separate gates"})
    for (const DType type : both_types) {
      AttentionShape shape = shape_of(name);
      shape.npos = 200;  // nothing saturates
      if (shape.npos_1 > 0) shape.npos_1 = 200;
      const AttentionProblem problem = random_attention(shape, 46);
      const TileInputs inputs(problem, type, Device::cpu);
      const AttentionSettings settings = settings_for(problem, 64);
      const TileRun run = run_on_gpu(problem, type, settings);
      for (int w = 0; w < gated_sums; ++w) {
        if (settings.gates[w].gates == Gates::none) continue;
        std::vector<std::int64_t> total(static_cast<std::size_t>(shape.tokens), 0);
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, shape.tokens}}) {
          const Tensor sum({shape.tokens, 1}, DType::i64, Device::cpu);
          OnDevice device;
          kernels::attention_gate_sum(device(sum.view()), w, device(inputs.queries(0, shape.tokens)),
                                      device(inputs.keys(begin, end)), settings);
          device.download();
          for (std::size_t row = 0; row < total.size(); ++row) total[row] += sum.as<std::int64_t>()[row];
        }
        EXPECT_TRUE(std::equal(total.begin(), total.end(), run.carry[w].as<std::int64_t>())) << name;
      }
    }
}

TEST(SimtAttentionBits, FrozenTermsAndSharedMemory) {
  const simt::Session session;
  const AttentionProblem problem = random_attention(shape_of("everything"), 47);
  const AttentionSettings settings = settings_for(problem, 64);
  const TileRun all = run_on_gpu(problem, DType::f32, settings);
  TileCuts cuts;
  cuts.frozen = true;
  const TileRun frozen = run_on_gpu(problem, DType::f32, settings, cuts);
  expect_same(all.dq, frozen.dq, "dq");
  expect_same(all.dk, frozen.dk, "dk");
  expect_same(all.dv, frozen.dv, "dv");
}

/// Counting changes nothing, and nobody waits where nobody counts: work queued on a stream runs when something waits for it.
TEST(SimtAttentionBits, WithoutStatistics) {
  const simt::Session session;
  const AttentionProblem problem = random_attention(shape_of("everything"), 49);
  const TileInputs inputs(problem, DType::f32, Device::cpu);
  const AttentionSettings settings = inputs.settings(settings_for(problem, 64));
  const auto run = [&](bool counted) {
    TileRun result = inputs.empty_run(0, 130, 64);
    const Tensor l = zeros_like(result.lse);
    const kernels::AttentionState state{result.o, result.lse, l, views_of(result.carry), views_of(result.horizon)};
    attention_begin(state);
    OnDevice device;
    const kernels::AttentionState there{device(state.o), device(state.m), device(state.l), device(state.carry),
                                        device(state.horizon)};
    const kernels::QueryChunk queries = device(inputs.queries(0, 130));
    const kernels::KeyChunk keys = device(inputs.keys(0, 130));
    kernels::attention_forward(there, queries, keys, device(settings), counted ? &result.stats : nullptr);
    device.download();
    return result;
  };
  const TileRun counted = run(true), uncounted = run(false);
  EXPECT_GT(counted.stats.gates, 0);
  expect_same_state(counted, uncounted);
}

/// A diverged run ends with NaN in its output, not beyond its arrays.
TEST(SimtAttentionBits, NotANumber) {
  const testing::WithoutTraps nan_is_the_subject;
  const simt::Session session;
  for (const DType type : both_types) {
    AttentionProblem problem = random_attention(shape_of("everything"), 50);
    for (Tensor* x : {&problem.q, &problem.k, &problem.table, &problem.terms.offset_table})
      x->as<double>()[x->view().elements() / 2] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(relative_error(run_on_gpu(problem, type, settings_for(problem, 64)).o, problem.d_o)));
  }
}

TEST(SimtAttentionBits, Refusals) {
  const simt::Session session;
  for (const std::int64_t depth : {12, 136}) {
    const AttentionProblem problem = random_attention({.tokens = 4, .depth = depth}, 48);
    EXPECT_THROW(run_on_gpu(problem, DType::f32, settings_for(problem, 64)), std::exception) << depth;
  }
}

}  // namespace
}  // namespace capstan::tests
