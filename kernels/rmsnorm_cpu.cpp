#include <cmath>

#include "kernels/isa.h"
#include "kernels/rmsnorm.h"
#include "kernels/simd_math.h"

namespace capstan::kernels::cpu {

namespace {

/// r = 1 / sqrt(mean_c x[c]² + eps)
[[gnu::always_inline]] inline float inverse_rms(const float* x, std::int64_t C, double eps) {
  const float squares = lane_sum(
      C, [=](std::int64_t c) __attribute__((always_inline)) { return x[c] * x[c]; });
  return static_cast<float>(1 / std::sqrt(static_cast<double>(squares) / static_cast<double>(C) + eps));
}

/// y = w x r, each [C]
[[gnu::always_inline]] inline void forward_row(float* __restrict y, const float* __restrict x,
                                               const float* __restrict w, std::int64_t C, double eps) {
  const float r = inverse_rms(x, C, eps);
  for (std::int64_t c = 0; c < C; ++c) y[c] = w[c] * (x[c] * r);
}

/// dx (+)= r (w dy - n mean_c(w dy n)),  dw += dy n,  n = x r; each [C]; dw may be null.
[[gnu::always_inline]] inline void backward_row(float* __restrict dx, float* __restrict dw, const float* __restrict dy,
                                                const float* __restrict x, const float* __restrict w, std::int64_t C,
                                                double eps, bool add) {
  const float r = inverse_rms(x, C, eps);
  const float dot = lane_sum(
      C, [=](std::int64_t c) __attribute__((always_inline)) { return (w[c] * dy[c]) * x[c]; });
  const float mean = dot * r / static_cast<float>(C);
  for (std::int64_t c = 0; c < C; ++c) {
    const float gradient = r * (w[c] * dy[c] - (x[c] * r) * mean);
    dx[c] = add ? dx[c] + gradient : gradient;  // the loop exists twice, once per side
  }
  if (dw)
    for (std::int64_t c = 0; c < C; ++c) dw[c] += dy[c] * (x[c] * r);
}

}  // namespace

// y[t, c] = w[c] x[t, c] r_t
void rmsnorm_forward(const View& y, const View& x, const View& w, double eps) {
  const std::int64_t T = x.dim(0), C = x.dim(1);
  float* const Y = y.as<float>();                                  // [T, C]
  const float *const X = x.as<float>(), *const W = w.as<float>();  // [T, C], [C]
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t t = 0; t < T; ++t) forward_row(Y + t * C, X + t * C, W, C, eps);
  });
}

// Of y[t, c] = w[c] x[t, c] r_t, with n = x r, g = w dy:  dx = r (g - n mean_c(g n));  dw[c] += Σ_t dy n
void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into) {
  const std::int64_t T = x.dim(0), C = x.dim(1);
  float *const dX = dx.as<float>(), *const dW = dw ? dw.as<float>() : nullptr;                 // [T, C], [C]
  const float *const dY = dy.as<float>(), *const X = x.as<float>(), *const W = w.as<float>();  // [T, C], [T, C], [C]
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t t = 0; t < T; ++t)
      backward_row(dX + t * C, dW, dY + t * C, X + t * C, W, C, eps, into == Into::add);
  });
}

}  // namespace capstan::kernels::cpu
