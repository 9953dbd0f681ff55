#pragma once
// Score terms of a query tile and a key tile, forward and their adjoints, for the `cpu` attention tile: which of the term files
// is asked for what, and where its results go.

#include "kernels/attention_call_cpu.h"

namespace capstan::kernels::cpu {

/// Rows of a sum [keys][row_stride(padded_columns)], from column `from` on, added to rows row_of(j) of `target` [T, G, D].
template <class RowOf>
[[gnu::always_inline]] inline void add_to_keys(const Call& call, const View& target, const float* sum,
                                               std::int64_t keys, const RowOf& row_of, std::int64_t head,
                                               std::int64_t from, std::int64_t padded_columns) {
  float* out = target.as<float>();
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = out + call.key_at(row_of(j), head);
    for (std::int64_t d = 0; d < call.depth; ++d) row[d] += sum[j * row_stride(padded_columns) + from + d];
  }
}

/// Order-free terms, after those that are carried.
template <int L, int W>
[[gnu::always_inline]] inline void add_order_free(const Call& call, RowConstants& before, KeyTile& t, RowTile& r) {
  float* logit = t.logit.data();
  add_constants<L, W>(logit, before, t.keys);
  if (r.offset.present)
    add_offset_bias<L, W>(r.offset, logit, call.keys.terms.offset.as<std::int64_t>() + call.at(t.begin, r.head),
                          call.heads, t.keys);
  if (!r.distance.present) return;
  find_distances<L>(r.distance, call.keys.position.as<std::int64_t>() + t.begin, r.pair);
  add_distance_bias<L>(r.distance, bool(call.settings.shared.slope), logit, t.keys);
  if (r.fire.fire.width > 0) add_fire_bias<L, W>(r.fire, logit, r.distance.distance.data(), t.keys);
}

/// Its adjoint; what rows and heads get stays in lanes.
template <int L, int W>
[[gnu::always_inline]] inline void order_free_backward(const Call& call, const AttentionGradients& out, KeyTile& t,
                                                       RowTile& r) {
  const float* d_logit = t.d_logit.data();
  if (r.offset.present) {
    float* d_key = out.keys.offset ? out.keys.offset.as<float>() + call.at(t.begin, r.head) : nullptr;
    offset_backward<L, W>(r.offset, d_logit, d_key, call.heads, t.keys);
  }
  if (!r.distance.present) return;
  const View& d_table = out.shared.distance_table;
  distance_backward<L, W>(r.distance, d_table ? d_table.as<float>() + r.head * d_table.dim(1) : nullptr, d_logit,
                          t.keys);
  if (r.fire.fire.width > 0) fire_backward<L, W>(r.fire, d_logit, r.distance.distance.data(), t.keys);
}

/// What multiplies the weights in O.
template <int L> [[gnu::always_inline]] inline void find_kept(const Call& call, KeyTile& t, const RowTile& r) {
  const std::uint32_t threshold = dropout_threshold(call.settings.dropout.rate), *masks = r.masks.data();
  const float factor = float(1 / (1 - call.settings.dropout.rate));
  const std::int64_t* index = call.keys.index.as<std::int64_t>() + t.begin;
  for (std::int64_t j = 0; j < t.keys; ++j)
    for (int lane = 0; lane < L; ++lane)
      t.kept[j * L + lane] = is_dropped(masks[lane], std::uint32_t(index[j]), threshold) ? 0.0f : factor;
}

/// Gates and biases of a tile in forward; the scores s q·k are in t.logit. Returns what remains to be added.
template <int L, int W>
[[gnu::always_inline]] inline RowConstants gated_forward(const Call& call, const AttentionState& state, KeyTile& t,
                                                         RowTile& r, AttentionStats& stats) {
  const TilePair& pair = r.pair;
  bool all_flat = true;
  for (GatedLanes& g : r.sums) {
    g.find_gates(pair);
    const bool summed = g.gates.any && !g.saturated(pair);
    all_flat = all_flat && terms::TilePath(summed, g.gates, true).flat;
    g.path = terms::TilePath(summed, g.gates, call.settings.flat_tiles);
    read_gates<L, W>(g, t.logit.data(), pair, r.head);
    if (summed)  // the farthest tile so far
      state.horizon[g.which].as<std::int64_t>()[call.horizon_at(r.begin, r.head)] = call.first_key(pair);
  }
  const RowConstants rest = add_gated_biases<L, W>(r.sums, t.logit.data(), pair);
  for (GatedLanes& g : r.sums) {
    // A saturated tile leaves the carry alone, also on the general path, so that both paths leave the same state.
    for (std::int64_t lane = 0; g.path.summed && lane < r.rows; ++lane) g.carry[lane] += g.fixed_total(lane);
    for (std::int64_t lane = 0; g.which == 0 && g.evaluated() && lane < r.rows; ++lane) {
      stats.gate_sum += double(g.total[lane]);
      stats.gates += __builtin_popcountll(g.gates.has[lane]);
    }
  }
  stats.saturated_tiles += all_flat;
  return rest;
}

