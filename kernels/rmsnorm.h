#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// y[t, c] = w[c] x[t, c] r_t,  r_t = 1 / sqrt(mean_c x[t, c]² + eps).  (Zhang & Sennrich, arXiv 1910.07467, eq. 4)
/// y [T, C] overwrites; x [T, C]; w [C].  All of one type.
void rmsnorm_forward(const View& y, const View& x, const View& w, double eps);
/// With n = x r (so y = w n) and g = w dy:  dx = r (g - n mean_c(g n));  dw[c] += Σ_t dy n.
/// dx [T, C] overwrites or adds to; dw [C] adds to, or absent when w is frozen; r is computed again from x.  dx, x, w of one
/// type; dy of that type or wide; dw wide.
void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::rmsnorm_forward) rmsnorm_forward;
decltype(kernels::rmsnorm_backward) rmsnorm_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::rmsnorm_forward) rmsnorm_forward;
decltype(kernels::rmsnorm_backward) rmsnorm_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::rmsnorm_forward) rmsnorm_forward;
decltype(kernels::rmsnorm_backward) rmsnorm_backward;
}  // namespace cuda

}  // namespace capstan::kernels
