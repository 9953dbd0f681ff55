#pragma once
// Adjoints of terms/order_free.cuh: row tables by threads that walk along rows, shared weights by sums of blocks that are added in
// their order afterwards.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_backward.cuh"
#include "kernels/terms/order_free.cuh"

namespace capstan::kernels::cuda::attention {

constexpr int block_warps = block_threads / warp_lanes;

/// Both rows of the thread.
class OrderFreeRows {
 public:
  __device__ OrderFreeRows(const Arguments& a, const QueryTile& t, const Lane& lane)
      : rows_{{a, t, lane, 0}, {a, t, lane, 1}} {}
  __device__ const OrderFreeRow& operator[](int h) const { return rows_[h]; }

 private:
  OrderFreeRow rows_[half_rows];
};

/// Lanes 0 to 15 of a warp each walk along one of its 16 rows.
constexpr unsigned walking_lanes = 0xffff;
__device__ inline bool walks(const Lane& lane) { return lane.lane < warp_rows; }
__device__ inline int walked_row(const Lane& lane) { return warp_rows * lane.warp + lane.lane % warp_rows; }

/// Of a number per row that the quads have, that of the row which the lane walks.
__device__ inline float of_walked_row(float upper, float lower, const Lane& lane) {
  const int source = 4 * (lane.lane % 8);
  const float of_upper = __shfl_sync(all_lanes, upper, source), of_lower = __shfl_sync(all_lanes, lower, source);
  return lane.lane < 8 ? of_upper : of_lower;
}

/// f(d, place) for the columns of a row, from the first to the last, by the lane that walks it. The warp's rows of `work` are used.
template <class F>
__device__ inline void walk_rows(Work& work, const Fragment& d, const Fragment& place, const Lane& lane, F&& f) {
  constexpr int half = tile_size / 2;  // the values in the first half of the columns, their places in the other
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < column_blocks / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = lane.column(n, i % 2), from = part * column_blocks / 2;
        work.f32[lane.row(i / 2)][column] = d.at[from + n][i];
        work.f32[lane.row(i / 2)][half + column] = place.at[from + n][i];
      }
    __syncwarp();
    if (!walks(lane)) continue;
    const float* const row = work.f32[walked_row(lane)];
    for (int column = 0; column < half; ++column) f(row[column], row[half + column]);
  }
  __syncwarp();
}

// ---- distance table -------------------------------------------------------------------------------------------------

/// Adds each walking lane's value to its own entry of the warp's sums; lanes with the same entry one after the other. Entries beyond
/// the table are held back by the lane.
__device__ inline void add_to_entries(float* sums, std::int64_t entry, bool held, float value, const Lane& lane) {
  const std::int64_t key = held ? -1 - lane.lane : entry;
  const bool alone = __popc(__match_any_sync(walking_lanes, key)) == 1;
  if (__all_sync(walking_lanes, alone)) {
    if (!held) sums[entry] += value;
    __syncwarp(walking_lanes);
    return;
  }
  for (int turn = 0; turn < warp_rows; ++turn) {
    if (lane.lane == turn && !held) sums[entry] += value;
    __syncwarp(walking_lanes);
  }
}

/// Σ of dlogit by distance into the warp's sums [N].
__device__ inline void distance_table_backward(float* sums, Work& work, const Fragment& d_logit, const Fragment& place,
                                               std::int64_t last, const Lane& lane) {
  float beyond = 0;  // the last entry, where most pairs of far tiles belong
  walk_rows(work, d_logit, place, lane, [&](float d, float entry) {
    const auto at = static_cast<std::int64_t>(entry);
    const bool held = at == last;
    if (held) beyond += d;
    add_to_entries(sums, at, held, d, lane);
  });
  if (walks(lane))
    for (int turn = 0; turn < warp_rows; ++turn) {
      if (lane.lane == turn) sums[last] += beyond;
      __syncwarp(walking_lanes);
    }
}

// ---- FIRE -----------------------------------------------------------------------------------------------------------

/// Where a block's warps keep their sums: out [R], in [R], in_bias [R], out_bias, scale [2].
__host__ __device__ inline std::int64_t fire_sums(std::int64_t width) { return 3 * width + 3; }

