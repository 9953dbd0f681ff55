#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// The bits of a result row of the first two depend on that row of x (or dy) and on w only: not on how many rows the call has, nor on
// the row's place among them. See products.cpp for what that takes. On `cuda`, whose products are cuBLASLt's, they depend on the
// number of rows: there calls of the same shapes give the same bits.

/// y = x wᵀ.  y [T, M] overwrites or adds to; x [T, K]; w [M, K].  x, w of one type; y of that type or wide.
void linear_forward(const View& y, const View& x, const View& w, Into into = Into::overwrite);
/// dx = dy w.  dx [T, K] overwrites or adds to; dy [T, M]; w [M, K].  dy, w of one type; dx of that type or wide.
void linear_backward_input(const View& dx, const View& dy, const View& w, Into into = Into::overwrite);
/// dw += dyᵀ x.  dw [M, K] adds to; dy [T, M]; x [T, K].  dy, x of one type; dw wide.
void linear_backward_weight(const View& dw, const View& dy, const View& x);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::linear_forward) linear_forward;
decltype(kernels::linear_backward_input) linear_backward_input;
decltype(kernels::linear_backward_weight) linear_backward_weight;
}  // namespace ref

namespace cpu {
decltype(kernels::linear_forward) linear_forward;
decltype(kernels::linear_backward_input) linear_backward_input;
decltype(kernels::linear_backward_weight) linear_backward_weight;
}  // namespace cpu

namespace cuda {
decltype(kernels::linear_forward) linear_forward;
decltype(kernels::linear_backward_input) linear_backward_input;
decltype(kernels::linear_backward_weight) linear_backward_weight;
}  // namespace cuda

}  // namespace capstan::kernels
