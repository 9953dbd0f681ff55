#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// y[t, m] = b[m].  y [T, M] overwrites or adds to; b [M].  Both of one type.
void bias_forward(const View& y, const View& b, Into into);
/// db[m] += Σ_t dy[t, m].  db [M] adds to; dy [T, M].  db wide.
void bias_backward(const View& db, const View& dy);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::bias_forward) bias_forward;
decltype(kernels::bias_backward) bias_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::bias_forward) bias_forward;
decltype(kernels::bias_backward) bias_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::bias_forward) bias_forward;
decltype(kernels::bias_backward) bias_backward;
}  // namespace cuda

}  // namespace capstan::kernels
