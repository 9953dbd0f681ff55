// The attention tile in f32 SIMD. Keys go down, queries across the lanes: L rows of a query tile lie side by side, so
// that the softmax maximum, a gated sum and its adjoint are vertical operations, and no result depends on which other
// rows are present. Arrays named x_t are transposed: [entry][lane].

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention_devices.h"
#include "kernels/attention_lanes.h"
#include "kernels/dropout.h"
#include "kernels/isa.h"
#include "kernels/terms/distance_lanes.h"
#include "kernels/terms/fire_lanes.h"
#include "kernels/terms/gated_sum_lanes.h"
#include "kernels/terms/offset_lanes.h"

namespace capstan::kernels::cpu {
namespace {

// ---- one call's arrays ----------------------------------------------------------------------------------------------

/// Sizes of a call, and scratch for one (query tile, head).
struct Problem {
  const QueryChunk& queries;
  const KeyChunk& keys;
  const AttentionSettings& settings;
  std::int64_t heads, groups, depth, columns;
  std::int64_t depth_p, columns_p;  ///< padded
  float scale;
  Floats q_t, q_rows, o_t, do_rows, o_part;                 // per row
  Floats k_tile, u_tile, logit, d_logit, d_score, key_sum;  // per tile
  Floats m, l, delta;
  std::vector<GatedLanes> sums;  ///< those that are present
  OffsetLanes offset;
  DistanceLanes distance;
  FireLanes fire;
  bool order_free = false;           ///< any of these three
  std::vector<std::uint32_t> masks;  ///< [lane] keys of dropout, if there is any
  Floats kept;                       ///< [keys][lane] 0 or 1 / (1 - rate)

  Problem(const QueryChunk& queries_in, const KeyChunk& keys_in, const AttentionSettings& settings_in, int lane_count)
      : queries(queries_in), keys(keys_in), settings(settings_in), heads(queries.q.dim(1)), groups(keys.k.dim(1)),
        depth(queries.q.dim(2)), columns(keys.z ? 2 * depth : depth), depth_p(padded(depth)),
        columns_p(padded(columns)), scale(float(1 / std::sqrt(double(depth)))) {
    for (Floats* x : {&q_t, &q_rows}) x->resize(depth_p * lane_count);
    for (Floats* x : {&o_t, &do_rows, &o_part}) x->resize(columns_p * lane_count);
    k_tile.resize(largest_tile * depth_p);
    u_tile.resize(largest_tile * columns_p);
    for (Floats* x : {&logit, &d_logit, &d_score}) x->resize(largest_tile * lane_count);
    key_sum.resize(largest_tile * std::max(depth_p, columns_p));
    for (Floats* x : {&m, &l, &delta}) x->resize(lane_count);
    for (int which = 0; which < gated_sums; ++which)
      if (settings.gates[which].gates != Gates::none)
        sums.emplace_back(which, settings.gates[which], queries, keys, lane_count);
    offset.resize(queries, lane_count);
    distance.resize(queries, settings.shared, lane_count);
    fire.resize(settings.shared, lane_count);
    order_free = offset.present || distance.present;
    if (settings.dropout.rate == 0) return;
    masks.resize(lane_count);
    kept.resize(largest_tile * lane_count);
  }

  std::int64_t at(std::int64_t row, std::int64_t head) const { return row * heads + head; }
  std::int64_t group(std::int64_t head) const { return head / (heads / groups); }
  std::int64_t lane_count() const { return std::ssize(m); }
};

/// Key rows of one kv head, padded: k_tile and, with values, u_tile = [v | z].
void load_keys(Problem& p, const TilePair& tile, std::int64_t head, bool values) {
  const std::int64_t stride = p.groups * p.depth, first = tile.key_begin * stride + p.group(head) * p.depth;
  const float *k = p.keys.k.as<float>() + first, *v = p.keys.v.as<float>() + first;
  const float* z = p.keys.z ? p.keys.z.as<float>() + first : nullptr;
  const std::size_t bytes = std::size_t(p.depth) * sizeof(float);
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    std::memcpy(&p.k_tile[j * p.depth_p], k + j * stride, bytes);
    if (!values) continue;
    std::memcpy(&p.u_tile[j * p.columns_p], v + j * stride, bytes);
    if (z) std::memcpy(&p.u_tile[j * p.columns_p + p.depth], z + j * stride, bytes);
  }
}

/// sum [keys, padded_columns] from column `from` added to rows row_of(j) of `target` [T, G, D].
template <class RowOf>
[[gnu::always_inline]] inline void add_to_keys(const Problem& p, const View& target, const Floats& sum,
                                               std::int64_t keys, const RowOf& row_of, std::int64_t head,
                                               std::int64_t from, std::int64_t padded_columns) {
  const std::int64_t depth = p.depth, stride = p.groups * depth;
  float* out = target.as<float>() + p.group(head) * depth;
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t d = 0; d < depth; ++d) out[row_of(j) * stride + d] += sum[j * padded_columns + from + d];
}

