// The GPU's attention tile in bf16: at most twice the error of a naive implementation that rounds where bf16 products
// round, both against the f64 oracle on the same bf16 inputs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/kernels/attention_shapes.h"
#include "tests/simt/attention_cuda_runs.h"
#include "tests/support/naive_bf16_attention.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::DType;
using kernels::Tensor;

void compare(AttentionShape shape, const std::vector<std::int64_t>& tiles) {
  shape.tokens *= simt::size_factor();
  AttentionProblem problem = rounded_to_bf16(random_attention(shape, std::uint64_t(shape.tokens + shape.depth)));
  if (problem.table) problem.table = gentle_table(problem.table);
  const DenseOutputs exact = dense_attention(problem.inputs());
  const DenseGradients exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
  const NaiveBf16 naive(problem);
  for (std::int64_t tile : tiles) {
    SCOPED_TRACE(fmt::format("T {} H {} G {} D {} z {} npos {} tile {}", shape.tokens, shape.heads, shape.groups,
                             shape.depth, shape.z, shape.npos, tile));
    const TileRun run = run_on_gpu(problem, DType::bf16, settings_for(problem, tile));
    const auto look = [](const char* name, const Tensor& got, const Tensor& single, const Tensor& expected) {
      if (!got) return;
      EXPECT_LE(relative_error(got, expected), f32_bound(single, expected)) << name;
    };
    look("o", run.o, naive.outputs.o, exact.o);
    look("lse", run.lse, naive.outputs.lse, exact.lse);
    look("dq", run.dq, naive.gradients.dq, exact_back.dq);
    look("dk", run.dk, naive.gradients.dk, exact_back.dk);
    look("dv", run.dv, naive.gradients.dv, exact_back.dv);
    look("dz", run.dz, naive.gradients.dz, exact_back.dz);
    look("dtable", run.dtable, naive.gradients.dtable, exact_back.dtable);
  }
}

TEST(SimtAttention, PlainBf16) {
  const simt::Session session;
  for (std::int64_t depth : {8, 24, 64, 80, 128}) compare({.tokens = 150, .depth = depth}, {64});
  compare({.tokens = 77, .heads = 4, .groups = 2, .depth = 40, .documents = {20, 5}}, {16, 64});
  compare({.tokens = 100, .heads = 2, .groups = 2, .depth = 24, .z = true}, {64});
  compare({.tokens = 70, .depth = 128, .z = true}, {64});
  for (std::int64_t tile : {1, 4}) compare({.tokens = 11, .depth = 8, .documents = {4}}, {tile});
}

TEST(SimtAttention, GatesBf16) {
  const simt::Session session;
  compare({.tokens = 150, .heads = 2, .depth = 40, .npos = 64}, {64});
  compare({.tokens = 200, .depth = 128, .npos = 20, .documents = {77, 20}}, {64});
  compare({.tokens = 100, .heads = 4, .groups = 2, .depth = 24, .z = true, .npos = 12}, {16, 64});
}

/// Scores are exact products summed in f32, so that what depends on them alone is what f32 makes of the same inputs. Gradients: gates and
/// terms are the code that f32 runs; here each is only asked to be near, within the rounding of a few weights.
TEST(SimtAttention, EveryTermBf16) {
  const simt::Session session;
  for (const NamedShape& named : all_term_shapes()) {
    SCOPED_TRACE(named.name);
    AttentionShape shape = named.shape;
    shape.heads = 1;
    shape.tokens = 100 * simt::size_factor();
    AttentionProblem problem = rounded_to_bf16(random_attention(shape, 41));
    if (problem.table) problem.table = gentle_table(problem.table);
    if (problem.terms.table_1) problem.terms.table_1 = gentle_table(problem.terms.table_1);
    const AttentionProblem single = problem.cast(DType::f32);
    const DenseOutputs exact = dense_attention(problem.inputs());
    const DenseGradients exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
    const TileRun run = run_on_gpu(problem, DType::bf16, settings_for(problem, 64));
    EXPECT_LE(relative_error(run.lse, exact.lse), f32_bound(dense_attention(single.inputs()).lse, exact.lse));
    for_each_result(run, exact, exact_back, [](const char* name, const Tensor& got, const Tensor& expected) {
      // FIRE's weights get sums over all pairs that nearly cancel: no measure of errors by themselves.
      if (vanishes(expected) || std::string(name).starts_with("fire")) return;
      EXPECT_LE(relative_error(got, expected), 8 * bf16_floor) << name;
    });
    for (const Tensor& left : run.carry_left) EXPECT_TRUE(!left || same_bits(left, zeros_like(left)));
  }
}

}  // namespace
}  // namespace capstan::tests
