#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// Output projection, softmax and negative log-likelihood in one, over blocks of rows and words, so that the [T, V] logits never
// exist:
//   logit[t, v] = x[t] · w[v];  lse_t = ln Σ_v exp(logit[t, v]);  nll_t = lse_t - logit[t, target_t].
// A target of -1 counts nothing: nll 0, no gradient. Logits and their gradients stay wide.

/// nll [T] f64 overwrites; lse [T] f64 overwrites; x [T, C]; w [V, C]; targets [T] i32 in [-1, V).  x, w of one type.
void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets);
/// dlogit = exp(logit - lse) - 1{v = target};  dx = dlogit w;  dw += dlogitᵀ x.
/// dx [T, C] overwrites, of the type of x; dw [V, C] adds to, wide, or absent (frozen); the rest as in forward. Logits are
/// computed again.
void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets);

/// Bytes of working memory that they keep on `cpu` for calls of up to T rows, with one thread.
std::int64_t cross_entropy_bytes(std::int64_t T, std::int64_t C, std::int64_t V);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::cross_entropy_forward) cross_entropy_forward;
decltype(kernels::cross_entropy_backward) cross_entropy_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::cross_entropy_forward) cross_entropy_forward;
decltype(kernels::cross_entropy_backward) cross_entropy_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::cross_entropy_forward) cross_entropy_forward;
decltype(kernels::cross_entropy_backward) cross_entropy_backward;
}  // namespace cuda

}  // namespace capstan::kernels
