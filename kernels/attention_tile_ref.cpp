// The naive attention tile, one row at a time, in float or double.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention_devices.h"
#include "kernels/dropout.h"
#include "kernels/terms/distance.h"
#include "kernels/terms/fire.h"
#include "kernels/terms/gated_sum.h"
#include "kernels/terms/offset.h"
#include "kernels/tile_mask.h"

namespace capstan::kernels::ref {

namespace {

using terms::Fire;
using terms::TileGates;
using terms::TilePath;

/// The view's elements from an offset on, or null.
template <class T> T* pointer(const View& view, std::int64_t offset) { return view ? view.as<T>() + offset : nullptr; }

/// One call, for element type Real: extents, and where everything lies.
template <class Real> struct Problem {
  const QueryChunk& queries;
  const KeyChunk& keys;
  const AttentionSettings& settings;
  std::int64_t heads, groups, depth, columns;
  Real scale;

  Problem(const QueryChunk& queries_in, const KeyChunk& keys_in, const AttentionSettings& settings_in)
      : queries(queries_in), keys(keys_in), settings(settings_in), heads(queries.q.dim(1)), groups(keys.k.dim(1)),
        depth(queries.q.dim(2)), columns(keys.z ? 2 * depth : depth), scale(Real(1 / std::sqrt(double(depth)))) {}

  std::int64_t query_index(std::int64_t row) const { return queries.index.as<std::int64_t>()[row]; }
  std::int64_t key_index(std::int64_t key) const { return keys.index.as<std::int64_t>()[key]; }
  /// Entry [row, head] of a tensor [T, H].
  std::int64_t at(std::int64_t row, std::int64_t head) const { return row * heads + head; }
  /// Entry [key, group of head, 0] of a tensor [T, G, D].
  std::int64_t key_at(std::int64_t key, std::int64_t head) const {
    return (key * groups + head / (heads / groups)) * depth;
  }
  /// A row table, or null.
  const Real* row_table(const View& table, std::int64_t row, std::int64_t head) const {
    return table ? table.as<Real>() + at(row, head) * table.dim(2) : nullptr;
  }
  /// Column e of U_j = [v_j ; z_j].
  Real value(std::int64_t key, std::int64_t head, std::int64_t e) const {
    return e < depth ? keys.v.as<Real>()[key_at(key, head) + e] : keys.z.as<Real>()[key_at(key, head) + e - depth];
  }
  /// s a·b, summed in double.
  Real score(const Real* a, const Real* b) const {
    double sum = 0;
    for (std::int64_t d = 0; d < depth; ++d) sum += double(a[d]) * double(b[d]);
    return Real(sum) * scale;
  }

  bool has_sum(int which) const { return settings.gates[which].gates != Gates::none; }
  std::int64_t last(int which) const { return queries.terms.table[which].dim(2) - 1; }
  const View& gate_q(int which) const { return queries.terms.gate_q[which] ? queries.terms.gate_q[which] : queries.q; }
  const View& gate_k(int which) const { return keys.terms.gate_k[which] ? keys.terms.gate_k[which] : keys.k; }
  /// Row of gate_k that belongs to a key with a gate.
  std::int64_t gate_row(int which, std::int64_t key) const {
    const GateRule& rule = settings.gates[which];
    return rule.gates == Gates::block_ends ? (key_index(key) - key_index(0)) / rule.block : key;
  }
};

/// One head of a tile pair: its gates, and how it goes, per gated sum.
struct TileHead {
  const TilePair& tile;
  std::int64_t head;
  std::array<TileGates, gated_sums> gates;
  std::array<TilePath, gated_sums> path;
};

/// What is the same for all heads of a tile pair.
template <class Real> std::array<TileGates, gated_sums> gates_of(const Problem<Real>& p, const TilePair& tile) {
  std::array<TileGates, gated_sums> gates{};
  for (int which = 0; which < gated_sums; ++which)
    if (p.has_sum(which))
      terms::find_gates(gates[which], p.settings.gates[which], tile, p.queries.index.template as<std::int64_t>(),
                        p.keys.index.template as<std::int64_t>());
  return gates;
}

/// A row of a tile, step by step.
template <class Real> struct Row {
  const Problem<Real>& p;
  const TileHead& t;
  std::int64_t row, head, keys, first;  ///< first: first key of the tile in the chunk
  std::uint64_t allowed;
  Real score[largest_tile], logit[largest_tile];
  Real gate[gated_sums][largest_tile], position[gated_sums][largest_tile];

  Row(const Problem<Real>& problem, const TileHead& tile_head, std::int64_t i)
      : p(problem), t(tile_head), row(t.tile.query_begin + i), head(t.head), keys(t.tile.keys), first(t.tile.key_begin),
        allowed(t.tile.mask.allowed[i]) {
    const Real* q = p.queries.q.template as<Real>() + p.at(row, head) * p.depth;
    for (std::int64_t j = 0; j < keys; ++j)
      logit[j] = score[j] = p.score(q, p.keys.k.template as<Real>() + p.key_at(first + j, head));
  }

  bool sees(std::int64_t j) const { return allowed >> j & 1; }
  std::uint64_t has(int which) const { return t.gates[which].has[row - t.tile.query_begin]; }
  std::int64_t distance(std::int64_t j) const {
    return p.queries.position.template as<std::int64_t>()[row] - p.keys.position.template as<std::int64_t>()[first + j];
  }
  std::int64_t row_position() const { return p.queries.position.template as<std::int64_t>()[row]; }
  std::int64_t offset(std::int64_t j) const {
    return p.queries.terms.offset.template as<std::int64_t>()[p.at(row, head)] -
           p.keys.terms.offset.template as<std::int64_t>()[p.at(first + j, head)];
  }

  /// u_k of keys with a gate.
  void gate_logits(int which, Real* u) const {
    const Real* q = p.gate_q(which).template as<Real>() + p.at(row, head) * p.depth;
    for (std::int64_t j = 0; j < keys; ++j)
      if (has(which) >> j & 1)
        u[j] = p.score(q, p.gate_k(which).template as<Real>() + p.key_at(p.gate_row(which, first + j), head));
  }

  /// Fills gate and position; returns the tile's gate sum.
  terms::GateSum<Real> sum_gates(int which, Real carry) {
    Real u[largest_tile];
    const Real last = Real(p.last(which)), floor = Real(p.settings.gates[which].floor);
    const TilePath& path = t.path[which];
    const bool evaluated = path.summed || !path.flat;
    if (evaluated) gate_logits(which, u);
    if (path.flat)
      return terms::flat_positions(gate[which], position[which], u, evaluated ? has(which) : 0, keys, carry, last,
                                   floor);
    return terms::positions(gate[which], position[which], u, has(which), keys, carry, last, floor);
  }

  void add_gated_bias(int which) {
    const Real* table = p.row_table(p.queries.terms.table[which], row, head);
    for (std::int64_t j = 0; j < keys; ++j) logit[j] += terms::Interpolation<Real>(position[which][j]).value(table);
  }

  /// Terms that need no order.
  void add_order_free() {
    const RowTerms& rows = p.queries.terms;
    const SharedTerms& shared = p.settings.shared;
    const Real *offset_table = p.row_table(rows.offset_table, row, head),
               *relative = p.row_table(rows.relative, row, head);
    const Fire<Real> fire = shared.fire.in ? Fire<Real>(shared.fire, head, shared.fire.in.dim(0)) : Fire<Real>();
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!sees(j)) continue;
      if (rows.offset)
        logit[j] += terms::offset_bias(offset(j), offset_table, offset_table ? rows.offset_table.dim(2) - 1 : 0);
      if (relative) logit[j] += terms::table_bias(relative, rows.relative.dim(2) - 1, distance(j));
      if (shared.slope) logit[j] += terms::slope_bias(shared.slope.as<Real>()[head], distance(j));
      if (const View& table = shared.distance_table) {
        const std::int64_t n = table.dim(1);
        logit[j] += terms::table_bias(table.as<Real>() + head * n, n - 1, distance(j));
      }
      if (fire.width > 0) logit[j] += terms::fire_bias(fire, distance(j), row_position());
    }
  }

