// The fast kernel's numbers: at most twice the error of the naive f32 implementation (DESIGN §4), and CoPE's carry over
// a long row.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/isa.h"
#include "tests/kernels/attention_runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::ForcedIsa;
using kernels::GateRule;
using kernels::Gates;
using kernels::Isa;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::View;

/// Those of this machine.
std::vector<Isa> instruction_sets() {
  std::vector<Isa> sets;
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::portable})
    if (isa >= kernels::best_isa()) sets.push_back(isa);
  return sets;
}

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

  /// body(name, result, naive, exact) of o and lse and, if they are wanted, of all gradients that do not vanish.
  template <class Body> void for_each(const TileRun& run, bool gradients, const Body& body) const {
    std::vector<const Tensor*> of_naive;
    for_each_result(run, naive, naive_back,
                    [&](const char*, const Tensor&, const Tensor& result) { of_naive.push_back(&result); });
    std::size_t n = 0;
    for_each_result(run, exact, exact_back, [&](const char* name, const Tensor& got, const Tensor& expected) {
      const Tensor& single = *of_naive[n++];
      if (n <= 2 || (gradients && !vanishes(expected))) body(name, got, single, expected);  // o and lse come first
    });
  }
};

void compare_with_naive(const AttentionShape& shape) {
  AttentionProblem problem = random_attention(shape, std::uint64_t(7 * shape.tokens + shape.depth));
  const bool gated = problem.table || problem.terms.table_1;
  for (bool gentle : {false, true}) {
    if (gentle && !gated) continue;
    if (gentle && problem.table) problem.table = gentle_table(problem.table);
    if (gentle && problem.terms.table_1) problem.terms.table_1 = gentle_table(problem.terms.table_1);
    const Comparison comparison(problem);
    for (std::int64_t tile : {16, 64}) {  // both lane widths of the kernel
      SCOPED_TRACE(fmt::format("T {} H {} G {} D {} z {} npos {} documents {} gentle {} tile {}", shape.tokens,
                               shape.heads, shape.groups, shape.depth, shape.z, shape.npos, shape.documents.size(),
                               gentle, tile));
      for (Isa isa : instruction_sets()) {
        const ForcedIsa forced(isa);
        const TileRun run = run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, tile));
        comparison.for_each(run, gentle || !gated,
                            [&](const char* name, const Tensor& got, const Tensor& naive, const Tensor& expected) {
                              EXPECT_LE(relative_error(got, expected), f32_bound(naive, expected))
                                  << name << " " << name_of(isa);
                            });
      }
    }
  }
}

/// The same rule for four problems as if they were one: gradients of weights that all pairs share are sums that nearly
/// cancel, so that one problem's rounding is chance.
void compare_four_with_naive(const AttentionShape& shape) {
  struct Squares {
    double of_kernel = 0, of_naive = 0, size = 0;
  };
  std::map<std::string, Squares> squares;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const AttentionProblem problem = random_attention(shape, seed);
    const Comparison comparison(problem);
    for (std::int64_t tile : {16, 64}) {
      const TileRun run = run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, tile));
      comparison.for_each(run, true,
                          [&](const char* name, const Tensor& got, const Tensor& naive, const Tensor& expected) {
                            const double norm = relative_error(expected, zeros_like(expected));
                            Squares& s = squares[fmt::format("{} tile {}", name, tile)];
                            s.of_kernel += std::pow(norm * relative_error(got, expected), 2);
                            s.of_naive += std::pow(norm * relative_error(naive, expected), 2);
                            s.size += norm * norm;
                          });
    }
  }
  for (const auto& [name, s] : squares)
    EXPECT_LE(std::sqrt(s.of_kernel / s.size), 2 * std::max(std::sqrt(s.of_naive / s.size), f32_floor))
        << name << " FIRE " << shape.fire << " far " << shape.far_positions;
}

TEST(AttentionTileF32Covering, AtMostTwiceTheNaiveError) {
  for (std::int64_t depth : {8, 40, 64, 128})
    for (std::int64_t npos : {0, 4, 64}) {
      compare_with_naive({100, 2, 1, depth, false, npos});
      compare_with_naive({77, 2, 1, depth, true, npos, {20, 5}});
    }
  compare_with_naive({300, 2, 1, 64, false, 64});
  compare_with_naive({300, 2, 2, 8, true, 200, {100}});
}

TEST(AttentionTileF32, ExtremeGates) {
  for (double mean : {-40, -12, 12, 40})
    compare_with_naive({.tokens = 130, .depth = 16, .npos = 64, .gate_mean = mean});
  compare_with_naive({.tokens = 130, .depth = 16, .npos = 1});  // P = 0: saturated from the first tile on
}

