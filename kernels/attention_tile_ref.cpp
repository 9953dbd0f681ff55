// The naive attention tile, one row at a time, in float or double; and the checked entry points of attention_tile.h.

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_devices.h"
#include "kernels/terms/cope.h"
#include "kernels/tile_mask.h"

namespace capstan::kernels {

namespace ref {
namespace {

/// Pointers and extents of one call, for element type Real.
template <class Real> struct Problem {
  const Real *q, *table, *k, *v, *z;
  std::int64_t heads, groups, depth, columns, last;
  Real scale;

  Problem(const QueryChunk& queries, const KeyChunk& keys)
      : q(queries.q.as<Real>()), table(queries.table ? queries.table.as<Real>() : nullptr), k(keys.k.as<Real>()),
        v(keys.v.as<Real>()), z(keys.z ? keys.z.as<Real>() : nullptr), heads(queries.q.dim(1)), groups(keys.k.dim(1)),
        depth(queries.q.dim(2)), columns(keys.z ? 2 * depth : depth),
        last(queries.table ? queries.table.dim(2) - 1 : 0), scale(Real(1 / std::sqrt(double(depth)))) {}

  std::int64_t group(std::int64_t head) const { return head / (heads / groups); }
  const Real* query(std::int64_t row, std::int64_t head) const { return q + (row * heads + head) * depth; }
  const Real* row_table(std::int64_t row, std::int64_t head) const { return table + (row * heads + head) * (last + 1); }
  std::int64_t key_at(std::int64_t key, std::int64_t head) const { return (key * groups + group(head)) * depth; }
  /// Column e of U_j = [v_j ; z_j].
  Real value(std::int64_t key, std::int64_t head, std::int64_t e) const {
    return e < depth ? v[key_at(key, head) + e] : z[key_at(key, head) + e - depth];
  }
  /// u_j = s q·k_j, summed in double.
  void scores(Real* u, std::int64_t row, std::int64_t head, const TilePair& tile) const {
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      double sum = 0;
      for (std::int64_t d = 0; d < depth; ++d)
        sum += double(query(row, head)[d]) * double(k[key_at(tile.key_begin + j, head) + d]);
      u[j] = Real(sum) * scale;
    }
  }
};

/// True if every row with an allowed key in the tile entered it with carry >= P.
template <class Real>
bool is_saturated(const std::int64_t* carry, const Problem<Real>& p, const TilePair& tile, std::int64_t head) {
  for (std::int64_t i = 0; i < tile.rows; ++i)
    if (tile.mask.allowed[i] && !terms::saturated<Real>(carry[(tile.query_begin + i) * p.heads + head], p.last))
      return false;
  return true;
}

/// m' = max(m, max logit); l, o rescaled by e^{m-m'}; then the tile's keys added.
template <class Real>
void softmax_step(const Problem<Real>& p, const AttentionState& state, const TilePair& tile, std::int64_t i,
                  std::int64_t head, std::uint64_t allowed, const Real* logit) {
  const std::int64_t row = tile.query_begin + i, at = row * p.heads + head;
  Real &m = state.m.as<Real>()[at], &l = state.l.as<Real>()[at];
  Real* o = state.o.as<Real>() + at * p.columns;
  Real highest = m;
  for (std::int64_t j = 0; j < tile.keys; ++j)
    if (allowed >> j & 1) highest = std::max(highest, logit[j]);
  const Real shrink = std::exp(m - highest);
  m = highest;
  l *= shrink;
  for (std::int64_t e = 0; e < p.columns; ++e) o[e] *= shrink;
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    if (!(allowed >> j & 1)) continue;
    const Real weight = std::exp(logit[j] - highest);
    l += weight;
    for (std::int64_t e = 0; e < p.columns; ++e) o[e] += weight * p.value(tile.key_begin + j, head, e);
  }
}

template <class Real>
void forward_tile(const Problem<Real>& p, const AttentionState& state, const KeyChunk& keys, const TilePair& tile,
                  std::int64_t head, const AttentionSettings& settings, AttentionStats& stats) {
  const bool cope = settings.term == TermKind::cope;
  std::int64_t* carry = cope ? state.carry.as<std::int64_t>() : nullptr;
  const bool full = cope && is_saturated(carry, p, tile, head);
  if (cope && !full) {  // remember the farthest tile that some row entered unsaturated
    state.horizon.as<std::int64_t>()[tile.query_begin / settings.tile * p.heads + head] =
        keys.index.as<std::int64_t>()[tile.key_begin];
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      const std::int64_t at = (tile.query_begin + i) * p.heads + head;
      state.horizon_carry.as<std::int64_t>()[at] = carry[at];
    }
  }
  stats.tiles += 1;
  stats.saturated_tiles += full;
  Real logit[largest_tile], gate[largest_tile], position[largest_tile];
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::uint64_t allowed = tile.mask.allowed[i];
    if (!allowed) continue;
    const std::int64_t row = tile.query_begin + i, at = row * p.heads + head;
    p.scores(logit, row, head, tile);
    if (cope && full && settings.saturation) {
      for (std::int64_t j = 0; j < tile.keys; ++j) logit[j] += p.row_table(row, head)[p.last];
    } else if (cope) {
      const Real sum = terms::positions(gate, position, logit, allowed, tile.keys,
                                        terms::carry_value<Real>(carry[at], p.last), Real(p.last));
      for (std::int64_t j = 0; j < tile.keys; ++j)
        logit[j] += terms::Interpolation<Real>(position[j]).value(p.row_table(row, head));
      // A saturated tile leaves the carry alone, also on the general path, so that both paths leave the same state.
      if (!full) carry[at] += terms::fixed_sum(sum);
      stats.gate_sum += double(sum);
      stats.gates += __builtin_popcountll(allowed);
    }
    softmax_step(p, state, tile, i, head, allowed, logit);
  }
}

