#pragma once
// Loops over rows of stored values, for bodies of on_best_isa. Elements are read as float and rounded once when stored; a
// result may lie exactly over an operand of its own type.

#include <cstdint>

#include "kernels/bfloat16.h"

namespace capstan::kernels {

/// y = x
template <class Y, class X> [[gnu::always_inline]] inline void convert_row(Y* y, const X* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = stored_as<Y>(to_float(x[i]));
}

/// y += x
template <class Y, class X> [[gnu::always_inline]] inline void add_row(Y* y, const X* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = stored_as<Y>(to_float(y[i]) + to_float(x[i]));
}

}  // namespace capstan::kernels