/// What a query tile and head need of the terms, in either direction.
void begin_terms(Problem& p, std::int64_t begin, std::int64_t rows, std::int64_t head) {
  for (GatedLanes& g : p.sums) g.begin_head(begin, rows, head, int(p.lane_count()), p.scale);
  if (p.offset.present) p.offset.begin_head(p.queries, begin, rows, head);
  if (p.distance.present) p.distance.begin_head(p.queries, p.settings.shared, begin, rows, head);
  if (p.fire.fire.width > 0) p.fire.begin_head(p.settings.shared, p.distance.row_position, head);
  const WeightDropout& dropout = p.settings.dropout;
  for (std::int64_t lane = 0; lane < std::ssize(p.masks); ++lane)
    p.masks[lane] = dropout_row(dropout.seed, std::uint64_t(dropout.first_head + head),
                                std::uint64_t(p.queries.index.as<std::int64_t>()[begin + std::min(lane, rows - 1)]));
}

// ---- terms of a tile ------------------------------------------------------------------------------------------------

/// Order-free terms, after those that are carried.
template <int L, int W>
[[gnu::always_inline]] inline void add_order_free(Problem& p, const TilePair& tile, std::int64_t head) {
  float* logit = p.logit.data();
  if (p.offset.present)
    add_offset_bias<L, W>(p.offset, logit, p.keys.terms.offset.as<std::int64_t>() + p.at(tile.key_begin, head), p.heads,
                          tile.keys);
  if (!p.distance.present) return;
  find_distances<L>(p.distance, p.keys.position.as<std::int64_t>() + tile.key_begin, tile);
  add_distance_bias<L>(p.distance, bool(p.settings.shared.slope), logit, tile.keys);
  if (p.fire.fire.width > 0) add_fire_bias<L, W>(p.fire, logit, p.distance.distance.data(), tile.keys);
}

/// Its adjoint; what rows and heads get stays in lanes.
template <int L, int W>
[[gnu::always_inline]] inline void order_free_backward(Problem& p, const AttentionGradients& out, const TilePair& tile,
                                                       std::int64_t head) {
  const float* d_logit = p.d_logit.data();
  if (p.offset.present) {
    float* d_key = out.keys.offset ? out.keys.offset.as<float>() + p.at(tile.key_begin, head) : nullptr;
    offset_backward<L, W>(p.offset, d_logit, d_key, p.heads, tile.keys);
  }
  if (!p.distance.present) return;
  const View& d_table = out.shared.distance_table;
  distance_backward<L, W>(p.distance, d_table ? d_table.as<float>() + head * d_table.dim(1) : nullptr, d_logit,
                          tile.keys);
  if (p.fire.fire.width > 0) fire_backward<L, W>(p.fire, d_logit, p.distance.distance.data(), tile.keys);
}

/// What multiplies the weights in O.
template <int L> [[gnu::always_inline]] inline void find_kept(Problem& p, const TilePair& tile) {
  const std::uint32_t threshold = dropout_threshold(p.settings.dropout.rate), *masks = p.masks.data();
  const float factor = float(1 / (1 - p.settings.dropout.rate));
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    const auto column = std::uint32_t(p.keys.index.as<std::int64_t>()[tile.key_begin + j]);
    for (int lane = 0; lane < L; ++lane)
      p.kept[j * L + lane] = is_dropped(masks[lane], column, threshold) ? 0.0f : factor;
  }
}