/// dU_j += A dO and d_logit_j = A (dO·U_j - delta), with A_j = exp(logit_j - lse).
template <class Real>
void weights_backward(const Problem<Real>& p, const AttentionGradients& out, const View& d_o,
                      const AttentionSaved& saved, const TilePair& tile, std::int64_t i, std::int64_t head,
                      std::uint64_t allowed, Real* logit) {
  const std::int64_t at = (tile.query_begin + i) * p.heads + head;
  const Real* d_out = d_o.as<Real>() + at * p.columns;
  const Real lse = saved.lse.as<Real>()[at], delta = saved.delta.as<Real>()[at];
  Real *dv = out.dv.as<Real>(), *dz = out.dz ? out.dz.as<Real>() : nullptr;
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    if (!(allowed >> j & 1)) {
      logit[j] = 0;
      continue;
    }
    const Real weight = std::exp(logit[j] - lse);
    const std::int64_t key = p.key_at(tile.key_begin + j, head);
    Real product = 0;
    for (std::int64_t e = 0; e < p.columns; ++e) {
      product += d_out[e] * p.value(tile.key_begin + j, head, e);
      if (e < p.depth) dv[key + e] += weight * d_out[e];
      else if (dz) dz[key + e - p.depth] += weight * d_out[e];
    }
    logit[j] = weight * (product - delta);
  }
}

