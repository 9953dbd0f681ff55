#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/elementwise.h"
#include "kernels/isa.h"
#include "kernels/stored_rows.h"
#include "kernels/threads.h"

// One multiplication or addition per element, so that vector parts and tails of loops round alike wherever they fall.

namespace capstan::kernels::cpu {

namespace {

/// Calls body(begin, end), compiled for this machine, for pieces of `rows` rows on the rank's threads.
template <class Body> void for_rows(std::int64_t rows, std::int64_t cost, const Body& body) {
  parallel_rows(rows, cost, [&](std::int64_t begin, std::int64_t end) {
    on_best_isa([ =, &body ]() __attribute__((always_inline)) { body(begin, end); });
  });
}

}  // namespace

// y += x
void add(const View& y, const View& x) {
  const auto run = [&](auto stored_y, auto stored_x) {
    decltype(stored_y)* const Y = y.as<decltype(stored_y)>();
    const decltype(stored_x)* const X = x.as<decltype(stored_x)>();
    for_rows(
        y.elements(), 1, [=](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          add_row(Y + begin, X + begin, end - begin);
        });
  };
  with_stored(y.type(), [&](auto of_y) { with_stored(x.type(), [&](auto of_x) { run(of_y, of_x); }); });
}

// y = x
void convert(const View& y, const View& x) {
  const auto run = [&](auto stored_y, auto stored_x) {
    decltype(stored_y)* const Y = y.as<decltype(stored_y)>();
    const decltype(stored_x)* const X = x.as<decltype(stored_x)>();
    for_rows(
        y.elements(), 1, [=](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          convert_row(Y + begin, X + begin, end - begin);
        });
  };
  with_stored(y.type(), [&](auto of_y) { with_stored(x.type(), [&](auto of_x) { run(of_y, of_x); }); });
}

// y *= factor
void scale(const View& y, double factor) {
  const float f = static_cast<float>(factor);
  with_stored(y.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const Y = y.as<T>();
    for_rows(
        y.elements(), 1, [=](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          for (std::int64_t i = begin; i < end; ++i) Y[i] = stored_as<T>(to_float(Y[i]) * f);
        });
  });
}

namespace {

/// y = factor Σ_{h < group} x[h], summed in the order of h; y [D], x [group, D].
template <class T>
[[gnu::always_inline]] inline void sum_heads(T* __restrict y, const T* __restrict x, std::int64_t group, std::int64_t D,
                                             float factor) {
  constexpr std::int64_t width = 64;  // sums that stay in registers
  for (std::int64_t begin = 0; begin < D; begin += width) {
    const std::int64_t n = std::min(width, D - begin);
    float sum[width];
    for (std::int64_t d = 0; d < n; ++d) sum[d] = to_float(x[begin + d]);
    for (std::int64_t h = 1; h < group; ++h)
      for (std::int64_t d = 0; d < n; ++d) sum[d] += to_float(x[h * D + begin + d]);
    for (std::int64_t d = 0; d < n; ++d) y[begin + d] = stored_as<T>(sum[d] * factor);
  }
}

}  // namespace

// y[t, g] = factor Σ_{h in g} x[t, h]
void group_sum(const View& y, const View& x, double factor) {
  const std::int64_t TG = y.dim(0) * y.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
  const float f = static_cast<float>(factor);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const Y = y.as<T>();        // [T, G, D]
    const T* const X = x.as<T>();  // [T, H, D]
    for_rows(
        TG, group * D, [=](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          for (std::int64_t tg = begin; tg < end; ++tg) sum_heads(Y + tg * D, X + tg * group * D, group, D, f);
        });
  });
}

// Of y[t, g] = factor Σ_{h in g} x[t, h]:  x[t, h] = factor y[t, g(h)]
void group_spread(const View& x, const View& y, double factor) {
  const std::int64_t TH = x.dim(0) * x.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
  const float f = static_cast<float>(factor);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const X = x.as<T>();        // [T, H, D]
    const T* const Y = y.as<T>();  // [T, G, D]
    for_rows(
        TH, D, [=](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          for (std::int64_t th = begin; th < end; ++th)
            for (std::int64_t d = 0; d < D; ++d) X[th * D + d] = stored_as<T>(f * to_float(Y[th / group * D + d]));
        });
  });
}

namespace {

/// view [.., N] as [rows, N].
View as_rows(const View& view) {
  const std::int64_t N = view.dim(-1);
  return view.reshape({N == 0 ? 0 : view.elements() / N, N});
}

}  // namespace

// Row copies by memcpy: nothing to gain from a second version.
void take_columns(const View& part, const View& whole, std::int64_t begin) {
  if (part.elements() == 0) return;
  const View to = as_rows(part), from = as_rows(whole);
  parallel_rows(to.dim(0), to.dim(1), [&](std::int64_t first, std::int64_t last) {
    ref::take_columns(to.rows(first, last), from.rows(first, last), begin);
  });
}

void put_columns(const View& whole, const View& part, std::int64_t begin) {
  if (part.elements() == 0) return;
  const View to = as_rows(whole), from = as_rows(part);
  parallel_rows(from.dim(0), from.dim(1), [&](std::int64_t first, std::int64_t last) {
    ref::put_columns(to.rows(first, last), from.rows(first, last), begin);
  });
}

bool all_finite(const View& x) {
  constexpr std::uint32_t exponent = 0x7f800000;  // all ones in infinities and NaNs only
  std::atomic<std::uint32_t> bad = 0;
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    const T* const X = x.as<T>();
    for_rows(
        x.elements(), 1, [ =, &bad ](std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          std::uint32_t found = 0;
          for (std::int64_t i = begin; i < end; ++i)
            found |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(to_float(X[i])) & exponent) == exponent);
          if (found) bad = 1;
        });
  });
  return bad == 0;
}

}  // namespace capstan::kernels::cpu
