#pragma once
// Terms by distance across lanes: see kernels/terms/distance.h.

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention_lanes.h"

namespace capstan::kernels::cpu {

/// Distances of one tile pair. FIRE reads them as well. Kept between calls.
struct DistanceLanes {
  int lane_count = 0;
  bool present = false;                    ///< some term needs distances
  std::vector<std::int64_t> row_position;  ///< [lane]; lanes beyond the rows repeat the last one
  Floats distance;                         ///< [keys][lane]; 0 where a row must not see a key and it would be negative
  float nearest = 0;                       ///< no allowed pair of the tile is nearer; 0 unless all pairs are allowed

  std::int64_t last_relative = -1, last_table = -1;  ///< R, N - 1; -1: no such term
  Floats relative_t, drelative_t;                    ///< [R + 2][lane]
  float slope = 0;                                   ///< of the head
  const float* table = nullptr;                      ///< [N] of the head

  void begin_call(const QueryChunk& queries, const SharedTerms& shared, int lane_count_in) {
    lane_count = lane_count_in;
    last_relative = last_table = -1;
    present = queries.terms.relative || shared.slope || shared.distance_table || shared.fire.in;
    if (!present) return;
    grow(row_position, lane_count);
    grow(distance, largest_tile * lane_count);
    if (shared.distance_table) last_table = shared.distance_table.dim(1) - 1;
    if (!queries.terms.relative) return;
    last_relative = queries.terms.relative.dim(2) - 1;
    for (Floats* x : {&relative_t, &drelative_t}) grow(*x, (last_relative + 2) * lane_count);
  }

  void begin_head(const QueryChunk& queries, const SharedTerms& shared, std::int64_t begin, std::int64_t rows,
                  std::int64_t head) {
    for (std::int64_t lane = 0; lane < lane_count; ++lane)
      row_position[lane] = queries.position.as<std::int64_t>()[begin + std::min(lane, rows - 1)];
    if (shared.slope) slope = shared.slope.as<float>()[head];
    if (shared.distance_table) table = shared.distance_table.as<float>() + head * (last_table + 1);
    if (last_relative < 0) return;
    gather_table(relative_t, queries.terms.relative, begin, rows, head, lane_count);
    std::fill_n(drelative_t.begin(), (last_relative + 2) * lane_count, 0.0f);
  }

  void end_head(const RowTerms& out, std::int64_t begin, std::int64_t rows, std::int64_t head) const {
    if (out.relative) scatter_rows(out.relative, drelative_t.data(), begin, rows, head, lane_count, 1, Into::add);
  }
};

/// Where a distance falls in a table that ends at `last` (exact in f32).
[[gnu::always_inline]] inline std::int32_t table_entry(float distance, std::int64_t last) {
  return std::int32_t(distance < float(last) ? distance : float(last));
}

template <int L>
[[gnu::always_inline]] inline void find_distances(DistanceLanes& d, const std::int64_t* key_position,
                                                  const TilePair& tile) {
  const std::int64_t* row = d.row_position.data();
  float least[L];
  for (int lane = 0; lane < L; ++lane) least[lane] = std::numeric_limits<float>::max();
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      const std::int64_t signed_distance = row[lane] - key_position[j];
      const float distance = float(signed_distance > 0 ? signed_distance : 0);
      d.distance[j * L + lane] = distance;
      least[lane] = distance < least[lane] ? distance : least[lane];
    }
  float nearest = least[0];
  for (int lane = 1; lane < L; ++lane) nearest = std::min(nearest, least[lane]);
  d.nearest = tile.mask.all ? nearest : 0;
}

/// logit += relative[min(d, R)] + slope d + distance_table[min(d, N - 1)].
template <int L>
[[gnu::always_inline]] inline void add_distance_bias(const DistanceLanes& d, bool slopes, float* logit,
                                                     std::int64_t keys) {
  const float* distance = d.distance.data();
  const std::int64_t count = keys * L;
  if (const std::int64_t last = d.last_relative; last >= 0) {
    const float* table_t = d.relative_t.data();
    const bool far = d.nearest >= float(last);
    for (std::int64_t j = 0; j < keys; ++j)
      for (int lane = 0; lane < L; ++lane) {
        const std::int32_t entry = far ? std::int32_t(last) : table_entry(distance[j * L + lane], last);
        logit[j * L + lane] += table_t[entry * L + lane];
      }
  }
  if (slopes)
    for (std::int64_t at = 0; at < count; ++at) logit[at] += d.slope * distance[at];
  if (const std::int64_t last = d.last_table; last >= 0) {
    if (d.nearest >= float(last))
      for (std::int64_t at = 0; at < count; ++at) logit[at] += d.table[last];
    else
      for (std::int64_t at = 0; at < count; ++at) logit[at] += d.table[table_entry(distance[at], last)];
  }
}

/// Its adjoint; d_table [N] of the head adds to, or null.
template <int L, int W>
[[gnu::always_inline]] inline void distance_backward(DistanceLanes& d, float* d_table, const float* d_logit,
                                                     std::int64_t keys) {
  const float* distance = d.distance.data();
  const auto key_sums = [&](float* sum) __attribute__((always_inline)) {
    for (int n = 0; n < L; n += W) {
      Reals<W> of_lanes = {};
      for (std::int64_t j = 0; j < keys; ++j) of_lanes += lanes<W>(d_logit + j * L + n);
      lanes<W>(sum + n) += of_lanes;
    }
  };
  if (const std::int64_t last = d.last_relative; last >= 0) {
    float* d_table_t = d.drelative_t.data();
    if (d.nearest >= float(last)) key_sums(d_table_t + last * L);
    else
      for (std::int64_t j = 0; j < keys; ++j)
        for (int lane = 0; lane < L; ++lane)
          d_table_t[table_entry(distance[j * L + lane], last) * L + lane] += d_logit[j * L + lane];
  }
  if (const std::int64_t last = d.last_table; d_table && last >= 0) {
    if (d.nearest >= float(last)) {
      float sum[L] = {};
      key_sums(sum);
      d_table[last] += sum_of_lanes<L>(sum);
    } else {
      for (std::int64_t at = 0; at < keys * L; ++at) d_table[table_entry(distance[at], last)] += d_logit[at];
    }
  }
}

}  // namespace capstan::kernels::cpu