/// Backward of forward_tile. Carry and gate_grad enter as they stand beyond the tile and leave as they stand before it.
template <class Real>
void backward_tile(const Problem<Real>& p, const AttentionGradients& out, const AttentionBackwardState& state,
                   const KeyChunk& keys, const View& d_o, const AttentionSaved& saved, const TilePair& tile,
                   std::int64_t head, const AttentionSettings& settings) {
  const bool cope = settings.term == TermKind::cope;
  const std::int64_t first = keys.index.as<std::int64_t>()[tile.key_begin];
  const std::int64_t horizon =
      cope ? saved.horizon.as<std::int64_t>()[tile.query_begin / settings.tile * p.heads + head] : 0;
  const bool general = cope && horizon >= 0 && first >= horizon, at_horizon = first == horizon;
  Real logit[largest_tile], gate[largest_tile], position[largest_tile];
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::uint64_t allowed = tile.mask.allowed[i];
    if (!allowed) continue;
    const std::int64_t row = tile.query_begin + i, at = row * p.heads + head;
    const Real* table = cope ? p.row_table(row, head) : nullptr;
    Real* d_table = cope ? out.dtable.as<Real>() + at * (p.last + 1) : nullptr;
    p.scores(logit, row, head, tile);
    if (general) {
      std::int64_t& carry = state.carry.as<std::int64_t>()[at];
      // Entry carry: saved at the horizon; nearer, the farther tile's entry minus what this tile adds (exact integers).
      if (!at_horizon)
        carry -= terms::fixed_sum(terms::positions(gate, position, logit, allowed, tile.keys, Real(0), Real(p.last)));
      terms::positions(gate, position, logit, allowed, tile.keys, terms::carry_value<Real>(carry, p.last),
                       Real(p.last));
      for (std::int64_t j = 0; j < tile.keys; ++j) logit[j] += terms::Interpolation<Real>(position[j]).value(table);
    } else if (cope) {
      for (std::int64_t j = 0; j < tile.keys; ++j) logit[j] += table[p.last];
    }
    weights_backward(p, out, d_o, saved, tile, i, head, allowed, logit);  // logit now holds d_logit
    if (general)
      terms::positions_backward(logit, d_table, state.gate_grad.as<Real>()[at], gate, position, table, allowed,
                                tile.keys);
    else if (cope)
      for (std::int64_t j = 0; j < tile.keys; ++j) d_table[p.last] += logit[j];
    // logit = s q·k, so dq += s d k and dk += s d q
    Real *dq = out.dq.as<Real>() + at * p.depth, *dk = out.dk.as<Real>();
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      const Real d = p.scale * logit[j];
      const std::int64_t key = p.key_at(tile.key_begin + j, head);
      for (std::int64_t e = 0; e < p.depth; ++e) {
        dq[e] += d * p.k[key + e];
        dk[key + e] += d * p.query(row, head)[e];
      }
    }
  }
}

}  // namespace

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  with_real(queries.q.type(), [&](auto real) {
    const Problem<decltype(real)> p(queries, keys);
    for_each_query_tile(queries, keys, settings.tile, Walk::near_to_far,
                        [&](std::int64_t, const std::vector<TilePair>& pairs) {
                          for (const TilePair& tile : pairs)
                            for (std::int64_t head = 0; head < p.heads; ++head)
                              forward_tile(p, state, keys, tile, head, settings, stats);
                        });
  });
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  with_real(queries.q.type(), [&](auto real) {
    const Problem<decltype(real)> p(queries, keys);
    for_each_query_tile(queries, keys, settings.tile, Walk::far_to_near,
                        [&](std::int64_t, const std::vector<TilePair>& pairs) {
                          for (const TilePair& tile : pairs)
                            for (std::int64_t head = 0; head < p.heads; ++head)
                              backward_tile(p, out, state, keys, d_o, saved, tile, head, settings);
                        });
  });
}

void attention_gate_sum(const View& sum, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  with_real(queries.q.type(), [&](auto real) {
    using Real = decltype(real);
    const Problem<Real> p(queries, keys);
    Real u[largest_tile], gate[largest_tile], position[largest_tile];
    for_each_query_tile(
        queries, keys, settings.tile, Walk::near_to_far, [&](std::int64_t, const std::vector<TilePair>& pairs) {
          for (const TilePair& tile : pairs)
            for (std::int64_t i = 0; i < tile.rows; ++i)
              for (std::int64_t head = 0; head < p.heads; ++head) {
                p.scores(u, tile.query_begin + i, head, tile);
                const Real total =
                    terms::positions(gate, position, u, tile.mask.allowed[i], tile.keys, Real(0), Real(p.last));
                sum.as<std::int64_t>()[(tile.query_begin + i) * p.heads + head] += terms::fixed_sum(total);
              }
        });
  });
}

}  // namespace ref

