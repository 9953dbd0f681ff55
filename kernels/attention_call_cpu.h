#pragma once
// What one call of the `cpu` attention tile works on. A piece of work is a run of query tiles, `tiles_together` of them, and
// one head: each key tile is made ready once and then meets them all. Rows do not see which others are with them.
//
// Everything here is kept per thread between calls and only grows. Arrays named x_t are transposed: [entry][lane].

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_lanes.h"
#include "kernels/attention_tile.h"
#include "kernels/dropout.h"
#include "kernels/terms/distance_lanes.h"
#include "kernels/terms/fire_lanes.h"
#include "kernels/terms/gated_sum_lanes.h"
#include "kernels/terms/offset_lanes.h"

namespace capstan::kernels::cpu {

constexpr std::int64_t tiles_together = 4;

/// What a key tile is loaded for.
enum class Needs : std::uint8_t { scores, forward, backward };

using BFloats = std::vector<BFloat16, CacheLines<BFloat16>>;

/// Operands of a tile unit: kernels/attention_bf16_cpu.h.
struct NarrowRows {
  BFloats q_pairs, do_pairs;          ///< [columns / 2][lane][2]
  BFloats q_row_pairs, do_row_pairs;  ///< [lane / 2][columns][2]
};
struct NarrowKeys {
  BFloats k, u;                  ///< [keys][columns]
  BFloats k_columns, u_columns;  ///< [columns][keys]
  BFloats pairs, rows;           ///< weights or gradients of scores: [keys / 2][lane][2], [keys][lane]
};

/// Sizes of a call.
struct Call {
  const QueryChunk& queries;
  const KeyChunk& keys;
  const AttentionSettings& settings;
  std::int64_t heads, groups, depth, columns;
  std::int64_t depth_p, columns_p;  ///< padded
  int lane_count;
  float scale;

  /// pad: what columns are made a multiple of.
  Call(const QueryChunk& queries_in, const KeyChunk& keys_in, const AttentionSettings& settings_in, int lane_count_in,
       std::int64_t (*pad)(std::int64_t))
      : queries(queries_in), keys(keys_in), settings(settings_in), heads(queries.q.dim(1)), groups(keys.k.dim(1)),
        depth(queries.q.dim(2)), columns(keys.z ? 2 * depth : depth), depth_p(pad(depth)), columns_p(pad(columns)),
        lane_count(lane_count_in), scale(float(1 / std::sqrt(double(depth)))) {}

  /// Entry [row, head] of a tensor [T, H].
  std::int64_t at(std::int64_t row, std::int64_t head) const { return row * heads + head; }
  std::int64_t group(std::int64_t head) const { return head / (heads / groups); }
  /// Entry [key, group of head, 0] of a tensor [T, G, D].
  std::int64_t key_at(std::int64_t key, std::int64_t head) const { return (key * groups + group(head)) * depth; }
  std::int64_t horizon_at(std::int64_t query_begin, std::int64_t head) const {
    return at(query_begin / settings.tile, head);
  }
  std::int64_t first_key(const TilePair& pair) const { return keys.index.as<std::int64_t>()[pair.key_begin]; }
  /// Runs of query tiles.
  std::int64_t runs() const {
    const std::int64_t rows = tiles_together * settings.tile;
    return (queries.q.dim(0) + rows - 1) / rows;
  }
};

/// One query tile and head.
struct RowTile {
  std::int64_t begin = 0, rows = 0, head = 0;
  bool begun = false;                            ///< has met a key tile: only then are its rows' state read and written
  TilePair pair{};                               ///< with the key tile at hand
  Floats q_t, q_rows, o_t, do_t, do_rows, dq_t;  ///< q times s; dq without it
  Floats m, l, delta;                            ///< [lane]; in backward m is lse
  std::array<GatedLanes, gated_sums> gated;      ///< those that are present come first
  std::span<GatedLanes> sums;
  OffsetLanes offset;
  DistanceLanes distance;
  FireLanes fire;
  bool order_free = false, dropout = false;  ///< any of the last three; of attention weights
  std::vector<std::uint32_t> masks;          ///< [lane] keys of dropout
  NarrowRows narrow;

  void begin_call(const Call& call) {
    const int lane_count = call.lane_count;
    for (Floats* x : {&q_t, &dq_t}) grow(*x, call.depth_p * lane_count);
    for (Floats* x : {&o_t, &do_t}) grow(*x, call.columns_p * lane_count);
    grow(q_rows, row_stride(call.depth_p) * lane_count);
    grow(do_rows, row_stride(call.columns_p) * lane_count);
    for (Floats* x : {&m, &l, &delta}) grow(*x, lane_count);
    std::size_t present = 0;
    for (int which = 0; which < gated_sums; ++which)
      if (call.settings.gates[which].gates != Gates::none)
        gated[present++].begin_call(which, call.settings.gates[which], call.queries, call.keys, lane_count);
    sums = std::span(gated).first(present);
    offset.begin_call(call.queries, lane_count);
    distance.begin_call(call.queries, call.settings.shared, lane_count);
    fire.begin_call(call.settings.shared, lane_count);
    order_free = offset.present || distance.present;
    dropout = call.settings.dropout.rate > 0;
    if (dropout) grow(masks, lane_count);
  }

