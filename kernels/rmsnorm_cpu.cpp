#include <array>
#include <cmath>

#include "kernels/isa.h"
#include "kernels/rmsnorm.h"
#include "kernels/row_sums.h"
#include "kernels/simd_math.h"

namespace capstan::kernels::cpu {

namespace {

/// r = 1 / sqrt(mean_c x[c]² + eps)
template <class T> [[gnu::always_inline]] inline float inverse_rms(const T* x, std::int64_t C, double eps) {
  const float squares = lane_sum(
      C, [=](std::int64_t c) __attribute__((always_inline)) { return to_float(x[c]) * to_float(x[c]); });
  return static_cast<float>(1 / std::sqrt(static_cast<double>(squares) / static_cast<double>(C) + eps));
}

/// y = w x r, each [C]
template <class T>
[[gnu::always_inline]] inline void forward_row(T* __restrict y, const T* __restrict x, const T* __restrict w,
                                               std::int64_t C, double eps) {
  const float r = inverse_rms(x, C, eps);
  for (std::int64_t c = 0; c < C; ++c) y[c] = stored_as<T>(to_float(w[c]) * (to_float(x[c]) * r));
}

/// dx (+)= r (w dy - n mean_c(w dy n)),  dw += dy n,  n = x r; each [C]; dw may be null.
template <class T, class Dy>
[[gnu::always_inline]] inline void backward_row(T* __restrict dx, float* __restrict dw, const Dy* __restrict dy,
                                                const T* __restrict x, const T* __restrict w, std::int64_t C,
                                                double eps, bool add) {
  const float r = inverse_rms(x, C, eps);
  const float dot = lane_sum(
      C, [=](std::int64_t c)
             __attribute__((always_inline)) { return (to_float(w[c]) * to_float(dy[c])) * to_float(x[c]); });
  const float mean = dot * r / static_cast<float>(C);
  for (std::int64_t c = 0; c < C; ++c) {
    const float gradient = r * (to_float(w[c]) * to_float(dy[c]) - (to_float(x[c]) * r) * mean);
    dx[c] = stored_as<T>(add ? to_float(dx[c]) + gradient : gradient);  // the loop exists twice, once per side
  }
  if (dw)
    for (std::int64_t c = 0; c < C; ++c) dw[c] += to_float(dy[c]) * (to_float(x[c]) * r);
}

}  // namespace

// y[t, c] = w[c] x[t, c] r_t
void rmsnorm_forward(const View& y, const View& x, const View& w, double eps) {
  const std::int64_t C = x.dim(1);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const Y = y.as<T>();                              // [T, C]
    const T *const X = x.as<T>(), *const W = w.as<T>();  // [T, C], [C]
    parallel_rows(x.dim(0), C, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t) forward_row(Y + t * C, X + t * C, W, C, eps);
      });
    });
  });
}

// Of y[t, c] = w[c] x[t, c] r_t, with n = x r, g = w dy:  dx = r (g - n mean_c(g n));  dw[c] += Σ_t dy n
void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into) {
  const std::int64_t C = x.dim(1);
  const auto run = [&](auto stored, auto stored_dy) {
    using T = decltype(stored);
    T* const dX = dx.as<T>();                                      // [T, C]
    const decltype(stored_dy)* dY = dy.as<decltype(stored_dy)>();  // [T, C]
    const T *const X = x.as<T>(), *const W = w.as<T>();            // [T, C], [C]
    const auto rows = [=](std::int64_t begin, std::int64_t end, const std::array<float*, 1>& sums) {
      on_best_isa([ =, dW = sums[0] ]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t)
          backward_row(dX + t * C, dW, dY + t * C, X + t * C, W, C, eps, into == Into::add);
      });
    };
    sum_over_rows<1>({dw}, x.dim(0), C, rows);
  };
  with_stored(x.type(), [&](auto stored) { with_stored(dy.type(), [&](auto of_dy) { run(stored, of_dy); }); });
}

}  // namespace capstan::kernels::cpu