namespace {

void check_chunks(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings) {
  const Shape &q = queries.q.shape(), &k = keys.k.shape();
  CAPSTAN_CHECK(q.rank() == 3 && k.rank() == 3 && q[2] == k[2] && k[1] > 0 && q[1] % k[1] == 0, "q {} k {}", q.text(),
                k.text());
  CAPSTAN_CHECK(keys.v.shape() == k && (!keys.z || keys.z.shape() == k), "k {} v {}", k.text(), keys.v.shape().text());
  CAPSTAN_CHECK(queries.index.dim(0) == q[0] && keys.index.dim(0) == k[0], "q {} k {}", q.text(), k.text());
  CAPSTAN_CHECK(settings.tile >= 1 && settings.tile <= largest_tile, "tile {}", settings.tile);
  CAPSTAN_CHECK((settings.term == TermKind::cope) == bool(queries.table), "a row table and its term go together");
  if (k[0] > 0) {
    const std::int64_t first = keys.index.as<std::int64_t>()[0];
    CAPSTAN_CHECK(first % settings.tile == 0, "a key chunk begins at {}, not at a multiple of tile {}", first,
                  settings.tile);
    const std::int64_t end = keys.index.as<std::int64_t>()[k[0] - 1] + 1;
    CAPSTAN_CHECK(end - first == k[0], "{} keys with indices from {} to {}", k[0], first, end - 1);
    if (queries.table && queries.q.type() == DType::f64 && end >= longest_f64_sequence)
      fail(ExitCode::config,
           "CoPE in f64 counts gates in units of 2^-44: sequences are below {} tokens, this one reaches {}: use f32",
           longest_f64_sequence, end);
  }
}

/// Larger than any real logit's negative, yet finite: no inf - inf anywhere.
constexpr double no_key_yet = -1e30;

}  // namespace

void attention_begin(const AttentionState& state) {
  with_real(state.o.type(), [&](auto real) {
    using Real = decltype(real);
    std::fill_n(state.m.as<Real>(), state.m.elements(), Real(no_key_yet));
  });
  state.l.fill_zero();
  state.o.fill_zero();
  if (!state.carry) return;
  state.carry.fill_zero();
  state.horizon_carry.fill_zero();
  std::fill_n(state.horizon.as<std::int64_t>(), state.horizon.elements(), std::int64_t(-1));
}

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats* stats) {
  check_chunks(queries, keys, settings);
  AttentionStats unused;
  pick(queries.q, ref::attention_forward, cpu::attention_forward)(state, queries, keys, settings,
                                                                  stats ? *stats : unused);
}

void attention_finish(const AttentionState& state) {
  with_real(state.o.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t rows = state.m.elements(), columns = state.o.dim(-1);
    Real *m = state.m.as<Real>(), *l = state.l.as<Real>(), *o = state.o.as<Real>();
    for (std::int64_t at = 0; at < rows; ++at) {
      const bool seen = l[at] > 0;
      const Real inverse = seen ? 1 / l[at] : 0;
      m[at] = seen ? m[at] + std::log(l[at]) : std::numeric_limits<Real>::infinity();
      for (std::int64_t e = 0; e < columns; ++e) o[at * columns + e] *= inverse;
    }
  });
}

void attention_gate_sum(const View& sum, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  check_chunks(queries, keys, settings);
  sum.fill_zero();
  pick(queries.q, ref::attention_gate_sum, cpu::attention_gate_sum)(sum, queries, keys, settings);
}

void attention_delta(const View& delta, const View& d_o, const View& o) {
  with_real(o.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t rows = delta.elements(), columns = o.dim(-1);
    for (std::int64_t at = 0; at < rows; ++at) {
      double sum = 0;
      for (std::int64_t e = 0; e < columns; ++e)
        sum += double(d_o.as<Real>()[at * columns + e]) * double(o.as<Real>()[at * columns + e]);
      delta.as<Real>()[at] = Real(sum);
    }
  });
}

void attention_backward_begin(const AttentionBackwardState& state, const AttentionSaved& saved) {
  if (!state.carry) return;
  state.carry.copy_from(saved.horizon_carry);
  state.gate_grad.fill_zero();
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  check_chunks(queries, keys, settings);
  pick(queries.q, ref::attention_backward, cpu::attention_backward)(out, state, queries, keys, d_o, saved, settings);
}

}  // namespace capstan::kernels