  /// What multiplies the weight of key j in O.
  Real kept(std::int64_t j) const {
    const WeightDropout& dropout = p.settings.dropout;
    if (dropout.rate == 0) return 1;
    const std::uint32_t masks =
        dropout_row(dropout.seed, std::uint64_t(dropout.first_head + head), std::uint64_t(p.query_index(row)));
    const bool dropped = is_dropped(masks, std::uint32_t(p.key_index(first + j)), dropout_threshold(dropout.rate));
    return dropped ? Real(0) : Real(1 / (1 - dropout.rate));
  }
};

/// m' = max(m, max logit); l, o rescaled by e^{m-m'}; then the tile's keys added.
template <class Real> void softmax_step(const Row<Real>& r, const AttentionState& state) {
  const std::int64_t at = r.p.at(r.row, r.head), columns = r.p.columns;
  Real &m = state.m.as<Real>()[at], &l = state.l.as<Real>()[at];
  Real* o = state.o.as<Real>() + at * columns;
  Real highest = m;
  for (std::int64_t j = 0; j < r.keys; ++j)
    if (r.sees(j)) highest = std::max(highest, r.logit[j]);
  const Real shrink = std::exp(m - highest);
  m = highest;
  l *= shrink;
  for (std::int64_t e = 0; e < columns; ++e) o[e] *= shrink;
  for (std::int64_t j = 0; j < r.keys; ++j) {
    if (!r.sees(j)) continue;
    const Real weight = std::exp(r.logit[j] - highest), kept = weight * r.kept(j);
    l += weight;
    for (std::int64_t e = 0; e < columns; ++e) o[e] += kept * r.p.value(r.first + j, r.head, e);
  }
}

