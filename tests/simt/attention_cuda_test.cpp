// The GPU's attention tile on the emulated GPU, against the f64 oracle by the project's rule for errors: plain attention.

#include <gtest/gtest.h>

#include "tests/simt/attention_cuda_runs.h"
#include "tests/kernels/attention_shapes.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

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
};

TEST(SimtAttention, Trial) {
  const simt::Session session;
  for (const NamedShape& named : all_term_shapes()) {
  AttentionProblem problem = random_attention(named.shape, 5);
  if (problem.table) problem.table = gentle_table(problem.table);
  if (problem.terms.table_1) problem.terms.table_1 = gentle_table(problem.terms.table_1);
  const Comparison c(problem);
  printf("== %s\n", named.name);
  for (std::int64_t tile : {64}) {
    const TileRun run = run_on_gpu(problem, DType::f32, settings_for(problem, tile));
    std::vector<const Tensor*> naive;
    for_each_result(run, c.naive, c.naive_back, [&](const char*, const Tensor&, const Tensor& x) { naive.push_back(&x); });
    std::size_t at = 0;
    for_each_result(run, c.exact, c.exact_back, [&](const char* name, const Tensor& got, const Tensor& expected) {
      const double e = relative_error(got, expected), bound = f32_bound(*naive[at++], expected);
      printf("  %s %g (bound %g) %s\n", name, e, bound, e > bound && !vanishes(expected) ? "<<<<<" : "");
    });
    for (const Tensor& left : run.carry_left) EXPECT_TRUE(!left || same_bits(left, zeros_like(left)));
  }
  }
}

}  // namespace
}  // namespace capstan::tests
