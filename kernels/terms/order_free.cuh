#pragma once
// Terms that need no order, pair by pair (kernels/terms/offset.h, distance.h, fire.h), for a tile; adjoints below.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention_arguments.cuh"
#include "kernels/attention_fragment.cuh"
#include "kernels/attention_meeting.cuh"
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

/// What the thread's rows bring to the terms, of one head.
struct OrderFreeRows {
  std::int64_t position[half_rows] = {}, offset[half_rows] = {};
  const float *offset_table[half_rows] = {}, *relative[half_rows] = {};

  __device__ OrderFreeRows(const Arguments& a, const QueryTile& t, const Lane& lane) {
    const OrderFreeArguments& terms = a.terms;
    for (int h = 0; h < half_rows; ++h) {
      const std::int64_t row = t.row(lane, h), at = a.at(row, t.head);
      if (terms.by_distance) position[h] = a.query_position[row];
      if (terms.row_offset) offset[h] = terms.row_offset[at];
      if (terms.offset_table) offset_table[h] = terms.offset_table + at * (terms.offset_last + 1);
      if (terms.relative) relative[h] = terms.relative + at * (terms.relative_last + 1);
    }
  }
  /// Row h's distance to a key of the tile; 0 to keys that lie beyond it, or are none.
  __device__ std::int64_t distance(const Arguments& a, const Meeting& m, int h, int column) const {
    return max(std::int64_t(0), position[h] - a.key_position[m.begin + min(column, m.keys - 1)]);
  }
  __device__ std::int64_t delta(const Arguments& a, const Meeting& m, std::int64_t head, int h, int column) const {
    return offset[h] - a.terms.key_offset[a.at(m.begin + min(column, m.keys - 1), head)];
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

/// logit += the terms, where the row sees the key.
__device__ inline void add_order_free(Fragment& logit, const Arguments& a, const OrderFreeRows& rows, const Meeting& m,
                                      std::int64_t head, const Lane& lane) {
  const OrderFreeArguments& terms = a.terms;
  for_each_element(lane, [&](int n, int i, int h, int column) {
    if (!m.sees(h, column)) return;
    float& x = logit.at[n][i];
    if (terms.row_offset) {
      const std::int64_t delta = rows.delta(a, m, head, h, column);
      x += terms.offset_table ? Place(offset_place(delta, terms.offset_last)).value(rows.offset_table[h])
                              : offset_value(delta);
    }
    if (!terms.by_distance) return;
    const std::int64_t distance = rows.distance(a, m, h, column);
    if (terms.relative) x += rows.relative[h][min(distance, terms.relative_last)];
    if (terms.slope) x += terms.slope[head] * static_cast<float>(distance);
    if (terms.distance_table)
      x += terms.distance_table[head * (terms.distance_last + 1) + min(distance, terms.distance_last)];
    if (terms.fire_width == 0) return;
    const FireScale fire(terms.fire_scale);
    const float place = fire.numerator(static_cast<float>(distance)) /
                        fire.denominator(static_cast<float>(rows.position[h]));
    x += fire_bias(terms, head, place);
  });
}

}  // namespace capstan::kernels::cuda::attention