/// True if every row with an allowed key in the tile entered it with carry >= P.
template <class Real>
bool is_saturated(const View& carry, const Problem<Real>& p, const TilePair& tile, std::int64_t head, int which) {
  for (std::int64_t i = 0; i < tile.rows; ++i)
    if (tile.mask.allowed[i] &&
        !terms::saturated<Real>(carry.as<std::int64_t>()[p.at(tile.query_begin + i, head)], p.last(which)))
      return false;
  return true;
}

template <class Real>
void forward_tile(const Problem<Real>& p, const AttentionState& state, const TileHead& t, AttentionStats& stats) {
  for (std::int64_t i = 0; i < t.tile.rows; ++i) {
    if (!t.tile.mask.allowed[i]) continue;
    Row<Real> r(p, t, i);
    for (int which = 0; which < gated_sums; ++which) {
      if (!p.has_sum(which)) continue;
      const TilePath& path = t.path[which];
      std::int64_t& carry = state.carry[which].as<std::int64_t>()[p.at(r.row, r.head)];
      const terms::GateSum<Real> sum = r.sum_gates(which, terms::carry_value<Real>(carry, p.last(which)));
      r.add_gated_bias(which);
      // A saturated tile leaves the carry alone, also on the general path, so that both paths leave the same state.
      if (path.summed) carry += terms::fixed_sum(sum);
      if (which > 0 || (path.flat && !path.summed)) continue;
      stats.gate_sum += double(sum.high);
      stats.gates += __builtin_popcountll(r.has(which));
    }
    r.add_order_free();
    softmax_step(r, state);
  }
}

/// dU_j += A dO and d_logit_j = A (dO·U_j - delta), with A_j = exp(logit_j - lse).
template <class Real>
void weights_backward(const Row<Real>& r, const AttentionGradients& out, const View& d_o, const AttentionSaved& saved,
                      Real* d_logit) {
  const Problem<Real>& p = r.p;
  const std::int64_t at = p.at(r.row, r.head);
  const Real* d_out = d_o.as<Real>() + at * p.columns;
  const Real lse = saved.lse.as<Real>()[at], delta = saved.delta.as<Real>()[at];
  Real *dv = out.dv.as<Real>(), *dz = pointer<Real>(out.dz, 0);
  for (std::int64_t j = 0; j < r.keys; ++j) {
    d_logit[j] = 0;
    if (!r.sees(j)) continue;
    const Real weight = std::exp(r.logit[j] - lse), kept = r.kept(j);
    const std::int64_t key = p.key_at(r.first + j, r.head);
    Real product = 0;
    for (std::int64_t e = 0; e < p.columns; ++e) {
      product += d_out[e] * p.value(r.first + j, r.head, e);
      if (e < p.depth) dv[key + e] += weight * kept * d_out[e];
      else if (dz) dz[key + e - p.depth] += weight * kept * d_out[e];
    }
    d_logit[j] = weight * (kept * product - delta);
  }
}

/// d_a += s d b and d_b += s d a, of s a·b; d_a and d_b may be null.
template <class Real>
void score_backward(const Problem<Real>& p, Real* d_a, Real* d_b, Real d, const Real* a, const Real* b) {
  for (std::int64_t e = 0; e < p.depth; ++e) {
    if (d_a) d_a[e] += p.scale * d * b[e];
    if (d_b) d_b[e] += p.scale * d * a[e];
  }
}