/// One weight: x and d are of the thread's pairs; dx adds to.
__device__ inline void fire_unit_backward(float* sums, Fragment& dx, const Fragment& x, const Fragment& d,
                                          const OrderFreeArguments& terms, std::int64_t head, int r, const Lane& lane) {
  const float in = terms.fire_in[r], bias = terms.fire_in_bias[r], out = terms.fire_out[head * terms.fire_width + r];
  float d_out = 0, d_in = 0, d_bias = 0;
  for_each_rolled(lane, [&](int n, int i, int, int) {
    const float hidden = in * x.at[n][i] + bias;
    if (!(hidden > 0)) return;
    const float d_hidden = d.at[n][i] * out;
    d_out += d.at[n][i] * hidden;
    d_in += d_hidden * x.at[n][i];
    d_bias += d_hidden;
    dx.at[n][i] += d_hidden * in;
  });
  d_out = warp_sum(d_out);
  d_in = warp_sum(d_in);
  d_bias = warp_sum(d_bias);
  if (lane.lane != 0) return;
  const int width = terms.fire_width;
  sums[r] += d_out;
  sums[width + r] += d_in;
  sums[2 * width + r] += d_bias;
}

/// dx → dscale: with a = |c|, y = max(i, |L|), A = ln(1 + a d), B = ln(1 + a y) + 1e-6:
///   dA/da = d / (1 + a d), dB/da = y / (1 + a y), dB/dy = a / (1 + a y);  y follows |L| where |L| > i.
__device__ inline void fire_scale_backward(float (&d_scale)[2], float dx, const FireScale& fire, float distance,
                                           float position) {
  const float reach = fmaxf(position, fire.reach), top = fire.numerator(distance), bottom = fire.denominator(position);
  const float d_top = dx / bottom, d_bottom = -dx * top / (bottom * bottom);
  d_scale[0] += d_top * distance / (1 + fire.c * distance) + d_bottom * reach / (1 + fire.c * reach);
  if (fire.reach > position) d_scale[1] += d_bottom * fire.c / (1 + fire.c * reach);
}

/// The weights' gradients of a tile into the warp's sums.
__device__ inline void fire_backward(float* sums, const Fragment& d_logit, const Arguments& a, const QueryTile& t,
                                     const Meeting& m, const OrderFreeRows& rows, const Lane& lane) {
  const OrderFreeArguments& terms = a.terms;
  const FireScale fire(terms.fire_scale);
  const int width = terms.fire_width;
  const Fragment d = d_logit;  // of its own: d_logit stays in registers
  Fragment x, dx;
  float d_out_bias = 0, d_scale[2] = {};
  for_each_rolled(lane, [&](int n, int i, int h, int column) {
    x.at[n][i] = fire.numerator(static_cast<float>(rows[h].distance(a, m, column))) /
                 fire.denominator(static_cast<float>(rows[h].position));
    d_out_bias += d.at[n][i];
  });
  clear(dx.at);
  for (int r = 0; r < width; ++r) fire_unit_backward(sums, dx, x, d, terms, t.head, r, lane);
  for_each_rolled(lane, [&](int n, int i, int h, int column) {
    fire_scale_backward(d_scale, dx.at[n][i], fire, static_cast<float>(rows[h].distance(a, m, column)),
                        static_cast<float>(rows[h].position));
  });
  d_out_bias = warp_sum(d_out_bias);
  for (float& sum : d_scale) sum = warp_sum(sum);
  if (lane.lane != 0) return;
  sums[3 * width] += d_out_bias;
  for (int k = 0; k < 2; ++k) {
    const float scale = terms.fire_scale[k];
    sums[3 * width + 1 + k] += scale > 0 ? d_scale[k] : scale < 0 ? -d_scale[k] : 0.0f;
  }
}

// ---- all of them ----------------------------------------------------------------------------------------------------

struct OrderFreeBins {
  RowBin offset, relative;
};

/// A warp's part of sums [query tiles, H, warps, n].
__device__ inline float* warp_sums(float* partial, std::int64_t n, const Arguments& a, const QueryTile& t,
                                   const Lane& lane) {
  return partial + ((t.number * a.heads + t.head) * block_warps + lane.warp) * n;
}