/// Gates and biases of a tile in forward; the scores s q·k are in p.logit.
template <int L, int W>
[[gnu::always_inline]] inline void gated_forward(Problem& p, const AttentionState& state, const TilePair& tile,
                                                 std::int64_t head, AttentionStats& stats) {
  bool all_flat = true;
  for (GatedLanes& g : p.sums) {
    g.find_gates(tile);
    const bool summed = g.gates.any && !g.saturated(tile);
    all_flat = all_flat && terms::TilePath(summed, g.gates, true).flat;
    g.path = terms::TilePath(summed, g.gates, p.settings.flat_tiles);
    read_gates<L, W>(g, p.logit.data(), tile, head);
    if (summed)  // the farthest tile so far
      state.horizon[g.which].as<std::int64_t>()[p.at(tile.query_begin / p.settings.tile, head)] =
          p.keys.index.as<std::int64_t>()[tile.key_begin];
  }
  for (GatedLanes& g : p.sums) {
    add_gated_bias<L, W>(g, p.logit.data(), tile);
    // A saturated tile leaves the carry alone, also on the general path, so that both paths leave the same state.
    for (std::int64_t lane = 0; g.path.summed && lane < tile.rows; ++lane) g.carry[lane] += g.fixed_total(lane);
    for (std::int64_t lane = 0; g.which == 0 && g.evaluated() && lane < tile.rows; ++lane) {
      stats.gate_sum += double(g.total[lane]);
      stats.gates += __builtin_popcountll(g.gates.has[lane]);
    }
  }
  stats.saturated_tiles += all_flat;
}

/// The same biases once more in backward: entry carries are what came in less what the tile adds (exact integers).
template <int L, int W>
[[gnu::always_inline]] inline void gated_again(Problem& p, const AttentionSaved& saved, const TilePair& tile,
                                               std::int64_t head) {
  for (GatedLanes& g : p.sums) {
    const std::int64_t horizon =
        saved.horizon[g.which].as<std::int64_t>()[p.at(tile.query_begin / p.settings.tile, head)];
    g.find_gates(tile);
    const bool summed = g.gates.any && horizon >= 0 && p.keys.index.as<std::int64_t>()[tile.key_begin] >= horizon;
    g.path = terms::TilePath(summed, g.gates, p.settings.flat_tiles);
    read_gates<L, W>(g, p.logit.data(), tile, head);
    for (std::int64_t lane = 0; summed && lane < tile.rows; ++lane) g.carry[lane] -= g.fixed_total(lane);
  }
  for (GatedLanes& g : p.sums) add_gated_bias<L, W>(g, p.logit.data(), tile);
}

/// Adjoint of gates that have scores of their own: d_u → gate_q (in lanes) and gate_k.
template <int L, int W>
[[gnu::always_inline]] inline void separate_gates_backward(Problem& p, GatedLanes& g, const AttentionGradients& out,
                                                           const TilePair& tile, std::int64_t head) {
  float* d_u = p.d_score.data();
  std::fill_n(d_u, tile.keys * L, 0.0f);
  positions_backward<L, W>(g, d_u, p.d_logit.data(), tile);
  if (!g.evaluated()) return;
  gate_scores_backward<L, W>(g, d_u);
  const View& dk = p.keys.terms.gate_k[g.which] ? out.keys.gate_k[g.which] : out.dk;
  if (dk)
    add_to_keys(
        p, dk, g.key_sum,
        std::ssize(g.gate_row), [&](std::int64_t j) __attribute__((always_inline)) { return g.gate_row[j]; }, head, 0,
        p.depth_p);
}

/// From d_logit in p.d_logit; returns the gradient of the scores s q·k, which gates of q and k join.
template <int L, int W>
[[gnu::always_inline]] inline const float* terms_backward(Problem& p, const AttentionGradients& out,
                                                          const TilePair& tile, std::int64_t head) {
  if (p.order_free) order_free_backward<L, W>(p, out, tile, head);
  int joined = 0;
  for (GatedLanes& g : p.sums) {
    joined += !g.separate;
    if (g.separate) separate_gates_backward<L, W>(p, g, out, tile, head);
  }
  float* d_score = p.d_logit.data();  // one sum may add to what it reads
  if (joined > 1) {
    d_score = p.d_score.data();
    std::copy_n(p.d_logit.data(), tile.keys * L, d_score);
  }
  for (GatedLanes& g : p.sums)
    if (!g.separate) positions_backward<L, W>(g, d_score, p.d_logit.data(), tile);
  return d_score;
}

