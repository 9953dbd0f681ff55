// The oracle of all attention tests itself: its gradients are central differences, and one row by hand.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/dense_attention.h"
#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::GateRule;
using kernels::Gates;

/// The first random problem that stays clear of kinks while the difference quotient moves an input.
AttentionProblem smooth_problem(const AttentionShape& shape) {
  for (std::uint64_t seed = 1;; ++seed) {
    AttentionProblem problem = random_attention(shape, seed);
    for (std::int64_t at = 0; at < problem.terms.row_offset.view().elements(); ++at)
      problem.terms.row_offset.as<double>()[at] += 0.3;  // δ_ii = 0 otherwise
    if (distance_to_kinks(problem.inputs()) >= 0.008) return problem;
  }
}

void check_oracle(const AttentionShape& shape) {
  const AttentionProblem problem = smooth_problem(shape);
  const DenseGradients gradients = dense_attention_backward(problem.inputs(), problem.d_o);
  std::vector<GradientInput> inputs{
      {"q", problem.q, gradients.dq}, {"k", problem.k, gradients.dk}, {"v", problem.v, gradients.dv}};
  if (problem.z) inputs.push_back({"z", problem.z, gradients.dz});
  if (problem.table) inputs.push_back({"table", problem.table, gradients.dtable});
  const auto values = problem.terms.all(), of_values = gradients.terms.all();
  for (std::size_t n = 0; n < values.size(); ++n)
    if (*of_values[n].second) inputs.push_back({values[n].first, *values[n].second, *of_values[n].second});
  check_gradient(inputs, [&] { return weighted_sum(dense_attention(problem.inputs()).o, problem.d_o); });
}

TEST(DenseAttention, GradientsAreCentralDifferences) {
  check_oracle({.tokens = 9, .heads = 2, .groups = 1, .depth = 4});
  check_oracle({.tokens = 9, .heads = 2, .groups = 2, .depth = 4, .z = true, .npos = 4});
  check_oracle({.tokens = 12, .heads = 4, .groups = 2, .depth = 6, .z = true, .npos = 40, .documents = {3, 4}});
}

TEST(DenseAttention, GradientsOfTermsAreCentralDifferences) {
  const GateRule near{Gates::tokens, 0.2, 3, 2}, far{Gates::block_ends, 0.1, 3, 1}, plain{Gates::tokens, 0, 0, 0};
  check_oracle({.tokens = 12, .heads = 2, .depth = 4, .npos = 5, .gates = {near, far}, .npos_1 = 3});
  check_oracle({.tokens = 9,
                .heads = 2,
                .groups = 2,
                .depth = 4,
                .npos = 4,
                .documents = {4},
                .gates = {plain, near},
                .npos_1 = 6,
                .gate_q = {true, false},
                .gate_k = {false, true}});
  check_oracle({.tokens = 9, .heads = 2, .depth = 4, .offset = true, .relative = 4, .distances = 5, .slope = true});
  check_oracle({.tokens = 7, .heads = 2, .depth = 4, .offset = true, .offset_npos = 3, .dropout = 0.3});
  check_oracle({.tokens = 14, .heads = 2, .depth = 4, .documents = {2}, .fire = 3});
}

TEST(DenseAttention, HandComputedRows) {
  // Two tokens, one head, D = 1, q·k = 0: gates 1/2; the second row's bias is table[p], p = 1 for key 0 and 1/2 for key
  // 1.
  AttentionProblem problem = random_attention({.tokens = 2, .depth = 1, .npos = 3}, 1);
  problem.q.view().fill_zero();
  double *table = problem.table.as<double>() + 3, *v = problem.v.as<double>();
  table[0] = 1, table[1] = 3, table[2] = 100;
  v[0] = 5, v[1] = -2;
  const DenseOutputs outputs = dense_attention(problem.inputs());
  EXPECT_NEAR(outputs.lse.as<double>()[1], std::log(std::exp(3) + std::exp(2)), 1e-14);
  EXPECT_NEAR(outputs.o.as<double>()[1], (5 * std::exp(3) - 2 * std::exp(2)) / (std::exp(3) + std::exp(2)), 1e-14);
  EXPECT_NEAR(outputs.o.as<double>()[0], 5, 1e-14);
}

TEST(DenseAttention, HandComputedTerms) {
  // q·k = 0. Row 2 of three tokens, d = 2, 1, 0; per key: δ, relative, slope, table, FIRE.
  AttentionProblem problem = random_attention(
      {.tokens = 3, .depth = 1, .offset = true, .relative = 2, .distances = 2, .fire = 2, .slope = true}, 1);
  problem.q.view().fill_zero();
  TermTensors& t = problem.terms;
  const auto set = [](const kernels::Tensor& x, const std::vector<double>& values) {
    std::copy(values.begin(), values.end(), x.as<double>() + x.view().elements() - std::ssize(values));
  };
  set(t.row_offset, {-1.5});
  set(t.key_offset, {-1, -1.25, -1.5});  // δ = -0.5, -0.25, 0
  set(t.relative, {0.1, 0.2});           // d = 0, and farther
  set(t.slope, {-0.5});
  set(t.distance_table, {3, 4});
  set(t.fire_in, {2, -1});
  set(t.fire_in_bias, {-0.5, 0.25});
  set(t.fire_out, {10, 20});
  set(t.fire_out_bias, {7});
  set(t.fire_scale, {-3, 1});  // |c| = 3; position 2 is beyond |L|
  const auto fire = [](double d) {
    const double x = std::log(1 + 3 * d) / (std::log(1 + 3 * 2.0) + 1e-6);
    return 7 + 10 * std::max(0.0, 2 * x - 0.5) + 20 * std::max(0.0, 0.25 - x);
  };
  const double l0 = -0.5 + 0.2 - 1 + 4 + fire(2), l1 = -0.25 + 0.2 - 0.5 + 4 + fire(1), l2 = 0.1 + 3 + fire(0);
  EXPECT_NEAR(dense_attention(problem.inputs()).lse.as<double>()[2],
              std::log(std::exp(l0) + std::exp(l1) + std::exp(l2)), 1e-12);
}

TEST(DenseAttention, HandComputedBlocks) {
  // q·k = 0 and gates 1/2. Blocks of 2, window 1, row 4 (block 2): token gates at key 4 alone, block gates at the ends
  // of blocks 0 and 1, keys 1 and 3. Positions of keys 0 … 4: tokens ½ for all; blocks 1, 1, ½, ½, 0.
  AttentionProblem problem =
      random_attention({.tokens = 5,
                        .depth = 1,
                        .npos = 2,
                        .gates = {GateRule{Gates::tokens, 0, 2, 1}, GateRule{Gates::block_ends, 0, 2, 1}},
                        .npos_1 = 3},
                       1);
  problem.q.view().fill_zero();
  double *near = problem.table.as<double>() + 8, *far = problem.terms.table_1.as<double>() + 12;
  near[0] = 1, near[1] = 2;
  far[0] = 10, far[1] = 12, far[2] = 100;
  const double expected = 1.5 + std::log(2 * std::exp(12) + 2 * std::exp(11) + std::exp(10));
  EXPECT_NEAR(dense_attention(problem.inputs()).lse.as<double>()[4], expected, 1e-12);
}

}  // namespace
}  // namespace capstan::tests
