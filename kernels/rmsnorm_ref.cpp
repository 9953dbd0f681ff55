#include "kernels/rmsnorm.h"

#include <cmath>
#include <vector>

#include "kernels/operands.h"

namespace capstan::kernels {

void rmsnorm_forward(const View& y, const View& x, const View& w, double eps) {
  const Operands operands("rmsnorm_forward", x);
  operands.check("x", x, {x.dim(0), x.dim(-1)});
  operands.check("y", y, x.shape());
  operands.check("w", w, {x.dim(1)});
  pick(x, ref::rmsnorm_forward, cpu::rmsnorm_forward, cuda::rmsnorm_forward)(y, x, w, eps);
}

void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into) {
  const Operands operands("rmsnorm_backward", x);
  operands.check("x", x, {x.dim(0), x.dim(-1)});
  operands.check("dx", dx, x.shape());
  operands.check_same_or_wide("dy", dy, x.shape());
  operands.check("w", w, {x.dim(1)});
  if (dw) operands.check_wide("dw", dw, w.shape());
  pick(x, ref::rmsnorm_backward, cpu::rmsnorm_backward, cuda::rmsnorm_backward)(dx, dw, dy, x, w, eps, into);
}

namespace ref {

namespace {

/// r = 1 / sqrt(mean_c x[c]² + eps)
template <class Real> double inverse_rms(const Real* x, std::int64_t C, double eps) {
  double squares = 0;
  for (std::int64_t c = 0; c < C; ++c) squares += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return 1 / std::sqrt(squares / static_cast<double>(C) + eps);
}

}  // namespace

// y[t, c] = w[c] x[t, c] r_t
void rmsnorm_forward(const View& y, const View& x, const View& w, double eps) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = x.dim(0), C = x.dim(1);
    const Real* const W = w.as<Real>();  // [C]
    for (std::int64_t t = 0; t < T; ++t) {
      const Real* const X = x.as<Real>() + t * C;  // [C]
      Real* const Y = y.as<Real>() + t * C;        // [C]
      const Real r = static_cast<Real>(inverse_rms(X, C, eps));
      for (std::int64_t c = 0; c < C; ++c) Y[c] = W[c] * (X[c] * r);
    }
  });
}

// Of y[t, c] = w[c] x[t, c] r_t, with n = x r, g = w dy:  dx = r (g - n mean_c(g n));  dw[c] += Σ_t dy n
void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = x.dim(0), C = x.dim(1);
    const Real* const W = w.as<Real>();                             // [C]
    std::vector<double> sum(dw ? static_cast<std::size_t>(C) : 0);  // [C]
    for (std::int64_t t = 0; t < T; ++t) {
      const Real *X = x.as<Real>() + t * C, *dY = dy.as<Real>() + t * C;  // [C]
      Real* const dX = dx.as<Real>() + t * C;                             // [C]
      const double r = inverse_rms(X, C, eps);
      double mean = 0;
      for (std::int64_t c = 0; c < C; ++c) mean += double(W[c]) * double(dY[c]) * double(X[c]) * r / double(C);
      for (std::int64_t c = 0; c < C; ++c) {
        const double n = double(X[c]) * r;
        if (dw) sum[static_cast<std::size_t>(c)] += double(dY[c]) * n;
        const double gradient = r * (double(W[c]) * double(dY[c]) - n * mean);
        dX[c] = static_cast<Real>(into == Into::add ? double(dX[c]) + gradient : gradient);
      }
    }
    for (std::size_t c = 0; c < sum.size(); ++c)
      dw.as<Real>()[c] = static_cast<Real>(double(dw.as<Real>()[c]) + sum[c]);
  });
}

}  // namespace ref

}  // namespace capstan::kernels
