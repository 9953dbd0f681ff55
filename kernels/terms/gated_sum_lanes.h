#pragma once
// A gated sum across lanes: kernels/terms/gated_sum.h in the same order of operations.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_lanes.h"
#include "kernels/terms/gated_sum.h"
#include "kernels/terms/interpolation_lanes.h"

namespace capstan::kernels::cpu {

/// One gated sum for one (query tile, head), and for the tile at hand. Kept between calls: see grow().
struct GatedLanes {
  int which = 0, lane_count = 0;
  GateRule rule;
  const QueryChunk* queries = nullptr;
  const KeyChunk* keys = nullptr;
  std::int64_t last = 0, depth_p = 0;
  bool separate = false;                         ///< gates have scores of their own, else those of q and k
  Floats table_t, dtable_t;                      ///< [P + 2][lane]
  Floats gate_grad;                              ///< [lane]
  std::vector<std::int64_t> carry;               ///< [lane]
  Floats q_t, q_rows, dq_t;                      ///< separate: gate_q, times s
  Floats k_tile, u, key_sum;                     ///< separate: rows of gate_k, one per key with a gate, and u or du
  Floats open, place, slope;                     ///< [keys][lane]: σ(u) where there is a gate, else 0; positions
  std::vector<std::int64_t> gate_key, gate_row;  ///< separate: keys of the tile with a gate, and their rows of gate_k
  terms::TileGates gates{};
  terms::TilePath path;
  bool settled =
      false;  ///< flat_place and flat_bias are those of the carry, as where tile after tile adds nothing to it
  /// [lane]: the tile's gate sum and what rounding took from it; position and bias in a flat tile
  alignas(64) std::array<float, largest_tile> total{}, total_low{}, flat_place{}, flat_bias{};

  void begin_call(int which_in, const GateRule& rule_in, const QueryChunk& queries_in, const KeyChunk& keys_in,
                  int lane_count_in) {
    which = which_in;
    lane_count = lane_count_in;
    rule = rule_in;
    queries = &queries_in;
    keys = &keys_in;
    last = queries->terms.table[which].dim(2) - 1;
    depth_p = padded(queries->q.dim(2));
    separate = queries->terms.gate_q[which] || keys->terms.gate_k[which];
    for (Floats* x : {&table_t, &dtable_t}) grow(*x, (last + 2) * lane_count);
    grow(gate_grad, lane_count);
    grow(carry, lane_count);
    for (Floats* x : {&open, &place, &slope}) grow(*x, largest_tile * lane_count);
    if (!separate) return;
    for (Floats* x : {&q_t, &dq_t}) grow(*x, depth_p * lane_count);
    grow(q_rows, row_stride(depth_p) * lane_count);
    for (Floats* x : {&k_tile, &key_sum}) grow(*x, largest_tile * row_stride(depth_p));
    grow(u, largest_tile * lane_count);
  }

  const View& gate_q() const { return queries->terms.gate_q[which] ? queries->terms.gate_q[which] : queries->q; }
  const View& gate_k() const { return keys->terms.gate_k[which] ? keys->terms.gate_k[which] : keys->k; }
  std::int64_t fixed_total(std::int64_t lane) const {
    return terms::fixed_sum(terms::GateSum<float>{total[std::size_t(lane)], total_low[std::size_t(lane)]});
  }
  bool evaluated() const { return path.summed || !path.flat; }  ///< some gate was computed

  /// Everything of a query tile and head but the carried state.
  void begin_head(std::int64_t begin, std::int64_t rows, std::int64_t head, float scale) {
    gather_table(table_t, queries->terms.table[which], begin, rows, head, lane_count);
    std::fill_n(dtable_t.begin(), (last + 2) * lane_count, 0.0f);
    settled = false;
    if (!separate) return;
    gather_rows(q_t.data(), q_rows.data(), gate_q(), begin, rows, head, depth_p, lane_count, scale);
    std::fill_n(dq_t.begin(), depth_p * lane_count, 0.0f);
  }

  void find_gates(const TilePair& tile) {
    terms::find_gates(gates, rule, tile, queries->index.as<std::int64_t>(), keys->index.as<std::int64_t>());
  }
  bool saturated(const TilePair& tile) const {
    for (std::int64_t lane = 0; lane < tile.rows; ++lane)
      if (tile.mask.allowed[lane] && !terms::saturated<float>(carry[lane], last)) return false;
    return true;
  }

