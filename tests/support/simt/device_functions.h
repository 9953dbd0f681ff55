#pragma once
// CUDA's qualifiers, built-in variables and device functions for g++. Everything else a kernel wants is in kernels/ptx.cuh.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/support/simt/vector_types.h"
#include "tests/support/simt/warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

// Copies and fills that are calls, the compiler's own ones for large loops and structs, too, are checked like other accesses
// (hooks.cpp): these names are what they call.
extern "C" {
void* memcpy(void* to, const void* from, std::size_t bytes) noexcept __asm__("simt_memcpy");
void* memmove(void* to, const void* from, std::size_t bytes) noexcept __asm__("simt_memmove");
void* memset(void* memory, int value, std::size_t bytes) noexcept __asm__("simt_memset");
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// What follows runs as part of the emulator: the compiler does not instrument it.
#define SIMT_EMULATOR __attribute__((no_sanitize("thread"))) inline

// Barriers
SIMT_EMULATOR void __syncthreads(simt::Where where = simt::Where::current()) {
  simt::block_barrier("__syncthreads", 0, simt::Combine::none, where);
}
SIMT_EMULATOR int __syncthreads_count(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier("__syncthreads_count", predicate, simt::Combine::count, where);
}
SIMT_EMULATOR int __syncthreads_and(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier("__syncthreads_and", predicate, simt::Combine::all, where);
}
SIMT_EMULATOR int __syncthreads_or(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier("__syncthreads_or", predicate, simt::Combine::any, where);
}
SIMT_EMULATOR void __syncwarp(unsigned mask = 0xffffffff, simt::Where where = simt::Where::current()) {
  simt::warp_operation(
      "__syncwarp", mask, nullptr, [](void* const(&)[32], std::uint32_t) {}, true, where);
}
// Threads run one at a time, and each sees at once what the others wrote: nothing is left for fences to do. They order nothing
// for the race check, which knows barriers only.
SIMT_EMULATOR void __threadfence() {}
SIMT_EMULATOR void __threadfence_block() {}
SIMT_EMULATOR void __threadfence_system() {}

// Warp operations
namespace simt {
template <class T> SIMT_EMULATOR T shuffle_value(const char* name, unsigned mask, T value, int source, Where where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(name, mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
/// The first lane of the own segment of `width` lanes.
SIMT_EMULATOR int segment(int width) { return lane_of_thread() / width * width; }
}  // namespace simt

template <class T>
SIMT_EMULATOR T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                            simt::Where where = simt::Where::current()) {
  return simt::shuffle_value("__shfl_sync", mask, value, simt::segment(width) + (source & (width - 1)), where);
}
template <class T>
SIMT_EMULATOR T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                               simt::Where where = simt::Where::current()) {
  const int lane = simt::lane_of_thread(), source = lane - static_cast<int>(by);
  return simt::shuffle_value("__shfl_up_sync", mask, value, source >= simt::segment(width) ? source : lane, where);
}
template <class T>
SIMT_EMULATOR T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                 simt::Where where = simt::Where::current()) {
  const int lane = simt::lane_of_thread(), source = lane + static_cast<int>(by);
  const bool inside = source < simt::segment(width) + width;
  return simt::shuffle_value("__shfl_down_sync", mask, value, inside ? source : lane, where);
}
template <class T>
SIMT_EMULATOR T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                                simt::Where where = simt::Where::current()) {
  const int lane = simt::lane_of_thread(), source = lane ^ bits;
  const bool inside = source < simt::segment(width) + width;
  return simt::shuffle_value("__shfl_xor_sync", mask, value, inside ? source : lane, where);
}
SIMT_EMULATOR unsigned __ballot_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  return simt::ballot("__ballot_sync", mask, predicate != 0, where);
}
SIMT_EMULATOR int __any_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  return simt::ballot("__any_sync", mask, predicate != 0, where) != 0;
}
SIMT_EMULATOR int __all_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  return simt::ballot("__all_sync", mask, predicate != 0, where) == mask;
}
template <class T>
SIMT_EMULATOR unsigned __match_any_sync(unsigned mask, T value, simt::Where where = simt::Where::current()) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return simt::match_any(mask, bits, where);
}
SIMT_EMULATOR unsigned __activemask() { return simt::active_lanes(); }

// Atomics: one thread runs at a time, so that plain changes are atomic.
namespace simt {
template <class T, class F> __attribute__((no_sanitize("thread"), noinline)) T change(T* address, F&& f) {
  check_atomic(address, sizeof(T), __builtin_return_address(0));
  const T before = *address;
  *address = f(before);
  return before;
}
}  // namespace simt
template <class T> SIMT_EMULATOR T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(sizeof(T) >= 4, "CUDA has no such atomicAdd that we use");
  return simt::change(
      address, [value](T before) __attribute__((no_sanitize("thread"))) { return T(before + value); });
}
template <class T> SIMT_EMULATOR T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return simt::change(
      address, [value](T x) __attribute__((no_sanitize("thread"))) { return x > value ? x : value; });
}
template <class T> SIMT_EMULATOR T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return simt::change(
      address, [value](T x) __attribute__((no_sanitize("thread"))) { return x < value ? x : value; });
}
template <class T> SIMT_EMULATOR T atomicOr(T* address, std::type_identity_t<T> value) {
  return simt::change(
      address, [value](T before) __attribute__((no_sanitize("thread"))) { return before | value; });
}
template <class T> SIMT_EMULATOR T atomicAnd(T* address, std::type_identity_t<T> value) {
  return simt::change(
      address, [value](T before) __attribute__((no_sanitize("thread"))) { return before & value; });
}
template <class T> SIMT_EMULATOR T atomicExch(T* address, std::type_identity_t<T> value) {
  return simt::change(
      address, [value](T) __attribute__((no_sanitize("thread"))) { return value; });
}
template <class T>
SIMT_EMULATOR T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return simt::change(
      address, [=](T x) __attribute__((no_sanitize("thread"))) { return x == expected ? value : x; });
}

// Bits
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// Numbers. The fast ones of the GPU have errors of a few ulp that these have not.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __saturatef(float x) { return x > 0 ? std::fmin(x, 1.0f) : 0.0f; }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(std::nearbyint(x)); }
inline long long __float2ll_rn(float x) { return std::llrint(x); }
inline long long __double2ll_rn(double x) { return std::llrint(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
template <class T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, std::type_identity_t<T> b) { return b < a ? b : a; }
template <class T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, std::type_identity_t<T> b) { return a < b ? b : a; }
template <class T> T __ldg(const T* address) { return *address; }
