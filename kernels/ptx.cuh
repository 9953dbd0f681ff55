#pragma once
// Every instruction that C++ has no words for: the only file with inline PTX. One function per instruction. The emulator that
// tests kernels without a GPU (docs/simt.md) has a file of the same name and functions in place of this one.
//
// Lanes below are threadIdx mod 32; g = lane / 4 and q = lane % 4. A "pair" is two bf16 in 32 bits, the lower index in the
// lower half. Layouts: PTX ISA, "Matrix multiply-accumulate operation using mma instruction", m16n8k16, and ldmatrix.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace capstan::kernels::ptx {

/// The block's dynamic shared memory as a T, 128-byte aligned. All shared memory of kernels is obtained here; T's size is what
/// launch<T> asked for.
template <class T> __device__ inline T& shared() {
  extern __shared__ __align__(128) unsigned char block_memory[];
  static_assert(alignof(T) <= 128);
  return *reinterpret_cast<T*>(block_memory);
}

/// The address that instructions on shared memory want.
__device__ inline unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// Four 8 x 8 matrices of bf16 from shared memory. Lane i gives the address of row i % 8 of matrix i / 8: 16 bytes, 16-byte
/// aligned. into[m] of a lane: the pair (row g, columns 2q and 2q + 1) of matrix m.
__device__ inline void ldmatrix_x4(std::uint32_t (&into)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same of the transposed matrices: into[m] of a lane is the pair (rows 2q and 2q + 1, column g) of matrix m as stored.
__device__ inline void ldmatrix_x4_transposed(std::uint32_t (&into)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Two matrices; addresses of lanes 0 to 15 count, the other lanes' are not used.
__device__ inline void ldmatrix_x2(std::uint32_t (&into)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(into[0]), "=r"(into[1])
               : "r"(shared_address(row))
               : "memory");
}

/// Two matrices, transposed.
__device__ inline void ldmatrix_x2_transposed(std::uint32_t (&into)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(into[0]), "=r"(into[1])
               : "r"(shared_address(row))
               : "memory");
}

/// sum += a b on the tensor core, a [16, 16] and b [16, 8] of bf16, sum [16, 8] of f32, each spread over the warp:
///   a[i] pair at row g + 8 (i % 2), columns 2q + 8 (i / 2) and the next     (what ldmatrix_x4 gives of row-major a)
///   b[i] pair at rows 2q + 8i and the next, column g                        (ldmatrix_x2 of row-major bᵀ)
///   sum[i] at row g + 8 (i / 2), column 2q + i % 2
__device__ inline void mma_m16n8k16(float (&sum)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Begins to copy 16 bytes, both addresses 16-byte aligned, past the L1 cache. Where not `valid` the 16 bytes become zero and
/// `global` is not read. They are there for this thread after copy_async_wait, for others after a barrier that follows it.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}

/// Ends a group: the copies of this thread since the last one.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

/// Waits until at most the newest N groups of this thread are still under way.
template <int N> __device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/// 2^x, relative error 2^-22; -inf gives 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, to 1 ulp.
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// (low, high) as a pair of bf16, each rounded to the nearest, ties to even.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace capstan::kernels::ptx
