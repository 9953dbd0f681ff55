#include <cmath>

#include "kernels/adamw.h"
#include "kernels/adamw_factors.h"
#include "kernels/isa.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

[[gnu::always_inline]] inline void update(float* __restrict w, float* __restrict m, float* __restrict v,
                                          const float* __restrict g, std::int64_t n, const AdamWFactors f) {
  for (std::int64_t i = 0; i < n; ++i) {
    // m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²
    m[i] = f.keep1 * m[i] + f.take1 * g[i];
    v[i] = f.keep2 * v[i] + f.take2 * (g[i] * g[i]);
    // w -= lr (m̂ / (sqrt(v̂) + eps) + weight_decay w)
    const float step = f.rate * (m[i] / (std::sqrt(v[i]) * f.root + f.eps)) + f.decay * w[i];
    w[i] = w[i] - step;
  }
}

}  // namespace

void adamw_step(const View& w, const View& m, const View& v, const View& g, const AdamW& settings) {
  const std::int64_t n = w.elements();
  float *const W = w.as<float>(), *const M = m.as<float>(), *const V = v.as<float>();
  const float* const G = g.as<float>();
  const AdamWFactors factors = factors_of(settings);
  parallel_rows(n, 1, [=](std::int64_t i, std::int64_t end) {
    on_best_isa([=]() __attribute__((always_inline)) { update(W + i, M + i, V + i, G + i, end - i, factors); });
  });
}

void sgd_step(const View& w, const View& g, double lr) {
  const std::int64_t n = w.elements();
  float* const W = w.as<float>();
  const float* const G = g.as<float>();
  const float rate = static_cast<float>(lr);
  parallel_rows(n, 1, [=](std::int64_t begin, std::int64_t end) {
    on_best_isa([=]() __attribute__((always_inline)) {
      for (std::int64_t i = begin; i < end; ++i) W[i] -= rate * G[i];
    });
  });
}

}  // namespace capstan::kernels::cpu