TEST(AttentionTileF32, OrderFreeTerms) {
  for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{}, {50, 9}}) {
    compare_with_naive({.tokens = 150, .heads = 2, .documents = documents, .offset = true});
    compare_with_naive({.tokens = 150, .heads = 2, .documents = documents, .offset = true, .offset_npos = 9});
    compare_with_naive({.tokens = 150, .heads = 2, .documents = documents, .relative = 20});
    compare_with_naive({.tokens = 150, .heads = 2, .documents = documents, .slope = true});
    compare_with_naive({.tokens = 150, .heads = 2, .documents = documents, .distances = 40});
    compare_four_with_naive({.tokens = 90, .heads = 2, .documents = documents, .fire = 32});
    compare_four_with_naive(
        {.tokens = 90, .heads = 2, .documents = documents, .relative = 20, .fire = 8, .far_positions = true});
    compare_four_with_naive({.tokens = 90,
                             .heads = 4,
                             .groups = 2,
                             .depth = 24,
                             .z = true,
                             .documents = documents,
                             .offset = true,
                             .relative = 20,
                             .distances = 40,
                             .fire = 8,
                             .slope = true,
                             .dropout = 0.2});
  }
}

TEST(AttentionTileF32, TwoGatedSums) {
  const GateRule near{Gates::tokens, 0, 16, 2}, far{Gates::block_ends, 0.1, 16, 2}, floored{Gates::tokens, 0.25, 0, 0};
  compare_with_naive({.tokens = 200, .heads = 2, .npos = 30, .gates = {near, far}, .npos_1 = 8});
  compare_with_naive({.tokens = 200, .heads = 2, .npos = 30, .documents = {77, 20}, .gates = {near, far}, .npos_1 = 8});
  compare_with_naive({.tokens = 150, .heads = 2, .npos = 30, .gates = {floored, near}, .npos_1 = 20});
  compare_with_naive({.tokens = 150,
                      .heads = 2,
                      .npos = 60,
                      .gates = {floored, far},
                      .npos_1 = 8,
                      .gate_q = {true, true},
                      .gate_k = {true, true},
                      .relative = 12,
                      .dropout = 0.3});
}

/// The last 64 rows against 20,000 keys with gates near σ(-9): no row saturates, and each position is a sum of
/// thousands of small gates. The table is a steep ramp, so that LSE is `slope` times a position, and shows its error
/// magnified.
TEST(AttentionTileF32, CarryOverALongRow) {
  constexpr std::int64_t tokens = 20032, rows = 64, depth = 16, npos = 65;
  constexpr double slope = 32;
  const AttentionProblem problem = random_attention({.tokens = tokens, .depth = depth, .npos = 1, .gate_mean = -9}, 2);
  std::vector<double> ramp;
  for (std::int64_t at = 0; at < rows * npos; ++at) ramp.push_back(slope * double(at % npos));
  const Tensor table = tensor_of({rows, 1, npos}, DType::f32, Device::cpu, ramp);
  const TileInputs inputs(problem, DType::f32, Device::cpu);
  QueryChunk queries = inputs.queries(tokens - rows, tokens);
  queries.terms.table[0] = table;
  TileRun run = inputs.empty_run(tokens - rows, tokens, 64);
  const Tensor &m = run.lse, &carry = run.carry[0], l = zeros_like(m);
  const kernels::AttentionState state{run.o, m, l, views_of(run.carry), views_of(run.horizon)};
  const AttentionSettings settings = settings_for(problem, 64);
  attention_begin(state);
  std::vector<double> sum(rows, 0), position(rows, 0);  // in double: Σ exp(logit), and positions so far
  double worst_carry = 0, worst_position = 0;
  for (std::int64_t end = tokens; end > 0; end -= 64) {
    attention_forward(state, queries, inputs.keys(end - 64, end), settings, nullptr);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = std::min(end - 1, tokens - rows + i); j >= end - 64; --j) {
        double u = 0;
        for (std::int64_t d = 0; d < depth; ++d)
          u += problem.q.as<double>()[(tokens - rows + i) * depth + d] * problem.k.as<double>()[j * depth + d];
        u /= std::sqrt(double(depth));
        position[i] += 1 / (1 + std::exp(-u));
        sum[i] += std::exp(u + slope * position[i]);
      }
      const double lse = double(m.as<float>()[i]) + std::log(double(l.as<float>()[i]));
      worst_position = std::max(worst_position, std::abs(lse - std::log(sum[i])) / slope);
      worst_carry = std::max(worst_carry, std::abs(double(carry.as<std::int64_t>()[i]) * 0x1p-32 - position[i]));
    }
  }
  EXPECT_GT(*std::min_element(position.begin(), position.end()), 2);
  EXPECT_LT(*std::max_element(position.begin(), position.end()), 64);
  // A gate's relative error is at most (|u| + 4) 2^-23, and q·k's own rounding adds about |u| 2^-24; a sum of positive
  // numbers has no larger one. (A carry in f32 would add 1e-4.)
  const double bound = (13 + 5) * 0x1p-23 * *std::max_element(position.begin(), position.end());
  EXPECT_LE(worst_carry, bound);
  EXPECT_LE(worst_position, bound);
}

}  // namespace
}  // namespace capstan::tests