  /// Rows of gate_k for the tile's keys that may have a gate.
  [[gnu::always_inline]] void load_gate_keys(const TilePair& tile, std::int64_t head) {
    const std::int64_t groups = keys->k.dim(1), depth = keys->k.dim(2), group = head / (queries->q.dim(1) / groups);
    gate_key.clear();
    gate_row.clear();
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      if (!(gates.keys >> j & 1)) continue;
      const std::int64_t key = tile.key_begin + j;
      gate_row.push_back(rule.gates == Gates::block_ends ? key / rule.block : key);  // chunks begin with a block
      load_row(&k_tile[std::ssize(gate_key) * row_stride(depth_p)], gate_k(),
               (gate_row.back() * groups + group) * depth, depth, depth_p);
      gate_key.push_back(j);
    }
  }
};

/// u [keys with a gate][lane]; `scores` are s q·k.
template <int L, int W>
[[gnu::always_inline]] inline const float* gate_logits(GatedLanes& g, const float* scores, const TilePair& tile,
                                                       std::int64_t head) {
  if (!g.separate) return scores;
  g.load_gate_keys(tile, head);
  lanes_product<L, W>(g.u.data(), g.k_tile.data(), row_stride(g.depth_p), 1, g.q_t.data(), std::ssize(g.gate_key),
                      g.depth_p, Product::Into::overwrite);
  return g.u.data();
}

/// `open` of every key, and per key in `place` the sum of the tile's gates from there to its near end; total: of all.
template <int L, int W>
[[gnu::always_inline]] inline void sum_gates(GatedLanes& g, const float* u, const TilePair& tile) {
  float *open = g.open.data(), *place = g.place.data();
  if (g.rule.gates == Gates::tokens) {
    for (std::int64_t j = 0; j < tile.keys; ++j)
      for (int lane = 0; lane < L; ++lane) open[j * L + lane] = fast_sigmoid(u[j * L + lane]);
  } else {
    std::fill_n(open, tile.keys * L, 0.0f);
    for (std::int64_t n = 0; n < std::ssize(g.gate_key); ++n)
      for (int lane = 0; lane < L; ++lane) open[g.gate_key[n] * L + lane] = fast_sigmoid(u[n * L + lane]);
  }
  const bool everywhere = g.gates.all && tile.rows == L;
  if (!everywhere) keep_where<L>(g.gates.has.data(), open, tile.keys, 0.0f);
  const float* gate = open;
  if (g.rule.floor > 0) {
    const float floor = float(g.rule.floor);
    for (std::int64_t j = 0; j < tile.keys; ++j)
      for (int lane = 0; lane < L; ++lane) place[j * L + lane] = floor + (1 - floor) * open[j * L + lane];
    if (!everywhere) keep_where<L>(g.gates.has.data(), place, tile.keys, 0.0f);
    gate = place;
  }
  for (int n = 0; n < L; n += W) {
    Reals<W> running = {}, low = {};  // terms::GateSum
    for (std::int64_t j = tile.keys - 1; j >= 0; --j) {
      const Reals<W> one = lanes<W>(gate + j * L + n), sum = running + one, part = sum - running;
      low += (running - (sum - part)) + (one - part);
      running = sum;
      lanes<W>(place + j * L + n) = running;
    }
    lanes<W>(&g.total[n]) = running;
    lanes<W>(&g.total_low[n]) = low;
  }
}

/// The one gate of a flat tile, that of its last key: `open` of it alone, and total.
template <int L> [[gnu::always_inline]] inline void one_gate(GatedLanes& g, const float* u, const TilePair& tile) {
  const float floor = float(g.rule.floor);
  g.total_low.fill(0);
  for (int lane = 0; lane < L; ++lane) {
    const bool has = g.gates.has[lane] >> (tile.keys - 1) & 1;
    const float sigma = fast_sigmoid(u[lane]);
    g.open[lane] = has ? sigma : 0.0f;
    g.total[lane] = has ? floor + (1 - floor) * sigma : 0.0f;
  }
}

/// Gates of the tile as its path asks for them.
template <int L, int W>
[[gnu::always_inline]] inline void read_gates(GatedLanes& g, const float* scores, const TilePair& tile,
                                              std::int64_t head) {
  if (!g.evaluated()) return;
  const float* u = gate_logits<L, W>(g, scores, tile, head);
  if (g.path.flat) one_gate<L>(g, u, tile);
  else sum_gates<L, W>(g, u, tile);
}

/// After read_gates, with the carry on entry of the tile: logit += interp(table, min(P, carry + sum so far)). In a flat tile that
/// is one number per row, which is only found: see RowConstants.
template <int L, int W>
[[gnu::always_inline]] inline void add_gated_bias(GatedLanes& g, float* logit, const TilePair& tile) {
  if (g.path.flat && g.settled && !g.path.summed) return;
  g.settled = g.path.flat && !g.path.summed;
  alignas(64) float carry[L];
  for (int lane = 0; lane < L; ++lane) carry[lane] = terms::carry_value<float>(g.carry[lane], g.last);
  if (!g.path.flat)
    return add_interpolated<L, W>(logit, g.place.data(), g.slope.data(), g.table_t.data(), g.last, carry, tile.keys);
  const float last = float(g.last);
  for (int lane = 0; lane < L; ++lane) {
    const float free = g.path.summed ? carry[lane] + g.total[lane] : carry[lane];
    g.flat_place[lane] = free < last ? free : last;
  }
  find_row_constant<L, W>(g.flat_bias.data(), g.flat_place.data(), g.table_t.data());
}

