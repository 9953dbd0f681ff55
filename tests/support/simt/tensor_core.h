#pragma once
// Matrix instructions of a warp. kernels/ptx.cuh has their layouts.

#include <cstdint>

#include "tests/support/simt/warp.h"

namespace simt {

/// `matrices` (2 or 4) 8 x 8 matrices of 16-bit values from shared memory.
void ldmatrix(std::uint32_t* into, int matrices, const void* row, bool transposed, Where where);
/// sum += a b, f32 and bf16; each product is exact, and is added in f32 in the order of k.
void mma_m16n8k16(float* sum, const std::uint32_t* a, const std::uint32_t* b, Where where);

}  // namespace simt
