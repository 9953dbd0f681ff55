#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// y[t] = w[id[t]].  y [T, C] overwrites; ids [T] i32, each in [0, V); w [V, C].  y, w of one type.
void embedding_forward(const View& y, const View& ids, const View& w);
/// dw[id[t]] += dy[t], in the order of t.  dw [V, C] adds to, wide; dy [T, C].
void embedding_backward(const View& dw, const View& ids, const View& dy);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;
}  // namespace cuda

}  // namespace capstan::kernels
