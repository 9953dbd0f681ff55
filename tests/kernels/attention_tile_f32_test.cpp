// The fast kernel's numbers: at most twice the error of the naive f32 implementation (DESIGN §4), and CoPE's carry over
// long rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::TermKind;
using kernels::View;

/// Gradients jump where a position is an integer. There f32 and f64 may fall on different sides, both the kernel and
/// the naive implementation, each by its own chance. A table that hardly rises keeps the jumps below the rounding
/// errors that are compared.
Tensor gentle_table(const Tensor& table) {
  Tensor gentle = table.clone();
  const std::int64_t npos = table.shape()[2];
  for (std::int64_t at = 0; at < table.view().elements(); at += npos)
    for (std::int64_t n = 1; n < npos; ++n)
      gentle.as<double>()[at + n] =
          float(table.as<double>()[at] + 0.2 * table.as<double>()[at + 1] * double(n) / double(npos));
  return gentle;
}

struct Comparison {
  DenseOutputs naive, exact;
  DenseGradients naive_back, exact_back;

  explicit Comparison(const AttentionProblem& problem) {
    const auto cast = [](const Tensor& x) { return x ? converted(x, DType::f32, Device::ref) : Tensor(); };
    const Tensor q = cast(problem.q), k = cast(problem.k), v = cast(problem.v), z = cast(problem.z),
                 table = cast(problem.table);
    const DenseInputs single{q, k, v, z, table, problem.document};
    naive = dense_attention(single);
    exact = dense_attention(problem.inputs());
    naive_back = dense_attention_backward(single, cast(problem.d_o));
    exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
  }

  void expect_output_within_bound(const TileRun& run) const {
    look("o", run.o, naive.o, exact.o);
    look("lse", run.lse, naive.lse, exact.lse);
  }

  void expect_gradients_within_bound(const TileRun& run) const {
    look("dq", run.dq, naive_back.dq, exact_back.dq);
    look("dk", run.dk, naive_back.dk, exact_back.dk);
    look("dv", run.dv, naive_back.dv, exact_back.dv);
    look("dz", run.dz, naive_back.dz, exact_back.dz);
    // With one column each row's gradient is Σ_j dlogit_j = 0: there is only rounding to compare.
    if (run.dtable && run.dtable.shape()[2] > 1) look("dtable", run.dtable, naive_back.dtable, exact_back.dtable);
  }

 private:
  static void look(const char* name, const Tensor& got, const Tensor& of_naive, const Tensor& expected) {
    if (!expected) return;
    EXPECT_LE(relative_error(got, expected), f32_bound(of_naive, expected)) << name;
  }
};

void compare_with_naive(const AttentionShape& shape) {
  AttentionProblem problem = random_attention(shape, std::uint64_t(7 * shape.tokens + shape.depth));
  for (bool gentle : {false, true}) {
    if (gentle && !problem.table) continue;
    if (gentle) problem.table = gentle_table(problem.table);
    const Comparison comparison(problem);
    for (std::int64_t tile : {16, 64}) {  // both lane widths of the kernel
      SCOPED_TRACE(fmt::format("T {} H {} G {} D {} z {} npos {} documents {} gentle {} tile {}", shape.tokens,
                               shape.heads, shape.groups, shape.depth, shape.z, shape.npos, shape.documents.size(),
                               gentle, tile));
      const TileRun run = run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, tile));
      comparison.expect_output_within_bound(run);
      if (gentle || !problem.table) comparison.expect_gradients_within_bound(run);
    }
  }
}

TEST(AttentionTileF32, AtMostTwiceTheNaiveError) {
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

/// The last 64 rows against 20,000 keys with gates near σ(-9): no row saturates, and each position is a sum of
/// thousands of small gates. The table is a steep ramp, so that LSE is `slope` times a position, and shows its error
/// magnified.
TEST(AttentionTileF32, CarryOverALongRow) {
  constexpr std::int64_t tokens = 20032, rows = 64, depth = 16, npos = 65;
  constexpr double slope = 32;
  const AttentionProblem problem = random_attention({.tokens = tokens, .depth = depth, .npos = 1, .gate_mean = -9}, 2);
  std::vector<double> ramp;
  for (std::int64_t at = 0; at < rows * npos; ++at) ramp.push_back(slope * double(at % npos));
  const Tensor q = converted(problem.q.view().rows(tokens - rows, tokens), DType::f32, Device::cpu);
  const Tensor table = tensor_of({rows, 1, npos}, DType::f32, Device::cpu, ramp);
  const Tensor k = converted(problem.k, DType::f32, Device::cpu), v = converted(problem.v, DType::f32, Device::cpu);
  const Tensor index = index_rows(0, tokens, Device::cpu),
               document = document_rows(problem.document, 0, tokens, Device::cpu);
  const auto cut = [](const Tensor& x, std::int64_t begin, std::int64_t end) { return x.view().rows(begin, end); };
  const QueryChunk queries{q, table, cut(index, tokens - rows, tokens), cut(document, tokens - rows, tokens)};
  Tensor o({rows, 1, depth}, DType::f32, Device::cpu), m({rows, 1}, DType::f32, Device::cpu);
  Tensor carry({rows, 1}, DType::i64, Device::cpu), horizon({1, 1}, DType::i64, Device::cpu);
  const Tensor l = zeros_like(m), horizon_carry = zeros_like(carry);
  const kernels::AttentionState state{o, m, l, carry, horizon, horizon_carry};
  const AttentionSettings settings{TermKind::cope, 64, true};
  attention_begin(state);
  std::vector<double> sum(rows, 0), position(rows, 0);  // in double: Σ exp(logit), and positions so far
  double worst_carry = 0, worst_position = 0;
  for (std::int64_t end = tokens; end > 0; end -= 64) {
    attention_forward(
        state, queries,
        {cut(k, end - 64, end), cut(v, end - 64, end), {}, cut(index, end - 64, end), cut(document, end - 64, end)},
        settings, nullptr);
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