// ---- forward --------------------------------------------------------------------------------------------------------

template <int L, int W> [[gnu::always_inline]] inline void softmax_step(Problem& p, const TilePair& tile) {
  float *logit = p.logit.data(), *m = p.m.data(), *l = p.l.data();
  float highest[L], shrink[L];
  for (int lane = 0; lane < L; ++lane) highest[lane] = m[lane];
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane)
      highest[lane] = logit[j * L + lane] > highest[lane] ? logit[j * L + lane] : highest[lane];
  for (int lane = 0; lane < L; ++lane) {
    shrink[lane] = fast_exp(m[lane] - highest[lane]);
    m[lane] = highest[lane];
  }
  float sum[L] = {};  // of the tile alone: one chain over all keys would lose bits as it grows
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      logit[j * L + lane] = fast_exp(logit[j * L + lane] - highest[lane]);
      sum[lane] += logit[j * L + lane];
    }
  for (int lane = 0; lane < L; ++lane) l[lane] = l[lane] * shrink[lane] + sum[lane];
  if (!p.kept.empty()) {
    find_kept<L>(p, tile);
    for (std::int64_t at = 0; at < tile.keys * L; ++at) logit[at] *= p.kept[at];
  }
  float* o = p.o_t.data();
  float* part = p.o_part.data();
  lanes_product<L, W>(part, p.u_tile.data(), 1, p.columns_p, logit, p.columns_p, tile.keys, false);
  for (std::int64_t e = 0; e < p.columns_p; ++e)
    for (int lane = 0; lane < L; ++lane) o[e * L + lane] = o[e * L + lane] * shrink[lane] + part[e * L + lane];
}

template <int L, int W>
[[gnu::always_inline]] inline void forward_head(Problem& p, const AttentionState& state,
                                                const std::vector<TilePair>& pairs, std::int64_t head,
                                                AttentionStats& stats) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  gather_rows(p.q_t.data(), nullptr, p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  gather_rows(p.o_t.data(), nullptr, state.o, begin, rows, head, p.columns_p, L, 1);
  begin_terms(p, begin, rows, head);
  for (std::int64_t lane = 0; lane < L; ++lane) {
    const bool live = lane < rows;
    const std::int64_t at = p.at(begin + lane, head);
    p.m[lane] = live ? state.m.as<float>()[at] : 0;
    p.l[lane] = live ? state.l.as<float>()[at] : 0;
    for (GatedLanes& g : p.sums) g.carry[lane] = live ? state.carry[g.which].as<std::int64_t>()[at] : 0;
  }
  for (const TilePair& tile : pairs) {
    load_keys(p, tile, head, true);
    lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
    stats.tiles += 1;
    if (!p.sums.empty()) gated_forward<L, W>(p, state, tile, head, stats);
    if (p.order_free) add_order_free<L, W>(p, tile, head);
    apply_mask<L>(p.logit.data(), tile, masked);
    softmax_step<L, W>(p, tile);
  }
  scatter_rows(state.o, p.o_t.data(), begin, rows, head, L, 1, Into::overwrite);
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    const std::int64_t at = p.at(begin + lane, head);
    state.m.as<float>()[at] = p.m[lane];
    state.l.as<float>()[at] = p.l[lane];
    for (const GatedLanes& g : p.sums) state.carry[g.which].as<std::int64_t>()[at] = g.carry[lane];
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

/// A = exp(logit - lse) in p.logit (what O was made of, once dropped); d_logit = A (dO·U - delta).
template <int L, int W>
[[gnu::always_inline]] inline void weights_backward(Problem& p, const TilePair& tile, const float* do_t) {
  float *weight = p.logit.data(), *d_logit = p.d_logit.data();
  lanes_product<L, W>(d_logit, p.u_tile.data(), p.columns_p, 1, do_t, tile.keys, p.columns_p, false);
  if (p.kept.empty()) {
    for (std::int64_t j = 0; j < tile.keys; ++j)
      for (int lane = 0; lane < L; ++lane) {
        weight[j * L + lane] = fast_exp(weight[j * L + lane] - p.m[lane]);
        d_logit[j * L + lane] = weight[j * L + lane] * (d_logit[j * L + lane] - p.delta[lane]);
      }
    return;
  }
  find_kept<L>(p, tile);
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      const std::int64_t at = j * L + lane;
      const float full = fast_exp(weight[at] - p.m[lane]);
      d_logit[at] = full * (p.kept[at] * d_logit[at] - p.delta[lane]);
      weight[at] = full * p.kept[at];
    }
}

