#pragma once
// CoPE's score term for one query row and one key tile (arXiv 2405.18719 §4, eqs. 3-5), forward and its adjoint below.
//
//   g_k  = σ(u_k), u_k = s q·k_k, for allowed keys, else 0
//   p_j  = min(P, carry + Σ_{k>=j in tile} g_k)           walked near → far, i.e. from the tile's last key to its first
//   bias = (1 - w) table[floor p] + w table[ceil p], w = p - floor p
//
// The tile's gate sum is rounded once to the fixed-point unit and added to the carry: an exact integer that backward
// can subtract again.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention_tile.h"

namespace capstan::kernels::terms {

template <class Real> constexpr int fraction_bits = gate_fraction_bits(DTypeOf<Real>::value);

/// The fixed-point unit, a power of two: products with it and its inverse are exact.
template <class Real> constexpr double unit = 1.0 / double(std::int64_t(1) << fraction_bits<Real>);

/// min(carry, P) as a real number.
template <class Real> Real carry_value(std::int64_t carry, std::int64_t last) {
  const std::int64_t bound = last << fraction_bits<Real>;
  return Real(double(std::min(carry, bound)) * unit<Real>);
}

/// A tile's gate sum in fixed point, rounded to nearest. NaN counts as 0, so that a diverged run ends with NaN in its output,
/// not with a carry that points outside the table.
template <class Real> std::int64_t fixed_sum(Real sum) {
  return sum > 0 ? std::int64_t(std::llrint(double(sum) * (1 / unit<Real>))) : 0;
}

template <class Real> bool saturated(std::int64_t carry, std::int64_t last) {
  return carry >= (last << fraction_bits<Real>);
}

template <class Real> Real gate(Real u) { return u >= 0 ? 1 / (1 + std::exp(-u)) : std::exp(u) / (1 + std::exp(u)); }

/// gate [n] and position [n] overwrite; u [n]; returns the tile's gate sum. `carry` = carry_value(…).
template <class Real>
Real positions(Real* gate_out, Real* position, const Real* u, std::uint64_t allowed, std::int64_t n, Real carry,
               Real last) {
  Real sum = 0;
  for (std::int64_t j = n - 1; j >= 0; --j) {
    gate_out[j] = (allowed >> j & 1) ? gate(u[j]) : Real(0);
    sum += gate_out[j];
    position[j] = std::min(last, carry + sum);
  }
  return sum;
}

/// Where a position falls in the table.
template <class Real> struct Interpolation {
  std::int64_t low, high;
  Real weight;  ///< of `high`
  explicit Interpolation(Real position)
      : low(std::int64_t(std::floor(position))), high(std::int64_t(std::ceil(position))), weight(position - Real(low)) {
  }
  Real value(const Real* table) const { return (1 - weight) * table[low] + weight * table[high]; }
  /// d value / d position; 0 at integers, so also once the position is clamped at P.
  Real slope(const Real* table) const { return table[high] - table[low]; }
};

/// Adjoint of one row and tile, far → near. d_logit [n] (gradient of the biased logits; 0 where not allowed) becomes
/// the gradient of u: d_u = d_logit + g (1 - g) X with X_k = Σ_{j<=k} d_logit_j slope_j, to which gate_grad brings the
/// farther tiles' sum. d_table [P + 1] adds to: the adjoint of value().
template <class Real>
void positions_backward(Real* d_logit, Real* d_table, Real& gate_grad, const Real* gate_in, const Real* position,
                        const Real* table, std::uint64_t allowed, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(allowed >> j & 1)) continue;
    const Interpolation<Real> at(position[j]);
    d_table[at.low] += (1 - at.weight) * d_logit[j];
    d_table[at.high] += at.weight * d_logit[j];
    gate_grad += d_logit[j] * at.slope(table);
    d_logit[j] += gate_in[j] * (1 - gate_in[j]) * gate_grad;
  }
}

}  // namespace capstan::kernels::terms
