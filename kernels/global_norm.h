#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// Σ x², accumulated in double in a fixed order (blocks of 1024, then over blocks, on `cpu` over pieces of many blocks). x of any
/// shape, never bf16.
double sum_of_squares(const View& x);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::sum_of_squares) sum_of_squares;
}  // namespace ref

namespace cpu {
decltype(kernels::sum_of_squares) sum_of_squares;
}  // namespace cpu

namespace cuda {
decltype(kernels::sum_of_squares) sum_of_squares;
}  // namespace cuda

}  // namespace capstan::kernels
