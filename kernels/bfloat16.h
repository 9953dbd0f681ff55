#pragma once
// bfloat16: the upper half of a float. Stored as such, computed with as float: every result is rounded once, when stored.

#include <bit>
#include <cstdint>
#include <type_traits>

namespace capstan::kernels {

struct BFloat16 {
  std::uint16_t bits = 0;
};

[[gnu::always_inline]] inline float to_float(float x) { return x; }
[[gnu::always_inline]] inline float to_float(BFloat16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }

/// To the nearest, ties to even; beyond the largest: infinity; a NaN stays one. No branch: loops of it vectorise.
[[gnu::always_inline]] inline BFloat16 to_bfloat16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const std::uint32_t quiet_nan = bits >> 16 | 0x40;
  const std::uint32_t is_nan = 0u - std::uint32_t((bits & 0x7fffffff) > 0x7f800000);
  return {std::uint16_t((rounded & ~is_nan) | (quiet_nan & is_nan))};
}

/// x as an element of type T.
template <class T> [[gnu::always_inline]] inline T stored_as(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(x);
  else return T(x);
}

}  // namespace capstan::kernels