template <int L, int W>
[[gnu::always_inline]] inline void backward_tile(Problem& p, const AttentionGradients& out, const AttentionSaved& saved,
                                                 const TilePair& tile, std::int64_t head, const float* do_t,
                                                 float* dq_t) {
  load_keys(p, tile, head, true);
  lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
  if (!p.sums.empty()) gated_again<L, W>(p, saved, tile, head);
  if (p.order_free) add_order_free<L, W>(p, tile, head);
  apply_mask<L>(p.logit.data(), tile, masked);
  weights_backward<L, W>(p, tile, do_t);
  // dU += A dO
  keys_product<L, W>(p.key_sum.data(), p.logit.data(), p.do_rows.data(), tile.keys, p.columns_p);
  const std::int64_t first = tile.key_begin;
  const auto row_of = [first](std::int64_t j) __attribute__((always_inline)) { return first + j; };
  const auto add_sum = [&](const View& target, std::int64_t from, std::int64_t padded_columns)
      __attribute__((always_inline)) {
    add_to_keys(p, target, p.key_sum, tile.keys, row_of, head, from, padded_columns);
  };
  add_sum(out.dv, 0, p.columns_p);
  if (out.dz) add_sum(out.dz, p.depth, p.columns_p);
  const float* d_score = terms_backward<L, W>(p, out, tile, head);
  // dq += s d k (s when stored), dk += d (s q)
  lanes_product<L, W>(dq_t, p.k_tile.data(), 1, p.depth_p, d_score, p.depth_p, tile.keys, true);
  keys_product<L, W>(p.key_sum.data(), d_score, p.q_rows.data(), tile.keys, p.depth_p);
  add_sum(out.dk, 0, p.depth_p);
}

/// Gradients of rows and of shared weights that were summed in lanes.
template <int L>
void end_terms(Problem& p, const AttentionGradients& out, const AttentionBackwardState& state, std::int64_t begin,
               std::int64_t rows, std::int64_t head) {
  for (GatedLanes& g : p.sums) {
    if (const View& d_table = out.rows.table[g.which])
      scatter_rows(d_table, g.dtable_t.data(), begin, rows, head, L, 1, Into::add);
    const View& dq = p.queries.terms.gate_q[g.which] ? out.rows.gate_q[g.which] : out.dq;
    if (g.separate && dq) scatter_rows(dq, g.dq_t.data(), begin, rows, head, L, p.scale, Into::add);
    for (std::int64_t lane = 0; lane < rows; ++lane) {
      state.carry[g.which].as<std::int64_t>()[p.at(begin + lane, head)] = g.carry[lane];
      state.gate_grad[g.which].as<float>()[p.at(begin + lane, head)] = g.gate_grad[lane];
    }
  }
  if (p.offset.present) p.offset.end_head(out.rows, begin, rows, head);
  if (p.distance.present) p.distance.end_head(out.rows, begin, rows, head);
  if (p.fire.fire.width > 0) add_fire_gradients<L>(p.fire, out.shared.fire, head);
}

