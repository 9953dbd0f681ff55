#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// All operands of a call are of one type.

/// h = silu(gate) · up, silu(a) = a σ(a).  (Shazeer, arXiv 2002.05202, eq. 6)  All [T, F]; h overwrites.
void swiglu_forward(const View& h, const View& gate, const View& up);
/// dgate = dh up σ(a)(1 + a(1 - σ(a))), dup = dh silu(a), with a = gate.  dgate, dup overwrite (may be the memory of gate, up).
void swiglu_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up);

/// y = silu(x). Same shape; y overwrites.
void silu_forward(const View& y, const View& x);
/// dx = dy σ(x)(1 + x(1 - σ(x))). dx overwrites (may be the memory of dy).
void silu_backward(const View& dx, const View& dy, const View& x);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::swiglu_forward) swiglu_forward;
decltype(kernels::swiglu_backward) swiglu_backward;
decltype(kernels::silu_forward) silu_forward;
decltype(kernels::silu_backward) silu_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::swiglu_forward) swiglu_forward;
decltype(kernels::swiglu_backward) swiglu_backward;
decltype(kernels::silu_forward) silu_forward;
decltype(kernels::silu_backward) silu_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::swiglu_forward) swiglu_forward;
decltype(kernels::swiglu_backward) swiglu_backward;
decltype(kernels::silu_forward) silu_forward;
decltype(kernels::silu_backward) silu_backward;
}  // namespace cuda

}  // namespace capstan::kernels
