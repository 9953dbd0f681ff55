// Every operation of `cuda` in a build without CUDA: declared as elsewhere, and refused. Tensors cannot lie there either
// (device_cuda_absent.cpp), so nobody comes here by a recipe; the text is for callers that make views of their own.

#include "kernels/attention_devices.h"
#include "kernels/cuda_absent.h"
#include "kernels/ops.h"

namespace capstan::kernels::cuda {
void add(const View&, const View&) { no_cuda(); }
void convert(const View&, const View&) { no_cuda(); }
void scale(const View&, double) { no_cuda(); }
void group_sum(const View&, const View&, double) { no_cuda(); }
void group_spread(const View&, const View&, double) { no_cuda(); }
void take_columns(const View&, const View&, std::int64_t) { no_cuda(); }
void put_columns(const View&, const View&, std::int64_t) { no_cuda(); }
void embedding_forward(const View&, const View&, const View&) { no_cuda(); }
void embedding_backward(const View&, const View&, const View&) { no_cuda(); }
void linear_forward(const View&, const View&, const View&, Into) { no_cuda(); }
void linear_backward_input(const View&, const View&, const View&, Into) { no_cuda(); }
void linear_backward_weight(const View&, const View&, const View&) { no_cuda(); }
void bias_forward(const View&, const View&, Into) { no_cuda(); }
void bias_backward(const View&, const View&) { no_cuda(); }
void gated_forward(const View&, const View&, const View&, Activation) { no_cuda(); }
void gated_backward(const View&, const View&, const View&, const View&, const View&, Activation) { no_cuda(); }
void activation_forward(const View&, const View&, Activation) { no_cuda(); }
void activation_backward(const View&, const View&, const View&, Activation) { no_cuda(); }
void rmsnorm_forward(const View&, const View&, const View&, double) { no_cuda(); }
void rmsnorm_backward(const View&, const View&, const View&, const View&, const View&, double, Into) { no_cuda(); }
void rotary_phases(const View&, const View&, const std::vector<double>&, double) { no_cuda(); }
void rotary_decay(const View&, const View&, const std::vector<double>&, double) { no_cuda(); }
void rotary_forward(const View&, const View&, const View&) { no_cuda(); }
void rotary_backward(const View&, const View&, const View&, const View&, const View&) { no_cuda(); }
void cross_entropy_forward(const View&, const View&, const View&, const View&, const View&) { no_cuda(); }
void cross_entropy_backward(const View&, const View&, const View&, const View&, const View&, const View&) { no_cuda(); }
void adamw_step(const View&, const View&, const View&, const View&, const AdamW&) { no_cuda(); }
void sgd_step(const View&, const View&, double) { no_cuda(); }
void apply_dropout(const View&, const View&, double, std::uint64_t) { no_cuda(); }
void block_mean(const View&, const View&, const View&, std::int64_t) { no_cuda(); }
void block_mean_backward(const View&, const View&, const View&, std::int64_t) { no_cuda(); }
void position_mlp_forward(const View&, const View&, const View&, const View&, const View&, const View&, const View&) {
  no_cuda();
}
bool all_finite(const View&) { no_cuda(); }
double sum_of_squares(const View&) { no_cuda(); }
MagnitudeSum complex_magnitude(const View&) { no_cuda(); }
void position_mlp_backward(const PositionMlpGradients&, const View&, const View&, const View&, const View&, const View&,
                           const View&, const View&) {
  no_cuda();
}
void attention_begin(const AttentionState&, double) { no_cuda(); }
void attention_finish(const AttentionState&) { no_cuda(); }
void attention_delta(const View&, const View&, const View&) { no_cuda(); }

}  // namespace capstan::kernels::cuda
