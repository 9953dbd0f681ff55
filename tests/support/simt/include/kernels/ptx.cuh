#pragma once
// The emulator's counterpart of kernels/ptx.cuh: the same functions, with the lane layouts of the PTX ISA in C++.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "tests/support/simt/tensor_core.h"

namespace capstan::kernels::ptx {

template <class T> T& shared() {
  static_assert(alignof(T) <= 128);
  return *static_cast<T*>(simt::shared_memory(sizeof(T)));
}

inline void ldmatrix_x4(std::uint32_t (&into)[4], const void* row, simt::Where where = simt::Where::current()) {
  simt::ldmatrix(into, 4, row, false, where);
}
inline void ldmatrix_x4_transposed(std::uint32_t (&into)[4], const void* row,
                                   simt::Where where = simt::Where::current()) {
  simt::ldmatrix(into, 4, row, true, where);
}
inline void ldmatrix_x2(std::uint32_t (&into)[2], const void* row, simt::Where where = simt::Where::current()) {
  simt::ldmatrix(into, 2, row, false, where);
}
inline void ldmatrix_x2_transposed(std::uint32_t (&into)[2], const void* row,
                                   simt::Where where = simt::Where::current()) {
  simt::ldmatrix(into, 2, row, true, where);
}
inline void mma_m16n8k16(float (&sum)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                         simt::Where where = simt::Where::current()) {
  simt::mma_m16n8k16(sum, a, b, where);
}

inline void copy_async_16(void* shared, const void* global, bool valid) { simt::copy_async_16(shared, global, valid); }
inline void copy_async_commit() { simt::copy_async_commit(); }
template <int N> void copy_async_wait() { simt::copy_async_wait(N); }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline std::uint32_t pack_bf16(float low, float high) {
  return __float2bfloat16(low).bits | std::uint32_t(__float2bfloat16(high).bits) << 16;
}

}  // namespace capstan::kernels::ptx
