#pragma once
// Matrix products on the GPU, for the operations that are made of them.

#include "kernels/matrix.h"

namespace capstan::kernels::cuda {

/// c (+)= a b by cuBLASLt on the thread's stream, summed in f32 (without TF32) and rounded once.  a and b of one type; c of that
/// type, or f32; not transposed. Calls of the same shapes, types and alignments (16 bytes or less) give the same bits.
void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into);

}  // namespace capstan::kernels::cuda
