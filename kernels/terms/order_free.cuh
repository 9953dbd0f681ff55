#pragma once
// Terms that need no order, pair by pair (kernels/terms/offset.h, distance.h, fire.h), for a tile; adjoints below.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention_arguments.cuh"
#include "kernels/attention_fragment.cuh"
#include "kernels/attention_meeting.cuh"
#include "kernels/attention_products.cuh"
#include "kernels/terms/interpolation.cuh"

namespace capstan::kernels::cuda::attention {

constexpr float fire_least = 1e-6f;  // terms::fire_least_denominator

/// δ in units of 1; clamped to a table, the place in it.
__device__ inline float offset_value(std::int64_t delta) { return static_cast<float>(delta) * 0x1p-32f; }
__device__ inline float offset_place(std::int64_t delta, std::int64_t last) {
  return offset_value(min(max(delta, std::int64_t(0)), last << 32));
}

/// FIRE's x of one pair: ln(1 + |c| d) / (ln(1 + |c| max(i, |L|)) + 1e-6).
struct FireScale {
  float c, reach;
  __device__ explicit FireScale(const float* scale) : c(fabsf(scale[0])), reach(fabsf(scale[1])) {}
  __device__ float numerator(float distance) const { return logf(1 + c * distance); }
  __device__ float denominator(float position) const { return logf(1 + c * fmaxf(position, reach)) + fire_least; }
};

/// What one of the thread's rows brings to the terms, of one head.
struct OrderFreeRow {
  std::int64_t position = 0, offset = 0;
  std::int64_t at;  ///< [row, head]

  __device__ OrderFreeRow(const Arguments& a, const QueryTile& t, const Lane& lane, int h) {
    const std::int64_t row = t.row(lane, h);
    at = a.at(row, t.head);
    if (a.terms.by_distance) position = a.query_position[row];
    if (a.terms.row_offset) offset = a.terms.row_offset[at];
  }
  __device__ const float* offset_table(const Arguments& a) const {
    return a.terms.offset_table + at * (a.terms.offset_last + 1);
  }
  __device__ const float* relative(const Arguments& a) const {
    return a.terms.relative + at * (a.terms.relative_last + 1);
  }
  /// The row's distance to a key of the tile; 0 to keys that lie beyond it, or are none.
  __device__ std::int64_t distance(const Arguments& a, const Meeting& m, int column) const {
    return max(std::int64_t(0), position - a.key_position[m.begin + min(column, m.keys - 1)]);
  }
  __device__ std::int64_t delta(const Arguments& a, const Meeting& m, std::int64_t head, int column) const {
    return offset - a.terms.key_offset[a.at(m.begin + min(column, m.keys - 1), head)];
  }
};

/// f_h of one pair.
__device__ inline float fire_bias(const OrderFreeArguments& terms, std::int64_t head, float x) {
  float sum = terms.fire_out_bias[head];
  const float* out = terms.fire_out + head * terms.fire_width;
  for (int r = 0; r < terms.fire_width; ++r) {
    const float hidden = terms.fire_in[r] * x + terms.fire_in_bias[r];
    sum += out[r] * (hidden < 0 ? 0 : hidden);
  }
  return sum;
}

/// All terms of one pair, added to x in their order.
__device__ inline float with_order_free(float x, const Arguments& a, const OrderFreeRow& row, const Meeting& m,
                                        std::int64_t head, int column) {
  const OrderFreeArguments& terms = a.terms;
  if (terms.row_offset) {
    const std::int64_t delta = row.delta(a, m, head, column);
    x += terms.offset_table ? Place(offset_place(delta, terms.offset_last)).value(row.offset_table(a))
                            : offset_value(delta);
  }
  if (!terms.by_distance) return x;
  const std::int64_t distance = row.distance(a, m, column);
  if (terms.relative) x += row.relative(a)[min(distance, terms.relative_last)];
  if (terms.slope) x += terms.slope[head] * static_cast<float>(distance);
  if (terms.distance_table)
    x += terms.distance_table[head * (terms.distance_last + 1) + min(distance, terms.distance_last)];
  if (terms.fire_width == 0) return x;
  const FireScale fire(terms.fire_scale);
  const float place = fire.numerator(static_cast<float>(distance)) / fire.denominator(static_cast<float>(row.position));
  return x + fire_bias(terms, head, place);
}

/// logit += the terms, where the row sees the key. The logits wait in `work`, at the thread's own places, so that the loop need not be
/// unrolled: its registers are few and its code is short.
__device__ inline void add_order_free(Fragment& logit, Work& work, const Arguments& a, const QueryTile& t,
                                      const Meeting& m, const Lane& lane) {
  __syncwarp();  // what the warp's rows of `work` held before has been read
  keep_f32(work, logit, lane);
#pragma unroll 1
  for (int h = 0; h < half_rows; ++h) {
    const OrderFreeRow row(a, t, lane, h);
    const std::uint64_t allowed = h == 0 ? m.allowed[0] : m.allowed[1];
#pragma unroll 1
    for (int pair = 0; pair < 2 * column_blocks; ++pair) {
      const int column = lane.column(pair / 2, pair % 2);
      float& x = work.f32[lane.row(h)][column];
      if ((allowed >> column & 1) != 0) x = with_order_free(x, a, row, m, t.head, column);
    }
  }
  for_each_element(lane, [&](int n, int i, int h, int column) { logit.at[n][i] = work.f32[lane.row(h)][column]; });
}

}  // namespace capstan::kernels::cuda::attention