  /// What the terms need, in either direction, but for what is carried.
  void begin_terms(const Call& call) {
    for (GatedLanes& g : sums) g.begin_head(begin, rows, head, call.scale);
    if (offset.present) offset.begin_head(call.queries, begin, rows, head);
    if (distance.present) distance.begin_head(call.queries, call.settings.shared, begin, rows, head);
    if (fire.fire.width > 0) fire.begin_head(call.settings.shared, distance.row_position, head);
    if (!dropout) return;
    const WeightDropout& rule = call.settings.dropout;
    for (std::int64_t lane = 0; lane < call.lane_count; ++lane)
      masks[lane] = dropout_row(rule.seed, std::uint64_t(rule.first_head + head),
                                std::uint64_t(call.queries.index.as<std::int64_t>()[begin + std::min(lane, rows - 1)]));
  }

  /// [T, H] into lanes; 0 beyond the rows.
  template <class T> void read(T* lane_values, const View& x, const Call& call) const {
    const T* source = x.as<T>();
    for (std::int64_t lane = 0; lane < call.lane_count; ++lane)
      lane_values[lane] = lane < rows ? source[call.at(begin + lane, head)] : T(0);
  }
  template <class T> void write(const View& x, const T* lane_values, const Call& call) const {
    T* target = x.as<T>();
    for (std::int64_t lane = 0; lane < rows; ++lane) target[call.at(begin + lane, head)] = lane_values[lane];
  }
};

/// One key tile of one kv head, and what a query tile makes of it.
struct KeyTile {
  std::int64_t begin = 0, keys = 0;
  Floats k, u;                     ///< [keys][row_stride]: rows of k and of U = [v | z], f32
  Floats dk, du;                   ///< [keys][row_stride]: sums over the run's query tiles
  Floats logit, d_logit, d_score;  ///< [keys][lane]
  Floats kept;                     ///< [keys][lane] 0 or 1 / (1 - rate)
  NarrowKeys narrow;

  void begin_call(const Call& call) {
    grow(k, largest_tile * row_stride(call.depth_p));
    grow(u, largest_tile * row_stride(call.columns_p));
    grow(dk, largest_tile * row_stride(call.depth_p));
    grow(du, largest_tile * row_stride(call.columns_p));
    for (Floats* x : {&logit, &d_logit, &d_score}) grow(*x, largest_tile * call.lane_count);
    if (call.settings.dropout.rate > 0) grow(kept, largest_tile * call.lane_count);
  }

  [[gnu::always_inline]] void load(const Call& call, std::int64_t head, Needs needs) {
    const std::int64_t depth = call.depth, k_stride = row_stride(call.depth_p), u_stride = row_stride(call.columns_p);
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t at = call.key_at(begin + j, head);
      load_row(&k[j * k_stride], call.keys.k, at, depth, call.depth_p);
      if (needs == Needs::scores) continue;
      load_row(&u[j * u_stride], call.keys.v, at, depth, call.keys.z ? depth : call.columns_p);
      if (call.keys.z) load_row(&u[j * u_stride + depth], call.keys.z, at, depth, call.columns_p - depth);
    }
  }
};

struct Scratch {
  std::array<RowTile, tiles_together> tiles;
  KeyTile key_tile;
  std::span<RowTile> run;  ///< the tiles at hand

  /// Query tiles of run number `number`.
  void begin_run(const Call& call, std::int64_t number, std::int64_t head) {
    const std::int64_t tile = call.settings.tile, rows = call.queries.q.dim(0);
    key_tile.begin_call(call);
    std::size_t count = 0;
    for (std::int64_t begin = number * tiles_together * tile; begin < rows && count < tiles.size(); begin += tile) {
      RowTile& r = tiles[count++];
      r.begin_call(call);
      r.begin = begin;
      r.rows = std::min(tile, rows - begin);
      r.head = head;
      r.begun = false;
    }
    run = std::span(tiles).first(count);
  }

  /// Calls body(r) for each query tile r of the run that sees keys of the tile at `key_begin`, in order; before the first
  /// of them load(), which finds begin and keys in key_tile, and before r's first key tile begin(r). Returns whether there
  /// was one.
  template <class Begin, class Load, class Body>
  [[gnu::always_inline]] bool meet_keys(const Call& call, std::int64_t key_begin, const Begin& begin, const Load& load,
                                        const Body& body) {
    bool loaded = false;
    for (RowTile& r : run) {
      if (!meet(r.pair, call.queries, call.keys, call.settings.tile, r.begin, key_begin)) continue;
      if (!loaded) {
        key_tile.begin = key_begin;
        key_tile.keys = r.pair.keys;
        load();
      }
      loaded = true;
      if (!r.begun) begin(r);
      r.begun = true;
      body(r);
    }
    return loaded;
  }
};

inline Scratch& scratch_of_thread() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace capstan::kernels::cpu
