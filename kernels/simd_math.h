#pragma once
// Scalar functions that gcc vectorises inside plain loops at -O3, on every instruction set and without -ffast-math.
// No branch, no table, no library call; a NaN stays a NaN; nothing here raises "invalid" for infinite arguments.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace capstan::kernels {

/// exp(x) within 2 ulp on [-87, 88]; exactly 0 below -87.33 (where the result would be subnormal), +inf above 88.73.
/// x = n ln 2 + r with integer n, |r| ≤ ln 2 / 2;  exp(x) = 2ⁿ (1 + r + r² P(r)), P the minimax polynomial of Cephes' expf.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float smallest = -87.33f;
  constexpr float round_to_int =
      12582912.0f;  // 1.5 · 2²³: adding it leaves the nearest integer in the low mantissa bits
  constexpr std::int32_t zero_bits = std::bit_cast<std::int32_t>(round_to_int);
  constexpr float ln2_high = 0.693359375f;  // 9 bits, so that n · ln2_high is exact with and without fma
  constexpr float ln2_low = -2.12194440e-4f;
  // A mask instead of `x < smallest ? …`: gcc 12 folds the constant side of such a choice into a path of its own, and a loop
  // with control flow does not vectorise.
  const std::uint32_t below = 0u - static_cast<std::uint32_t>(x < smallest);  // all ones, or 0
  const float bounded = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & ~below) |
                                             (std::bit_cast<std::uint32_t>(smallest) & below));
  const std::int32_t shifted =
      std::min(std::bit_cast<std::int32_t>(bounded * 1.44269504f + round_to_int), zero_bits + 127);
  const float n = std::bit_cast<float>(shifted) - round_to_int;
  const float r = (bounded - n * ln2_high) - n * ln2_low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = (p * (r * r) + r) + 1.0f;
  const std::uint32_t scale = static_cast<std::uint32_t>(shifted - zero_bits + 127) << 23;
  return mantissa * std::bit_cast<float>(scale & ~below);
}

/// σ(u) = 1 / (1 + exp(-u)) with relative error ≤ (|u| + 4) · 2⁻²³ down to u = -87.33, 0 below.
/// From e = exp(-|u|) on both sides: σ = 1 / (1 + e) for u ≥ 0 and e / (1 + e) for u < 0. A difference (1 - σ(-u), or any form
/// by tanh) would lose all relative accuracy for negative u, where σ ≈ exp(u) and CoPE sums thousands of such gates.
[[gnu::always_inline]] inline float fast_sigmoid(float u) {
  const float e = fast_exp(-std::fabs(u));
  return (u < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// φ(x) √(2π) = exp(-x²/2), within (x²/2 + 4) · 2⁻²³ of itself down to where fast_exp is 0.
[[gnu::always_inline]] inline float fast_bell(float x) { return fast_exp(-0.5f * (x * x)); }

/// Φ(x) = ½ erfc(-x/√2) from fast_bell(x), with relative error ≤ (x²/2 + 6) · 2⁻²³ where that is not 0. One side only:
///   Φ(-|x|) = exp(-x²/2) t P(t),  t = 1 / (1 + 0.3 |x|),  Φ(|x|) = 1 - Φ(-|x|).
/// P is our own minimax polynomial (Remez) of the relative error on 0 ≤ |x| ≤ 14, which is 3.5e-9.
[[gnu::always_inline]] inline float fast_normal(float x, float bell) {
  const float t = 1.0f / (1.0f + 0.3f * std::fabs(x));
  float p = -0.0206128247f;
  p = p * t + 0.112375751f;
  p = p * t - 0.228067443f;
  p = p * t + 0.191581592f;
  p = p * t - 0.0792472512f;
  p = p * t + 0.0960577801f;
  p = p * t + 0.0784256011f;
  p = p * t + 0.110227317f;
  p = p * t + 0.119572841f;
  p = p * t + 0.119686633f;
  const float tail = (bell * t) * p;
  return x < 0.0f ? tail : 1.0f - tail;
}

/// Σ_{i < n} term(i), in Real, by 16 interleaved partial sums and a fixed tree: the same operations on every instruction set and
/// for every caller with the same n. (gcc may not reorder a sum by itself.) `term` must be always_inline to be vectorised.
template <class Real = float, class Term>
[[gnu::always_inline]] inline Real lane_sum(std::int64_t n, const Term& term) {
  constexpr int lanes = 16;
  Real sum[lanes] = {};
  const std::int64_t whole = n - n % lanes;
  for (std::int64_t i = 0; i < whole; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sum[lane] += term(i + lane);
  for (int lane = 0; lane < n % lanes; ++lane) sum[lane] += term(whole + lane);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  return sum[0];
}

/// max_{i < n} x[i] by the same lanes; -inf for n = 0. A NaN may be passed over: the sum of exponentials that follows finds it.
[[gnu::always_inline]] inline float lane_max(const float* x, std::int64_t n) {
  constexpr int lanes = 16;
  float most[lanes];
  for (int lane = 0; lane < lanes; ++lane) most[lane] = -std::numeric_limits<float>::infinity();
  const std::int64_t whole = n - n % lanes;
  for (std::int64_t i = 0; i < whole; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) most[lane] = x[i + lane] > most[lane] ? x[i + lane] : most[lane];
  for (int lane = 0; lane < n % lanes; ++lane) most[lane] = x[whole + lane] > most[lane] ? x[whole + lane] : most[lane];
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane)
      most[lane] = most[lane + width] > most[lane] ? most[lane + width] : most[lane];
  return most[0];
}

}  // namespace capstan::kernels
