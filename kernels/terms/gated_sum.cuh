#pragma once
// A gated sum for a tile (kernels/terms/gated_sum.h): gates, positions, the sum that joins the carry, and the adjoint.
//
//   g = e + (1 - e) σ(u) where the row has a gate, else 0;  p_j = min(P, carry + Σ_{k>=j} g_k);  bias = interp(table, p_j)
//
// The order of operations within a tile is fixed by positions in the tile alone, and no operation is left to be fused or not: a
// tile's gates and their sum have the same bits in forward, in both backward kernels and in attention_gate_sum.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_fragment.cuh"
#include "kernels/attention_meeting.cuh"
#include "kernels/ptx.cuh"
#include "kernels/terms/interpolation.cuh"

namespace capstan::kernels::cuda::attention {

constexpr float log2_e = 1.44269504f;
constexpr int carry_bits = gate_fraction_bits(DType::f32);

/// σ(u) with relative error ≤ (|u| + 4) 2^-23: e = exp(-|u|) on both sides, so that nothing cancels for negative u.
__device__ inline float sigmoid(float u) {
  const float e = ptx::exp2_approx(__fmul_rn(-fabsf(u), log2_e));
  const float inverse = ptx::reciprocal_approx(__fadd_rn(1, e));
  return u < 0 ? __fmul_rn(e, inverse) : inverse;
}

/// min(carry, P) as a real number.
__device__ inline float carry_value(std::int64_t carry, std::int64_t last) {
  return static_cast<float>(static_cast<double>(min(carry, last << carry_bits)) * 0x1p-32);
}
__device__ inline bool saturated(std::int64_t carry, std::int64_t last) { return carry >= last << carry_bits; }

/// Gates of a tile from their logits.
__device__ inline void find_gate_values(Fragment& gate, const Fragment& u, const Words& has, float floor,
                                        const Lane& lane) {
  for_each_element(lane, [&](int n, int i, int h, int column) {
    const float value = __fmaf_rn(1 - floor, sigmoid(u.at[n][i]), floor);
    gate.at[n][i] = (has[h] >> column & 1) != 0 ? value : 0.0f;
  });
}

/// Row h's gates in fixed point, rounded once: a thread's sixteen gates with what rounding took from their sum (Knuth's two-sum),
/// then the quad's four sums in double. The same for the quad. NaN counts as 0.
__device__ inline std::int64_t fixed_sum(const Fragment& gate, int h) {
  float high = 0, low = 0;
#pragma unroll
  for (int n = column_blocks - 1; n >= 0; --n)
#pragma unroll
    for (int c = 1; c >= 0; --c) {
      const float one = gate.at[n][2 * h + c], sum = high + one, part = sum - high;
      low += (high - (sum - part)) + (one - part);
      high = sum;
    }
  double sum = static_cast<double>(high) + static_cast<double>(low);
  sum += __shfl_xor_sync(all_lanes, sum, 1);
  sum += __shfl_xor_sync(all_lanes, sum, 2);
  return sum > 0 ? __double2ll_rn(sum * 0x1p32) : 0;
}

/// gates → positions.
__device__ inline void find_places(Fragment& place, const float (&carry)[half_rows], float last, const Lane& lane) {
  sums_from_last(place, lane);
  for_each_element(lane, [&](int n, int i, int h, int) { place.at[n][i] = fminf(last, carry[h] + place.at[n][i]); });
}

/// logit += interp(table, place). tables: of the thread's rows.
__device__ inline void add_bias(Fragment& logit, const Fragment& place, const float* const (&table)[half_rows]) {
  for_each_gathered(
      [&](int n, int i, int h) { logit.at[n][i] = __fadd_rn(logit.at[n][i], Place(place.at[n][i]).value(table[h])); });
}

/// The same where a row has one place.
__device__ inline void add_row_bias(Fragment& logit, const float (&place)[half_rows],
                                    const float* const (&table)[half_rows], const Lane& lane) {
  float bias[half_rows];
#pragma unroll
  for (int h = 0; h < half_rows; ++h) bias[h] = Place(place[h]).value(table[h]);
  for_each_element(lane, [&](int n, int i, int h, int) { logit.at[n][i] = __fadd_rn(logit.at[n][i], bias[h]); });
}

/// d_logit → du, and X (of the keys farther than the tile, then of the tile's as well), far → near:
///   X_k = X + Σ_{j<=k} dlogit_j slope_j;  du_k = (g - e) (1 - g) / (1 - e) X_k where there is a gate.
__device__ inline void positions_backward(Fragment& d_u, float (&gate_grad)[half_rows], const Fragment& d_logit,
                                          const Fragment& gate, const Fragment& place, const Words& has, float floor,
                                          const float* const (&table)[half_rows], const Lane& lane) {
  for_each_gathered(
      [&](int n, int i, int h) { d_u.at[n][i] = d_logit.at[n][i] * Place(place.at[n][i]).slope(table[h]); });
  sums_from_first(d_u, gate_grad, lane);
  const float rise = 1 / (1 - floor);
  for_each_element(lane, [&](int n, int i, int h, int column) {
    const float g = gate.at[n][i];
    d_u.at[n][i] = (has[h] >> column & 1) != 0 ? (g - floor) * (1 - g) * rise * d_u.at[n][i] : 0.0f;
  });
}

}  // namespace capstan::kernels::cuda::attention
