// The GPU's attention tile in f32: at most twice the error of a naive f32 implementation, both against the f64
// oracle, for plain attention and every score term.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/kernels/attention_shapes.h"
#include "tests/simt/attention_cuda_runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::DType;
using kernels::GateRule;
using kernels::Gates;
using kernels::Tensor;

/// What a run is held against.
struct Comparison {
  DenseOutputs naive, exact;
  DenseGradients naive_back, exact_back;

  explicit Comparison(const AttentionProblem& problem) {
    const AttentionProblem single = problem.cast(DType::f32);
    naive = dense_attention(single.inputs());
    exact = dense_attention(problem.inputs());
    naive_back = dense_attention_backward(single.inputs(), single.d_o);
    exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
  }

  /// body(name, result, naive, exact) of o, lse and all gradients that do not vanish.
  template <class Body> void for_each(const TileRun& run, const Body& body) const {
    std::vector<const Tensor*> of_naive;
    for_each_result(run, naive, naive_back,
                    [&](const char*, const Tensor&, const Tensor& result) { of_naive.push_back(&result); });
    std::size_t n = 0;
    for_each_result(run, exact, exact_back, [&](const char* name, const Tensor& got, const Tensor& expected) {
      const Tensor& single = *of_naive[n++];
      if (!vanishes(expected)) body(name, got, single, expected);
    });
  }
};

/// With tables that hardly rise: see gentle_table.
AttentionProblem gentle_problem(const AttentionShape& shape, std::uint64_t seed) {
  AttentionProblem problem = random_attention(shape, seed);
  if (problem.table) problem.table = gentle_table(problem.table);
  if (problem.terms.table_1) problem.terms.table_1 = gentle_table(problem.terms.table_1);
  return problem;
}

/// Carries are back at exactly 0 where backward ends.
void expect_walked_back(const TileRun& run) {
  for (const Tensor& left : run.carry_left) EXPECT_TRUE(!left || same_bits(left, zeros_like(left)));
}

void compare(AttentionShape shape, const std::vector<std::int64_t>& tiles) {
  shape.tokens *= simt::size_factor();
  const AttentionProblem problem = gentle_problem(shape, std::uint64_t(7 * shape.tokens + shape.depth));
  const Comparison comparison(problem);
  for (std::int64_t tile : tiles) {
    SCOPED_TRACE(fmt::format("T {} H {} G {} D {} z {} npos {} tile {}", shape.tokens, shape.heads, shape.groups,
                             shape.depth, shape.z, shape.npos, tile));
    const TileRun run = run_on_gpu(problem, DType::f32, settings_for(problem, tile));
    comparison.for_each(run, [](const char* name, const Tensor& got, const Tensor& naive, const Tensor& expected) {
      EXPECT_LE(relative_error(got, expected), f32_bound(naive, expected)) << name;
    });
    expect_walked_back(run);
  }
}

TEST(SimtAttention, PlainF32) {
  const simt::Session session;
  for (std::int64_t depth : {8, 24, 64, 80, 128}) compare({.tokens = 100, .depth = depth}, {64});
  compare({.tokens = 150, .heads = 4, .groups = 2, .depth = 16}, {64});
  compare({.tokens = 100, .heads = 2, .depth = 40, .documents = {20, 5, 50}}, {64});
  compare({.tokens = 77, .heads = 2, .groups = 2, .depth = 24, .z = true, .documents = {20, 5}}, {16, 64});
  compare({.tokens = 70, .depth = 128, .z = true}, {64});
}

TEST(SimtAttention, SmallTilesF32) {
  const simt::Session session;
  for (std::int64_t tile : {1, 4}) compare({.tokens = 11, .depth = 8, .npos = 4, .documents = {4}}, {tile});
  compare({.tokens = 75, .depth = 16, .npos = 30}, {16});
}

TEST(SimtAttention, GatesF32) {
  const simt::Session session;
  for (double mean : {-40, -12, 12, 40}) compare({.tokens = 130, .depth = 16, .npos = 64, .gate_mean = mean}, {64});
  compare({.tokens = 130, .depth = 16, .npos = 1}, {64});  // P = 0: saturated from the first tile on
  compare({.tokens = 200, .heads = 2, .depth = 80, .npos = 20, .documents = {77, 20}}, {64});
  compare({.tokens = 130, .heads = 4, .groups = 2, .depth = 64, .z = true, .npos = 200}, {64});
}

