#pragma once
// A gated sum's score term for one query row and one key tile, forward and its adjoint below (CoPE, arXiv 2405.18719
// §4, eqs. 3-5; with blocks: hierarchical CoPE).
//
//   g_k  = e + (1 - e) σ(u_k), u_k = s gate_q·gate_k_k, where the row has a gate at key k, else 0;  e the floor
//   p_j  = min(P, carry + Σ_{k>=j in tile} g_k)           walked near → far, i.e. from the tile's last key to its first
//   bias = interp(table, p_j)
//
// The tile's gate sum is rounded once to the fixed-point unit and added to the carry: an exact integer that backward
// can subtract again.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/terms/fixed_point.h"
#include "kernels/terms/interpolation.h"
#include "kernels/tile_mask.h"

namespace capstan::kernels::terms {

/// Where the rows of a tile have gates.
struct TileGates {
  std::array<std::uint64_t, largest_tile> has;  ///< bit j: the row has a gate at key j of the tile
  std::uint64_t keys;                           ///< bit j: some row may have a gate at key j, by its index alone
  bool any;                                     ///< some row has a gate
  bool all;                                     ///< every row has a gate at every key
  bool in_one_block;                            ///< block_ends, and all keys lie in one block
};

/// The lowest n of 64 bits, for any n.
constexpr std::uint64_t low_bits(std::int64_t n) {
  return n <= 0 ? 0 : n >= 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << n) - 1;
}

/// The first key that lies in one of a row's last `window` blocks.
inline std::int64_t window_border(const GateRule& rule, std::int64_t query_index) {
  return (query_index / rule.block - rule.window + 1) * rule.block;
}

/// The indices of the chunks' rows are given from the first on. Most tiles lie on one side of all rows' windows: then no row
/// is looked at for its own.
inline void find_gates(TileGates& gates, const GateRule& rule, const TilePair& tile, const std::int64_t* query_index,
                       const std::int64_t* key_index) {
  const std::int64_t first = key_index[tile.key_begin], end = first + tile.keys, block = rule.block;
  const std::uint64_t full = low_bits(tile.keys);
  gates.has = tile.mask.allowed;
  gates.keys = full;
  gates.any = tile.mask.any;
  gates.all = tile.mask.all;
  gates.in_one_block = false;
  if (block == 0) return;
  const bool ends = rule.gates == Gates::block_ends;
  if (ends) {
    gates.in_one_block = first / block == (end - 1) / block;
    gates.keys = 0;
    for (std::int64_t j = block - 1 - first % block; j < tile.keys; j += block) gates.keys |= std::uint64_t(1) << j;
  }
  const std::int64_t* row = query_index + tile.query_begin;
  const bool all_before = window_border(rule, row[0]) >= end,
             none_before = window_border(rule, row[tile.rows - 1]) <= first;
  gates.any = false;
  if (ends ? none_before || gates.keys == 0 : all_before) {
    std::fill_n(gates.has.begin(), tile.rows, std::uint64_t(0));
    gates.all = false;
    return;
  }
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::uint64_t before = all_before ? full : none_before ? 0 : low_bits(window_border(rule, row[i]) - first);
    gates.has[i] &= ends ? gates.keys & before : ~before;
    gates.any = gates.any || gates.has[i] != 0;
    gates.all = gates.all && gates.has[i] == full;
  }
}

/// How a tile is computed: see attention_tile.h.
struct TilePath {
  bool summed = false;  ///< the tile's gates add to the carry; else it is saturated or nobody has a gate in it
  bool flat = true;     ///< its position is the same for all keys, and found without a gate per key

  TilePath() = default;
  TilePath(bool gates_are_summed, const TileGates& gates, bool flat_tiles)
      : summed(gates_are_summed), flat(flat_tiles && (!gates_are_summed || gates.in_one_block)) {}
};

/// σ(u)
template <class Real> Real sigmoid(Real u) { return u >= 0 ? 1 / (1 + std::exp(-u)) : std::exp(u) / (1 + std::exp(u)); }

template <class Real> Real gate(Real u, Real floor) { return floor + (1 - floor) * sigmoid(u); }

/// gate [n] and position [n] overwrite; u [n], read where `has` a gate; returns the tile's gate sum. `carry` =
/// carry_value(…).
template <class Real>
GateSum<Real> positions(Real* gate_out, Real* position, const Real* u, std::uint64_t has, std::int64_t n, Real carry,
                        Real last, Real floor) {
  GateSum<Real> sum;
  for (std::int64_t j = n - 1; j >= 0; --j) {
    gate_out[j] = (has >> j & 1) ? gate(u[j], floor) : Real(0);
    sum.add(gate_out[j]);
    position[j] = std::min(last, carry + sum.high);
  }
  return sum;
}

/// The same for a flat tile, whose only gate, if any, is that of its last key.
template <class Real>
GateSum<Real> flat_positions(Real* gate_out, Real* position, const Real* u, std::uint64_t has, std::int64_t n,
                             Real carry, Real last, Real floor) {
  const Real sum = has ? gate(u[n - 1], floor) : Real(0);
  std::fill_n(gate_out, n - 1, Real(0));
  gate_out[n - 1] = sum;
  std::fill_n(position, n, std::min(last, carry + sum));
  return {sum, 0};
}

/// Adjoint of one row and tile, far → near, of logit_j += interp(table, p_j). d_logit [n] is 0 where not allowed.
///   d_u_k = dg/du X_k with X_k = Σ_{j<=k} d_logit_j slope_j, to which gate_grad brings the farther tiles' sum;
///   dg/du = (1 - e) σ' = (g - e) (1 - g) / (1 - e).
/// d_u [n] (which may be d_logit) and d_table [P + 1] add to.
template <class Real>
void positions_backward(Real* d_u, Real* d_table, Real& gate_grad, const Real* d_logit, const Real* gate_in,
                        const Real* position, const Real* table, std::uint64_t allowed, std::uint64_t has,
                        std::int64_t n, Real floor) {
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(allowed >> j & 1)) continue;
    const Interpolation<Real> at(position[j]);
    if (d_table) at.value_backward(d_table, d_logit[j]);
    gate_grad += d_logit[j] * at.slope(table);
    if (has >> j & 1) d_u[j] += (gate_in[j] - floor) * (1 - gate_in[j]) / (1 - floor) * gate_grad;
  }
}

}  // namespace capstan::kernels::terms