template <int L, int W>
[[gnu::always_inline]] inline void backward_head(Problem& p, const AttentionGradients& out,
                                                 const AttentionBackwardState& state, const View& d_o,
                                                 const AttentionSaved& saved, const std::vector<TilePair>& pairs,
                                                 std::int64_t head) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  gather_rows(p.q_t.data(), p.q_rows.data(), p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  gather_rows(p.o_t.data(), p.do_rows.data(), d_o, begin, rows, head, p.columns_p, L, 1);  // o_t holds dO here
  begin_terms(p, begin, rows, head);
  Floats dq_t(p.depth_p * L, 0.0f);
  for (std::int64_t lane = 0; lane < L; ++lane) {
    const bool live = lane < rows;
    const std::int64_t at = p.at(begin + lane, head);
    p.m[lane] = live ? saved.lse.as<float>()[at] : 0;
    p.delta[lane] = live ? saved.delta.as<float>()[at] : 0;
    for (GatedLanes& g : p.sums) {
      g.carry[lane] = live ? state.carry[g.which].as<std::int64_t>()[at] : 0;
      g.gate_grad[lane] = live ? state.gate_grad[g.which].as<float>()[at] : 0;
    }
  }
  for (const TilePair& tile : pairs) backward_tile<L, W>(p, out, saved, tile, head, p.o_t.data(), dq_t.data());
  scatter_rows(out.dq, dq_t.data(), begin, rows, head, L, p.scale, Into::add);
  end_terms<L>(p, out, state, begin, rows, head);
}

// ---- gate sums, and the three entries -------------------------------------------------------------------------------

template <int L, int W>
[[gnu::always_inline]] inline void gate_sum_head(Problem& p, const View& total, int which,
                                                 const std::vector<TilePair>& pairs, std::int64_t head) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  GatedLanes& g = p.sums[0].which == which ? p.sums[0] : p.sums[1];
  gather_rows(p.q_t.data(), nullptr, p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  g.begin_head(begin, rows, head, L, p.scale);
  for (const TilePair& tile : pairs) {
    load_keys(p, tile, head, false);
    lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
    g.find_gates(tile);
    if (!g.gates.any) continue;
    g.path = terms::TilePath(true, g.gates, p.settings.flat_tiles);
    read_gates<L, W>(g, p.logit.data(), tile, head);
    for (std::int64_t lane = 0; lane < rows; ++lane)
      total.as<std::int64_t>()[p.at(begin + lane, head)] += g.fixed_total(lane);
  }
}

template <int L, int W> struct Width { static constexpr int lanes = L, registers = W; };

/// Calls body(width, problem, pairs, head) for each query tile and head, compiled for the best instruction set. A chunk
/// of few rows (small tiles, a generated token) gets 16 lanes, else 64.
template <class Body>
void for_each_head(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings, Walk walk,
                   const Body& body) {
  const Isa isa = best_isa();
  const bool few = isa != Isa::portable && std::min(settings.tile, queries.q.dim(0)) <= 16;
  Problem p(queries, keys, settings, few ? 16 : 64);
  for_each_query_tile(queries, keys, settings.tile, walk, [&](std::int64_t, const std::vector<TilePair>& pairs) {
    const auto run = [&](auto width) __attribute__((always_inline)) {
      for (std::int64_t head = 0; head < p.heads; ++head) body(width, p, pairs, head);
    };
    if (isa == Isa::portable) run_portable([&]() __attribute__((always_inline)) { run(Width<64, 4>{}); });
    else if (isa == Isa::avx2 && few) run_avx2([&]() __attribute__((always_inline)) { run(Width<16, 8>{}); });
    else if (isa == Isa::avx2) run_avx2([&]() __attribute__((always_inline)) { run(Width<64, 8>{}); });
    else if (few) run_avx512([&]() __attribute__((always_inline)) { run(Width<16, 16>{}); });
    else run_avx512([&]() __attribute__((always_inline)) { run(Width<64, 16>{}); });
  });
}

}  // namespace

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  for_each_head(
      queries, keys, settings, Walk::near_to_far,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head)
          __attribute__((always_inline)) { forward_head<width.lanes, width.registers>(p, state, pairs, head, stats); });
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  for_each_head(
      queries, keys, settings, Walk::far_to_near,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head) __attribute__((
          always_inline)) { backward_head<width.lanes, width.registers>(p, out, state, d_o, saved, pairs, head); });
}

void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  for_each_head(
      queries, keys, settings, Walk::near_to_far,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head)
          __attribute__((always_inline)) { gate_sum_head<width.lanes, width.registers>(p, sum, which, pairs, head); });
}

}  // namespace capstan::kernels::cpu