/// Sums begin at 0. Each warp clears its own.
__device__ inline void clear_partials(const Arguments& a, const BackwardArguments& b, const QueryTile& t,
                                      const Lane& lane) {
  const std::int64_t entries = a.terms.distance_last + 1, fire = fire_sums(a.terms.fire_width);
  if (b.distance_partial != nullptr)
    for (std::int64_t n = lane.lane; n < entries; n += warp_lanes)
      warp_sums(b.distance_partial, entries, a, t, lane)[n] = 0;
  if (b.fire_partial != nullptr)
    for (std::int64_t n = lane.lane; n < fire; n += warp_lanes) warp_sums(b.fire_partial, fire, a, t, lane)[n] = 0;
  __syncwarp();
}

/// dδ = dlogit · slope, slope 1 without a table.
__device__ inline void offset_backward(Fragment& d_delta, Fragment& place, const Fragment& d_logit, const Arguments& a,
                                       const QueryTile& t, const Meeting& m, const OrderFreeRows& rows,
                                       const Lane& lane) {
  d_delta = d_logit;
  if (a.terms.offset_table == nullptr) return;
  for_each_rolled(lane, [&](int n, int i, int h, int column) {
    place.at[n][i] = offset_place(rows[h].delta(a, m, t.head, column), a.terms.offset_last);
    d_delta.at[n][i] *= Place(place.at[n][i]).slope(rows[h].offset_table(a));
  });
}

/// min(distance, last), as walk_rows takes it: entries of tables are exact in f32.
__device__ inline void distance_places(Fragment& place, const Arguments& a, const Meeting& m, const OrderFreeRows& rows,
                                       std::int64_t last, const Lane& lane) {
  for_each_rolled(lane, [&](int n, int i, int h, int column) {
    place.at[n][i] = static_cast<float>(min(rows[h].distance(a, m, column), last));
  });
}

/// The rows' part: d_offset of the thread's rows adds up; tables and shared weights.
__device__ inline void order_free_rows_backward(OrderFreeBins& bins, float (&d_offset)[half_rows], Work& work,
                                                const Fragment& d_logit, const Arguments& a, const BackwardArguments& b,
                                                const QueryTile& t, const Meeting& m, const OrderFreeRows& rows,
                                                const Lane& lane) {
  const bool mine = walks(lane) && t.has(walked_row(lane));
  const std::int64_t at = a.at(t.begin + walked_row(lane), t.head);
  Fragment place, d_delta;
  if (a.terms.row_offset != nullptr && (b.d_row_offset != nullptr || b.d_offset_table != nullptr)) {
    offset_backward(d_delta, place, d_logit, a, t, m, rows, lane);
#pragma unroll
    for (int h = 0; h < half_rows; ++h) d_offset[h] += row_sum(d_delta, h);
    if (b.d_offset_table != nullptr)
      walk_rows(work, d_logit, place, lane, [&](float d, float where) {
        if (mine) bins.offset.add(b.d_offset_table + at * (a.terms.offset_last + 1), Place(where), d);
      });
  }
  if (b.d_relative != nullptr) {
    distance_places(place, a, m, rows, a.terms.relative_last, lane);
    walk_rows(work, d_logit, place, lane, [&](float d, float where) {
      if (mine) bins.relative.add(b.d_relative + at * (a.terms.relative_last + 1), Place(where), d);
    });
  }
  if (b.distance_partial != nullptr) {
    distance_places(place, a, m, rows, a.terms.distance_last, lane);
    distance_table_backward(warp_sums(b.distance_partial, a.terms.distance_last + 1, a, t, lane), work, d_logit, place,
                            a.terms.distance_last, lane);
    __syncwarp();
  }
  if (b.fire_partial != nullptr) {
    fire_backward(warp_sums(b.fire_partial, fire_sums(a.terms.fire_width), a, t, lane), d_logit, a, t, m, rows, lane);
    __syncwarp();
  }
}

/// The columns' part: Σ over the tile's rows of dδ, per key, joins the warp's sums.
__device__ inline void key_offsets_backward(float (&key_sum)[tile_size], const Fragment& d_logit, const Arguments& a,
                                            const QueryTile& t, const Meeting& m, const OrderFreeRows& rows,
                                            const Lane& lane) {
  Fragment place, d_delta;
  offset_backward(d_delta, place, d_logit, a, t, m, rows, lane);
#pragma unroll
  for (int n = 0; n < column_blocks; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = d_delta.at[n][c] + d_delta.at[n][2 + c];
      for (int step = 4; step < warp_lanes; step *= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
      if (lane.g == 0) key_sum[lane.column(n, c)] += sum;
    }
}

}  // namespace capstan::kernels::cuda::attention