/// Sums of gradients that all pairs share nearly cancel, so that one problem's rounding is chance: four problems as if they
/// were one.
void compare_four(AttentionShape shape) {
  shape.tokens *= simt::size_factor();
  struct Squares {
    double of_kernel = 0, of_naive = 0, size = 0;
  };
  std::map<std::string, Squares> squares;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const AttentionProblem problem = gentle_problem(shape, seed);
    const Comparison comparison(problem);
    const TileRun run = run_on_gpu(problem, DType::f32, settings_for(problem, 64));
    comparison.for_each(run, [&](const char* name, const Tensor& got, const Tensor& naive, const Tensor& expected) {
      const double norm = relative_error(expected, zeros_like(expected));
      Squares& s = squares[name];
      s.of_kernel += std::pow(norm * relative_error(got, expected), 2);
      s.of_naive += std::pow(norm * relative_error(naive, expected), 2);
      s.size += norm * norm;
    });
  }
  for (const auto& [name, s] : squares)
    EXPECT_LE(std::sqrt(s.of_kernel / s.size), 2 * std::max(std::sqrt(s.of_naive / s.size), f32_floor)) << name;
}

TEST(SimtAttention, EveryTermF32) {
  const simt::Session session;
  for (const NamedShape& named : all_term_shapes()) {
    SCOPED_TRACE(named.name);
    AttentionShape shape = named.shape;
    shape.heads = 1;
    shape.tokens = 100;
    compare(shape, {64});
  }
}

TEST(SimtAttention, SharedWeightsF32) {
  const simt::Session session;
  compare_four({.tokens = 90, .heads = 2, .documents = {50, 9}, .fire = 32});
  compare_four({.tokens = 90,
                .heads = 2,
                .depth = 24,
                .z = true,
                .offset = true,
                .relative = 20,
                .distances = 40,
                .fire = 8,
                .slope = true,
                .far_positions = true,
                .dropout = 0.2});
}

/// The last 64 rows against 6,400 keys with gates near σ(-9): no row saturates, each position is a sum of thousands of small gates.
TEST(SimtAttention, CarryOverALongRow) {
  const simt::Session session;
  constexpr std::int64_t tokens = 6400, rows = 64, depth = 16;
  const AttentionProblem problem = random_attention({.tokens = tokens, .depth = depth, .npos = 1, .gate_mean = -9}, 2);
  const TileInputs inputs(problem, DType::f32, kernels::Device::cpu);
  kernels::QueryChunk queries = inputs.queries(tokens - rows, tokens);
  const Tensor table({rows, 1, 65}, DType::f32, kernels::Device::cpu);
  queries.terms.table[0] = table;
  const Tensor sum({rows, 1}, DType::i64, kernels::Device::cpu);
  OnDevice device;
  kernels::attention_gate_sum(device(sum.view()), 0, device(queries), device(inputs.keys(0, tokens)),
                              settings_for(problem, 64));
  device.download();
  double worst = 0, largest = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    double position = 0;
    for (std::int64_t j = 0; j <= tokens - rows + i; ++j) {
      double u = 0;
      for (std::int64_t d = 0; d < depth; ++d)
        u += problem.q.as<double>()[(tokens - rows + i) * depth + d] * problem.k.as<double>()[j * depth + d];
      position += 1 / (1 + std::exp(-u / std::sqrt(double(depth))));
    }
    worst = std::max(worst, std::abs(double(sum.as<std::int64_t>()[i]) * 0x1p-32 - position));
    largest = std::max(largest, position);
  }
  // A gate's relative error is at most (|u| + 4) 2^-23, and q·k's own rounding adds about |u| 2^-24.
  EXPECT_LE(worst, (13 + 5) * 0x1p-23 * largest);
  EXPECT_GT(largest, 1);
}

}  // namespace
}  // namespace capstan::tests