/// What is still to be added to every logit of a row, first before second: softmax does it on its way through the tile, which
/// spares one of its own.
struct RowConstants {
  static constexpr std::array<float, largest_tile> none{};
  const float *first = none.data(), *second = none.data();  ///< [lane]
  bool present = false;

  void then(const float* constant) {
    (present ? second : first) = constant;
    present = true;
  }
};

/// Where something else must be added after them.
template <int L, int W>
[[gnu::always_inline]] inline void add_constants(float* logit, RowConstants& constants, std::int64_t keys) {
  if (!constants.present) return;
  for (int n = 0; n < L; n += W) {
    const Reals<W> one = lanes<W>(constants.first + n), two = lanes<W>(constants.second + n);
    for (std::int64_t at = n; at < keys * L; at += L) lanes<W>(logit + at) = (lanes<W>(logit + at) + one) + two;
  }
  constants = {};
}

/// The biases of all gated sums, in their order; what remains is returned.
template <int L, int W>
[[gnu::always_inline]] inline RowConstants add_gated_biases(std::span<GatedLanes> sums, float* logit,
                                                            const TilePair& tile) {
  RowConstants rest;
  for (GatedLanes& g : sums) {
    if (!g.path.flat) add_constants<L, W>(logit, rest, tile.keys);
    add_gated_bias<L, W>(g, logit, tile);
    if (g.path.flat) rest.then(g.flat_bias.data());
  }
  return rest;
}

/// d_u += dg/du X of one key: dg/du = (1 - floor) σ (1 - σ).
template <int W>
[[gnu::always_inline]] inline void gate_backward(float* d_u, const float* open, const Reals<W>& gate_grad, float rise) {
  const Reals<W> sigma = lanes<W>(open);
  lanes<W>(d_u) += sigma * (1 - sigma) * (rise * gate_grad);
}

/// d_logit (of biased logits) → d_u [keys][lane], adds to, maybe the same memory; far → near; dtable and gate_grad as
/// in terms::positions_backward. d_sum: see row_constant_backward.
template <int L, int W>
[[gnu::always_inline]] inline void positions_backward(GatedLanes& g, float* d_u, const float* d_logit,
                                                      const float* d_sum, const TilePair& tile) {
  const float rise = 1 - float(g.rule.floor);
  if (g.path.flat) {
    row_constant_backward<L, W>(g.dtable_t.data(), g.gate_grad.data(), d_logit, d_sum, g.flat_place.data(),
                                g.table_t.data(), tile.keys);
    for (int n = 0; g.path.summed && n < L; n += W)
      gate_backward<W>(d_u + (tile.keys - 1) * L + n, &g.open[n], lanes<W>(&g.gate_grad[n]), rise);
    return;
  }
  for (int n = 0; n < L; n += W) {
    Reals<W> gate_grad = lanes<W>(&g.gate_grad[n]);
    interpolated_backward<L, W>(
        &g.dtable_t[n], d_logit + n, &g.place[n],
        tile.keys, [&](std::int64_t at, const Reals<W>& d) __attribute__((always_inline)) {
          gate_grad += d * lanes<W>(&g.slope[at + n]);
          gate_backward<W>(d_u + at + n, &g.open[at + n], gate_grad, rise);
        });
    lanes<W>(&g.gate_grad[n]) = gate_grad;
  }
}

/// Separate gates: d_u of gate keys → dq_t (s when stored) and key_sum [keys with a gate][row_stride] = Σ_lane d_u s
/// gate_q.
template <int L, int W> [[gnu::always_inline]] inline void gate_scores_backward(GatedLanes& g, const float* d_u) {
  const std::int64_t count = std::ssize(g.gate_key);
  for (std::int64_t n = 0; n < count; ++n) std::copy_n(d_u + g.gate_key[n] * L, L, &g.u[n * L]);
  lanes_product<L, W>(g.dq_t.data(), g.k_tile.data(), 1, row_stride(g.depth_p), g.u.data(), g.depth_p, count,
                      Product::Into::add);
  std::fill_n(g.key_sum.data(), (count + 3) / 4 * 4 * row_stride(g.depth_p), 0.0f);
  keys_product<L, W>(g.key_sum.data(), g.u.data(), g.q_rows.data(), count, g.depth_p);
}

}  // namespace capstan::kernels::cpu
