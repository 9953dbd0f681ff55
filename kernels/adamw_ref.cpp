#include "kernels/adamw.h"

#include <cmath>

#include "kernels/operands.h"

namespace capstan::kernels {

void adamw_step(const View& w, const View& m, const View& v, const View& g, const AdamW& settings) {
  const Operands operands("adamw_step", w);
  operands.check_wide("w", w, w.shape());
  operands.check("m", m, w.shape());
  operands.check("v", v, w.shape());
  operands.check("g", g, w.shape());
  CAPSTAN_CHECK(settings.step >= 1, "step {}: the first update is step 1", settings.step);
  pick(w, ref::adamw_step, cpu::adamw_step, cuda::adamw_step)(w, m, v, g, settings);
}

void sgd_step(const View& w, const View& g, double lr) {
  const Operands operands("sgd_step", w);
  operands.check_wide("w", w, w.shape());
  operands.check("g", g, w.shape());
  pick(w, ref::sgd_step, cpu::sgd_step, cuda::sgd_step)(w, g, lr);
}

namespace ref {

void adamw_step(const View& w, const View& m, const View& v, const View& g, const AdamW& settings) {
  with_real(w.type(), [&](auto real) {
    using Real = decltype(real);
    const auto [lr, beta1, beta2, eps, weight_decay, step] = settings;
    const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
    for (std::int64_t i = 0; i < w.elements(); ++i) {
      Real &W = w.as<Real>()[i], &M = m.as<Real>()[i], &V = v.as<Real>()[i];
      const double G = static_cast<double>(g.as<Real>()[i]);
      // m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²
      M = static_cast<Real>(beta1 * static_cast<double>(M) + (1 - beta1) * G);
      V = static_cast<Real>(beta2 * static_cast<double>(V) + (1 - beta2) * G * G);
      // w -= lr (m̂ / (sqrt(v̂) + eps) + weight_decay w)
      const double direction =
          static_cast<double>(M) / correction1 / (std::sqrt(static_cast<double>(V) / correction2) + eps);
      W = static_cast<Real>(static_cast<double>(W) - lr * (direction + weight_decay * static_cast<double>(W)));
    }
  });
}

void sgd_step(const View& w, const View& g, double lr) {
  with_real(w.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < w.elements(); ++i)
      w.as<Real>()[i] =
          static_cast<Real>(static_cast<double>(w.as<Real>()[i]) - lr * static_cast<double>(g.as<Real>()[i]));
  });
}

}  // namespace ref

}  // namespace capstan::kernels