/// From d_logit: the table's gradient, and d_u, which joins d_score where the gates are made of q and k.
template <class Real>
void gated_backward(const Row<Real>& r, const AttentionGradients& out, Real& gate_grad, int which, const Real* d_logit,
                    Real* d_score) {
  const Problem<Real>& p = r.p;
  const std::int64_t at = p.at(r.row, r.head);
  const bool shared = !p.queries.terms.gate_q[which] && !p.keys.terms.gate_k[which];
  Real separate[largest_tile] = {};
  Real* d_u = shared ? d_score : separate;
  terms::positions_backward(d_u, pointer<Real>(out.rows.table[which], at * (p.last(which) + 1)), gate_grad, d_logit,
                            r.gate[which], r.position[which], p.row_table(p.queries.terms.table[which], r.row, r.head),
                            r.allowed, r.has(which), r.keys, Real(p.settings.gates[which].floor));
  if (shared) return;
  const View &dq = p.queries.terms.gate_q[which] ? out.rows.gate_q[which] : out.dq,
             &dk = p.keys.terms.gate_k[which] ? out.keys.gate_k[which] : out.dk;
  for (std::int64_t j = 0; j < r.keys; ++j) {
    if (!(r.has(which) >> j & 1)) continue;
    const std::int64_t key = p.key_at(p.gate_row(which, r.first + j), r.head);
    score_backward(p, pointer<Real>(dq, at * p.depth), pointer<Real>(dk, key), d_u[j],
                   p.gate_q(which).template as<Real>() + at * p.depth, p.gate_k(which).template as<Real>() + key);
  }
}

/// Adjoint of add_order_free.
template <class Real> void order_free_backward(const Row<Real>& r, const AttentionGradients& out, const Real* d_logit) {
  const Problem<Real>& p = r.p;
  const RowTerms& rows = p.queries.terms;
  const SharedTerms& shared = p.settings.shared;
  const std::int64_t at = p.at(r.row, r.head), last_offset = rows.offset_table ? rows.offset_table.dim(2) - 1 : 0;
  const std::int64_t width = shared.fire.in ? shared.fire.in.dim(0) : 0;
  const Fire<Real> fire = width > 0 ? Fire<Real>(shared.fire, r.head, width) : Fire<Real>();
  const Fire<Real> d_fire = width > 0 ? Fire<Real>(out.shared.fire, r.head, width) : Fire<Real>();
  for (std::int64_t j = 0; j < r.keys; ++j) {
    if (!r.sees(j)) continue;
    if (rows.offset) {
      const Real d =
          terms::offset_bias_backward(pointer<Real>(out.rows.offset_table, at * (last_offset + 1)), d_logit[j],
                                      r.offset(j), p.row_table(rows.offset_table, r.row, r.head), last_offset);
      if (out.rows.offset) out.rows.offset.as<Real>()[at] += d;
      if (out.keys.offset) out.keys.offset.as<Real>()[p.at(r.first + j, r.head)] -= d;
    }
    if (const View& d_table = out.rows.relative)
      terms::table_bias_backward(d_table.as<Real>() + at * d_table.dim(2), d_logit[j], d_table.dim(2) - 1,
                                 r.distance(j));
    if (const View& d_table = out.shared.distance_table)
      terms::table_bias_backward(d_table.as<Real>() + r.head * d_table.dim(1), d_logit[j], d_table.dim(1) - 1,
                                 r.distance(j));
    if (width > 0) terms::fire_bias_backward(d_fire, d_logit[j], fire, r.distance(j), r.row_position());
  }
}

/// Backward of forward_tile. Carry and gate_grad enter as they stand beyond the tile and leave as they stand before it.
template <class Real>
void backward_tile(const Problem<Real>& p, const AttentionGradients& out, const AttentionBackwardState& state,
                   const View& d_o, const AttentionSaved& saved, const TileHead& t) {
  for (std::int64_t i = 0; i < t.tile.rows; ++i) {
    if (!t.tile.mask.allowed[i]) continue;
    Row<Real> r(p, t, i);
    const std::int64_t at = p.at(r.row, r.head);
    for (int which = 0; which < gated_sums; ++which) {
      if (!p.has_sum(which)) continue;
      std::int64_t& carry = state.carry[which].as<std::int64_t>()[at];
      // Entry carry: what came in less what this tile adds (exact integers).
      if (t.path[which].summed) carry -= terms::fixed_sum(r.sum_gates(which, Real(0)));
      r.sum_gates(which, terms::carry_value<Real>(carry, p.last(which)));
      r.add_gated_bias(which);
    }
    r.add_order_free();
    Real d_logit[largest_tile], d_score[largest_tile];
    weights_backward(r, out, d_o, saved, d_logit);
    std::copy_n(d_logit, r.keys, d_score);
    for (int which = 0; which < gated_sums; ++which)
      if (p.has_sum(which)) gated_backward(r, out, state.gate_grad[which].as<Real>()[at], which, d_logit, d_score);
    order_free_backward(r, out, d_logit);
    for (std::int64_t j = 0; j < r.keys; ++j) {  // score = s q·k
      const std::int64_t key = p.key_at(r.first + j, r.head);
      score_backward(p, out.dq.as<Real>() + at * p.depth, out.dk.as<Real>() + key, d_score[j],
                     p.queries.q.template as<Real>() + at * p.depth, p.keys.k.template as<Real>() + key);
    }
  }
}

