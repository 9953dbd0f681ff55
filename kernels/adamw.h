#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// Decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101, alg. 2, with the learning rate on the decay as in PyTorch).
struct AdamW {
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;  ///< 1 for the first update: bias corrections 1 - βᵗ
};
/// m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²;  w -= lr (m̂ / (sqrt(v̂) + eps) + weight_decay w).
/// w, m, v overwrite; g is read. All of one shape and type, never bf16.
void adamw_step(const View& w, const View& m, const View& v, const View& g, const AdamW& settings);
/// w -= lr g. w overwrites. Never bf16.
void sgd_step(const View& w, const View& g, double lr);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::adamw_step) adamw_step;
decltype(kernels::sgd_step) sgd_step;
}  // namespace ref

namespace cpu {
decltype(kernels::adamw_step) adamw_step;
decltype(kernels::sgd_step) sgd_step;
}  // namespace cpu

namespace cuda {
decltype(kernels::adamw_step) adamw_step;
decltype(kernels::sgd_step) sgd_step;
}  // namespace cuda

}  // namespace capstan::kernels
