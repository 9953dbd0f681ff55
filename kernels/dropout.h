#pragma once
// Dropout whose masks are pure functions of what is dropped, never of ranks, order or recompute.

#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::kernels {

// constexpr: kernels of the GPU call these, too (CMakeLists.txt, --expt-relaxed-constexpr).

/// Two multiply-and-shift rounds over 32 bits (constants of the "lowbias32" search, C. Wellons 2018): every bit of the
/// result depends on every bit of x.
[[gnu::always_inline]] constexpr std::uint32_t mix32(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// Key of one row of masks, from the seed and two numbers (head and index of a query; site and index of a token).
[[gnu::always_inline]] constexpr std::uint32_t dropout_row(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  std::uint32_t x = mix32(std::uint32_t(seed) + 0x9e3779b9u);
  x = mix32(x ^ std::uint32_t(seed >> 32));
  x = mix32(x ^ (std::uint32_t(a) * 0x85ebca6bu + 1));
  return mix32(x ^ (std::uint32_t(b) * 0xc2b2ae35u + std::uint32_t(b >> 32) + 1));
}

/// True if entry `column` of the row is dropped. threshold = dropout_threshold(rate).
[[gnu::always_inline]] constexpr bool is_dropped(std::uint32_t row, std::uint32_t column, std::uint32_t threshold) {
  return mix32(row ^ (column * 0x9e3779b9u)) < threshold;
}

/// rate · 2^32; rate in [0, 1).
inline std::uint32_t dropout_threshold(double rate) { return std::uint32_t(rate * 4294967296.0); }

/// x [N, C]: row n, column c becomes 0 where is_dropped(dropout_row(seed, n / T, index[n]), c), else x / (1 - rate).
/// index [B, T] i64 with N = B·T; n / T is the sequence's number. Forward and backward alike: in place. x of any type.
void apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed);

// The device entries behind this; arguments are checked before.
namespace ref {
decltype(kernels::apply_dropout) apply_dropout;
}  // namespace ref

namespace cpu {
decltype(kernels::apply_dropout) apply_dropout;
}  // namespace cpu

namespace cuda {
decltype(kernels::apply_dropout) apply_dropout;
}  // namespace cuda

}  // namespace capstan::kernels
