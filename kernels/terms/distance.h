#pragma once
// Terms of one pair by distance d = position_i - position_j >= 0 alone.
//
//   relative   bias = relative_i[min(d, R)]               Shaw et al., arXiv 1803.02155, §3.2
//   distance   bias = slope_h d                           ALiBi, arXiv 2108.12409, §3
//                   + distance_table_h[min(d, N - 1)]     T5, arXiv 1910.10683, §2.1

#include <algorithm>
#include <cstdint>

namespace capstan::kernels::terms {

/// t[min(d, last)], for relative and for distance_table.
template <class Real> Real table_bias(const Real* table, std::int64_t last, std::int64_t distance) {
  return table[std::min(distance, last)];
}

/// Its adjoint; d_table adds to.
template <class Real> void table_bias_backward(Real* d_table, Real d_bias, std::int64_t last, std::int64_t distance) {
  d_table[std::min(distance, last)] += d_bias;
}

/// Its adjoint: none, slopes are constants.
template <class Real> Real slope_bias(Real slope, std::int64_t distance) { return slope * Real(distance); }

}  // namespace capstan::kernels::terms
