#pragma once
// interp(t, x) = (1 - w) t[floor x] + w t[ceil x], w = x - floor x, for a real place x in a table.

#include <cmath>
#include <cstdint>

namespace capstan::kernels::terms {

template <class Real> struct Interpolation {
  std::int64_t low, high;
  Real weight;  ///< of `high`
  explicit Interpolation(Real place)
      : low(std::int64_t(std::floor(place))), high(std::int64_t(std::ceil(place))), weight(place - Real(low)) {}
  Real value(const Real* table) const { return (1 - weight) * table[low] + weight * table[high]; }
  /// d value / d place; 0 at integers, so also where the place is clamped to an end of the table.
  Real slope(const Real* table) const { return table[high] - table[low]; }
  /// d_table adds to: the adjoint of value().
  void value_backward(Real* d_table, Real d_value) const {
    d_table[low] += (1 - weight) * d_value;
    d_table[high] += weight * d_value;
  }
};

}  // namespace capstan::kernels::terms
