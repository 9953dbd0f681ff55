#pragma once
// Sums of gates and of decay as int64, in units of 2^-32 (f32) or 2^-44 (f64): exact, so that they are the same for any
// ranks and any order, and can be subtracted again.

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

template <class Real> bool saturated(std::int64_t carry, std::int64_t last) {
  return carry >= (last << fraction_bits<Real>);
}

/// A tile's gate sum, and what rounding took from it on the way (Knuth's two-sum): small gates after a large one all round
/// the same way, and over thousands of tiles that would add up in the carry.
template <class Real> struct GateSum {
  Real high = 0, low = 0;
  void add(Real gate) {
    const Real sum = high + gate, part = sum - high;
    low += (high - (sum - part)) + (gate - part);
    high = sum;
  }
};

/// The sum in fixed point, rounded to nearest. NaN counts as 0, so that a diverged run ends with NaN in its output, not with
/// a carry that points outside the table.
template <class Real> std::int64_t fixed_sum(const GateSum<Real>& sum) {
  return sum.high > 0 ? std::int64_t(std::llrint((double(sum.high) + double(sum.low)) * (1 / unit<Real>))) : 0;
}

}  // namespace capstan::kernels::terms
