#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// All operands of a call are of one type.

/// silu(a) = a σ(a);  silu'(a) = σ(a) (1 + a (1 - σ(a))).
/// gelu(a) = a Φ(a), Φ(a) = ½ erfc(-a/√2), the exact one (Hendrycks & Gimpel, arXiv 1606.08415);  gelu'(a) = Φ(a) + a φ(a),
/// φ(a) = exp(-a²/2)/√(2π).
enum class Activation : std::uint8_t { silu, gelu };

/// h = f(gate) · up.  (Shazeer, arXiv 2002.05202: SwiGLU with silu, eq. 6, GEGLU with gelu)  All [T, F]; h overwrites.
void gated_forward(const View& h, const View& gate, const View& up, Activation f);
/// dgate = dh up f'(gate), dup = dh f(gate).  dgate, dup overwrite (may be the memory of gate, up).
void gated_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up, Activation f);

/// y = f(x). Same shape; y overwrites.
void activation_forward(const View& y, const View& x, Activation f);
/// dx = dy f'(x). dx overwrites (may be the memory of dy or x).
void activation_backward(const View& dx, const View& dy, const View& x, Activation f);

/// Calls body with the functions of f, which each device has of its own.
template <class Silu, class Gelu, class Body> void with_functions(Activation f, const Body& body) {
  if (f == Activation::silu) body(Silu{});
  else body(Gelu{});
}

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::gated_forward) gated_forward;
decltype(kernels::gated_backward) gated_backward;
decltype(kernels::activation_forward) activation_forward;
decltype(kernels::activation_backward) activation_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::gated_forward) gated_forward;
decltype(kernels::gated_backward) gated_backward;
decltype(kernels::activation_forward) activation_forward;
decltype(kernels::activation_backward) activation_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::gated_forward) gated_forward;
decltype(kernels::gated_backward) gated_backward;
decltype(kernels::activation_forward) activation_forward;
decltype(kernels::activation_backward) activation_backward;
}  // namespace cuda

}  // namespace capstan::kernels