/// Saturation is found out now, and the horizon set where gates are summed.
template <class Real>
TilePath forward_path(const Problem<Real>& p, const AttentionState& state, const TilePair& tile, const TileGates& gates,
                      std::int64_t head, int which) {
  if (!p.has_sum(which)) return {false, gates, true};
  const bool summed = gates.any && !is_saturated(state.carry[which], p, tile, head, which);
  if (summed)
    state.horizon[which].as<std::int64_t>()[p.at(tile.query_begin / p.settings.tile, head)] =
        p.key_index(tile.key_begin);
  return {summed, gates, p.settings.flat_tiles};
}

/// The same answer from the horizon.
template <class Real>
TilePath backward_path(const Problem<Real>& p, const AttentionSaved& saved, const TilePair& tile,
                       const TileGates& gates, std::int64_t head, int which) {
  if (!p.has_sum(which)) return {false, gates, true};
  const std::int64_t horizon = saved.horizon[which].as<std::int64_t>()[p.at(tile.query_begin / p.settings.tile, head)];
  return {gates.any && horizon >= 0 && p.key_index(tile.key_begin) >= horizon, gates, p.settings.flat_tiles};
}

/// Every gated sum there is, is flat (or would be, where flat tiles are off).
template <class Real> bool all_flat(const Problem<Real>& p, const TileHead& t) {
  if (!p.has_sum(0) && !p.has_sum(1)) return false;
  for (int which = 0; which < gated_sums; ++which)
    if (p.has_sum(which) && !TilePath(t.path[which].summed, t.gates[which], true).flat) return false;
  return true;
}

/// body(tile, gates, head) for each tile pair of the walk and each head.
template <class Real, class Body> void for_each_tile_head(const Problem<Real>& p, Walk walk, const Body& body) {
  const std::int64_t tile = p.settings.tile;
  TilePair pair;
  for (std::int64_t query_begin = 0; query_begin < p.queries.q.dim(0); query_begin += tile)
    for_each_key_tile(p.keys, tile, walk, [&](std::int64_t key_begin) {
      if (!meet(pair, p.queries, p.keys, tile, query_begin, key_begin)) return;
      const auto gates = gates_of(p, pair);
      for (std::int64_t head = 0; head < p.heads; ++head) body(pair, gates, head);
    });
}

}  // namespace

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  with_real(queries.q.type(), [&](auto real) {
    const Problem<decltype(real)> p(queries, keys, settings);
    for_each_tile_head(p, Walk::near_to_far, [&](const TilePair& tile, const auto& gates, std::int64_t head) {
      const auto path = [&](int which) { return forward_path(p, state, tile, gates[which], head, which); };
      const TileHead t{tile, head, gates, {path(0), path(1)}};
      forward_tile(p, state, t, stats);
      stats.tiles += 1;
      stats.saturated_tiles += all_flat(p, t);
    });
  });
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  with_real(queries.q.type(), [&](auto real) {
    const Problem<decltype(real)> p(queries, keys, settings);
    for_each_tile_head(p, Walk::far_to_near, [&](const TilePair& tile, const auto& gates, std::int64_t head) {
      const auto path = [&](int which) { return backward_path(p, saved, tile, gates[which], head, which); };
      backward_tile(p, out, state, d_o, saved, TileHead{tile, head, gates, {path(0), path(1)}});
    });
  });
}

void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  with_real(queries.q.type(), [&](auto real) {
    using Real = decltype(real);
    const Problem<Real> p(queries, keys, settings);
    for_each_tile_head(p, Walk::near_to_far, [&](const TilePair& tile, const auto& gates, std::int64_t head) {
      const TilePath summed(true, gates[which], settings.flat_tiles);
      const TileHead t{tile, head, gates, {summed, summed}};
      for (std::int64_t i = 0; i < tile.rows; ++i) {
        Row<Real> r(p, t, i);
        sum.as<std::int64_t>()[p.at(r.row, head)] += terms::fixed_sum(r.sum_gates(which, Real(0)));
      }
    });
  });
}

}  // namespace capstan::kernels::ref
