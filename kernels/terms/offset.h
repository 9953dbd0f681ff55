#pragma once
// Offset term of one pair (forgetting attention, arXiv 2503.02130; with a table: hierarchical CoPE with
// query-independent block gates): δ = row - key, exact in int64, then in units of 1.
//
//   bias = δ                                   without a table
//   bias = interp(table, clamp(δ, 0, P))       with one

#include <algorithm>
#include <cstdint>

#include "kernels/terms/fixed_point.h"
#include "kernels/terms/interpolation.h"

namespace capstan::kernels::terms {

template <class Real> Real offset_value(std::int64_t delta) { return Real(double(delta) * unit<Real>); }

/// clamp(δ, 0, P)
template <class Real> Real offset_place(std::int64_t delta, std::int64_t last) {
  return offset_value<Real>(std::clamp<std::int64_t>(delta, 0, last << fraction_bits<Real>));
}

/// table [P + 1], or null.
template <class Real> Real offset_bias(std::int64_t delta, const Real* table, std::int64_t last) {
  return table ? Interpolation<Real>(offset_place<Real>(delta, last)).value(table) : offset_value<Real>(delta);
}

/// Returns dδ = d_bias · slope, with slope 1 without a table, and 0 at integers and beyond the table's ends. d_table [P
/// + 1] adds to, or null.
template <class Real>
Real offset_bias_backward(Real* d_table, Real d_bias, std::int64_t delta, const Real* table, std::int64_t last) {
  if (!table) return d_bias;
  const Interpolation<Real> at(offset_place<Real>(delta, last));
  if (d_table) at.value_backward(d_table, d_bias);
  return d_bias * at.slope(table);
}

}  // namespace capstan::kernels::terms
