// The GPU's attention tile on the emulated GPU, against the f64 oracle by the project's rule for errors: plain attention.

#include <gtest/gtest.h>

#include "tests/simt/attention_cuda_runs.h"
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
  AttentionProblem problem = random_attention({.tokens = 130, .heads = 2, .depth = 24}, 5);
  const Comparison c(problem);
  for (std::int64_t tile : {16, 64}) {
    const TileRun run = run_on_gpu(problem, DType::f32, settings_for(problem, tile));
    for_each_result(run, c.exact, c.exact_back, [&](const char* name, const Tensor& got, const Tensor& expected) {
      printf("%s %g\n", name, relative_error(got, expected));
    });
  }
}

}  // namespace
}  // namespace capstan::tests