/// The same biases once more in backward: entry carries are what came in less what the tile adds (exact integers).
template <int L, int W>
[[gnu::always_inline]] inline RowConstants gated_again(const Call& call, const AttentionSaved& saved, KeyTile& t,
                                                       RowTile& r) {
  const TilePair& pair = r.pair;
  for (GatedLanes& g : r.sums) {
    const std::int64_t horizon = saved.horizon[g.which].as<std::int64_t>()[call.horizon_at(r.begin, r.head)];
    g.find_gates(pair);
    const bool summed = g.gates.any && horizon >= 0 && call.first_key(pair) >= horizon;
    g.path = terms::TilePath(summed, g.gates, call.settings.flat_tiles);
    read_gates<L, W>(g, t.logit.data(), pair, r.head);
    for (std::int64_t lane = 0; summed && lane < r.rows; ++lane) g.carry[lane] -= g.fixed_total(lane);
  }
  return add_gated_biases<L, W>(r.sums, t.logit.data(), pair);
}

/// Adjoint of gates that have scores of their own: d_u → gate_q (in lanes) and gate_k.
template <int L, int W>
[[gnu::always_inline]] inline void separate_gates_backward(const Call& call, GatedLanes& g,
                                                           const AttentionGradients& out, const float* d_sum,
                                                           KeyTile& t, RowTile& r) {
  float* d_u = t.d_score.data();
  if (g.path.flat) std::fill_n(d_u + (t.keys - 1) * L, L, 0.0f);
  else std::fill_n(d_u, t.keys * L, 0.0f);
  positions_backward<L, W>(g, d_u, t.d_logit.data(), d_sum, r.pair);
  if (!g.evaluated()) return;
  gate_scores_backward<L, W>(g, d_u);
  const View& dk = call.keys.terms.gate_k[g.which] ? out.keys.gate_k[g.which] : out.dk;
  if (dk)
    add_to_keys(
        call, dk, g.key_sum.data(),
        std::ssize(g.gate_row), [&](std::int64_t j) __attribute__((always_inline)) { return g.gate_row[j]; }, r.head, 0,
        g.depth_p);
}

/// From d_logit in t.d_logit and its sums over keys, if known; returns the gradient of the scores s q·k, which gates of q and k
/// join.
template <int L, int W>
[[gnu::always_inline]] inline const float* terms_backward(const Call& call, const AttentionGradients& out,
                                                          const float* d_sum, KeyTile& t, RowTile& r) {
  if (r.order_free) order_free_backward<L, W>(call, out, t, r);
  int joined = 0;
  for (GatedLanes& g : r.sums) {
    joined += !g.separate;
    if (g.separate) separate_gates_backward<L, W>(call, g, out, d_sum, t, r);
  }
  float* d_score = t.d_logit.data();  // one sum may add to what it reads
  if (joined > 1) {
    d_score = t.d_score.data();
    std::copy_n(t.d_logit.data(), t.keys * L, d_score);
  }
  for (GatedLanes& g : r.sums)
    if (!g.separate) positions_backward<L, W>(g, d_score, t.d_logit.data(), d_sum, r.pair);
  return d_score;
}

/// Gradients of rows and of shared weights that were summed in lanes; fire_shared: see add_fire_gradients.
template <int L>
void end_terms(const Call& call, const AttentionGradients& out, const AttentionBackwardState& state, RowTile& r,
               float* fire_shared) {
  for (GatedLanes& g : r.sums) {
    if (const View& d_table = out.rows.table[g.which])
      scatter_rows(d_table, g.dtable_t.data(), r.begin, r.rows, r.head, L, 1, Into::add);
    const View& dq = call.queries.terms.gate_q[g.which] ? out.rows.gate_q[g.which] : out.dq;
    if (g.separate && dq) scatter_rows(dq, g.dq_t.data(), r.begin, r.rows, r.head, L, call.scale, Into::add);
    r.write(state.carry[g.which], g.carry.data(), call);
    r.write(state.gate_grad[g.which], g.gate_grad.data(), call);
  }
  if (r.offset.present) r.offset.end_head(out.rows, r.begin, r.rows, r.head);
  if (r.distance.present) r.distance.end_head(out.rows, r.begin, r.rows, r.head);
  if (r.fire.fire.width > 0) add_fire_gradients<L>(r.fire, out.shared.fire, r.head, fire_shared);
}

}  // namespace capstan::kernels::cpu
