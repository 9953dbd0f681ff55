#pragma once
// The offset term across lanes: see kernels/terms/offset.h.

#include <cstdint>
#include <vector>

#include "kernels/attention_lanes.h"
#include "kernels/terms/interpolation_lanes.h"
#include "kernels/terms/offset.h"

namespace capstan::kernels::cpu {

/// For one (query tile, head), and for the tile at hand. Kept between calls.
struct OffsetLanes {
  bool present = false;
  int lane_count = 0;
  std::int64_t last = -1;           ///< P; -1: no table
  std::vector<std::int64_t> row;    ///< [lane]
  Floats d_row;                     ///< [lane]
  Floats table_t, dtable_t;         ///< [P + 2][lane]
  Floats place, slope, start_zero;  ///< with a table: [keys][lane], [lane]

  void begin_call(const QueryChunk& queries, int lane_count_in) {
    present = bool(queries.terms.offset);
    last = -1;
    lane_count = lane_count_in;
    if (!present) return;
    grow(row, lane_count);
    grow(d_row, lane_count);
    if (!queries.terms.offset_table) return;
    last = queries.terms.offset_table.dim(2) - 1;
    for (Floats* x : {&table_t, &dtable_t}) grow(*x, (last + 2) * lane_count);
    for (Floats* x : {&place, &slope}) grow(*x, largest_tile * lane_count);
    grow(start_zero, lane_count);
  }

  void begin_head(const QueryChunk& queries, std::int64_t begin, std::int64_t rows, std::int64_t head) {
    const std::int64_t heads = queries.q.dim(1);
    for (std::int64_t lane = 0; lane < lane_count; ++lane)
      row[lane] = lane < rows ? queries.terms.offset.as<std::int64_t>()[(begin + lane) * heads + head] : 0;
    std::fill_n(d_row.begin(), lane_count, 0.0f);
    if (last < 0) return;
    gather_table(table_t, queries.terms.offset_table, begin, rows, head, lane_count);
    std::fill_n(dtable_t.begin(), (last + 2) * lane_count, 0.0f);
  }

  void end_head(const RowTerms& out, std::int64_t begin, std::int64_t rows, std::int64_t head) const {
    if (const View& d_offset = out.offset)
      for (std::int64_t lane = 0; lane < rows; ++lane)
        d_offset.as<float>()[(begin + lane) * d_offset.dim(1) + head] += d_row[lane];
    if (out.offset_table) scatter_rows(out.offset_table, dtable_t.data(), begin, rows, head, lane_count, 1, Into::add);
  }
};

/// logit += δ or interp(table, clamp(δ, 0, P)).  key_offset: the tile's first key, of this head; stride: to the next
/// key.
template <int L, int W>
[[gnu::always_inline]] inline void add_offset_bias(OffsetLanes& o, float* logit, const std::int64_t* key_offset,
                                                   std::int64_t stride, std::int64_t keys) {
  const std::int64_t* row = o.row.data();
  if (o.last < 0) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t key = key_offset[j * stride];
      for (int lane = 0; lane < L; ++lane) logit[j * L + lane] += float(double(row[lane] - key) * terms::unit<float>);
    }
    return;
  }
  float* place = o.place.data();
  const std::int64_t bound = o.last << terms::fraction_bits<float>;
  for (std::int64_t j = 0; j < keys; ++j) {
    const std::int64_t key = key_offset[j * stride];
    for (int lane = 0; lane < L; ++lane) {
      const std::int64_t delta = row[lane] - key, risen = delta > 0 ? delta : 0,
                         clamped = risen < bound ? risen : bound;
      place[j * L + lane] = float(double(clamped) * terms::unit<float>);
    }
  }
  add_interpolated<L, W>(logit, place, o.slope.data(), o.table_t.data(), o.last, o.start_zero.data(), keys);
}

/// Its adjoint. d_key, or null, with the keys' stride: -= Σ_lane dδ.
template <int L, int W>
[[gnu::always_inline]] inline void offset_backward(OffsetLanes& o, const float* d_logit, float* d_key,
                                                   std::int64_t stride, std::int64_t keys) {
  const float* d_delta = d_logit;
  if (o.last >= 0) {
    for (int n = 0; n < L; n += W)
      interpolated_backward<L, W>(
          &o.dtable_t[n], d_logit + n, &o.place[n],
          keys, [&](std::int64_t at, const Reals<W>& d) __attribute__((always_inline)) {
            lanes<W>(&o.slope[at + n]) = d * lanes<W>(&o.slope[at + n]);
          });
    d_delta = o.slope.data();
  }
  for (int n = 0; n < L; n += W) {
    Reals<W> sum = {};
    for (std::int64_t j = 0; j < keys; ++j) sum += lanes<W>(d_delta + j * L + n);
    lanes<W>(&o.d_row[n]) += sum;
  }
  if (!d_key) return;
  for (std::int64_t j = 0; j < keys; ++j) d_key[j * stride] -= sum_of_lanes<L>(d_delta + j * L);
}

}  // namespace capstan::kernels::cpu
