#include "kernels/linear.h"
#include "kernels/operands.h"

namespace capstan::kernels {

void linear_forward(const View& y, const View& x, const View& w, Into into) {
  const Operands operands("linear_forward", x);
  const std::int64_t T = x.dim(0), K = x.dim(-1), M = w.dim(0);
  operands.check("x", x, {T, K});
  operands.check("w", w, {M, K});
  operands.check_same_or_wide("y", y, {T, M});
  pick(x, ref::linear_forward, cpu::linear_forward, cuda::linear_forward)(y, x, w, into);
}

void linear_backward_input(const View& dx, const View& dy, const View& w, Into into) {
  const Operands operands("linear_backward_input", dy);
  const std::int64_t T = dy.dim(0), M = dy.dim(-1), K = w.dim(-1);
  operands.check("dy", dy, {T, M});
  operands.check("w", w, {M, K});
  operands.check_same_or_wide("dx", dx, {T, K});
  pick(dy, ref::linear_backward_input, cpu::linear_backward_input, cuda::linear_backward_input)(dx, dy, w, into);
}

void linear_backward_weight(const View& dw, const View& dy, const View& x) {
  const Operands operands("linear_backward_weight", x);
  const std::int64_t T = x.dim(0), K = x.dim(-1), M = dy.dim(-1);
  operands.check("x", x, {T, K});
  operands.check("dy", dy, {T, M});
  operands.check_wide("dw", dw, {M, K});
  pick(x, ref::linear_backward_weight, cpu::linear_backward_weight, cuda::linear_backward_weight)(dw, dy, x);
}

namespace ref {

namespace {

/// c[i, j] (+)= Σ_k a(i, k) b(k, j), summed in double.
template <class Real, class A, class B>
void multiply(Real* c, std::int64_t rows, std::int64_t columns, std::int64_t inner, Into into, A a, B b) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = into == Into::add ? static_cast<double>(c[i * columns + j]) : 0.0;
      for (std::int64_t k = 0; k < inner; ++k) sum += static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
      c[i * columns + j] = static_cast<Real>(sum);
    }
  }
}

}  // namespace

// y[t, m] = Σ_k x[t, k] w[m, k]
void linear_forward(const View& y, const View& x, const View& w, Into into) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const Real *X = x.as<Real>(), *W = w.as<Real>();  // [T, K], [M, K]
    const std::int64_t T = x.dim(0), K = x.dim(1), M = w.dim(0);
    multiply(
        y.as<Real>(), T, M, K, into, [=](std::int64_t t, std::int64_t k) { return X[t * K + k]; },
        [=](std::int64_t k, std::int64_t m) { return W[m * K + k]; });
  });
}

// Of y = x wᵀ:  dx[t, k] = Σ_m dy[t, m] w[m, k]
void linear_backward_input(const View& dx, const View& dy, const View& w, Into into) {
  with_real(dy.type(), [&](auto real) {
    using Real = decltype(real);
    const Real *dY = dy.as<Real>(), *W = w.as<Real>();  // [T, M], [M, K]
    const std::int64_t T = dy.dim(0), M = w.dim(0), K = w.dim(1);
    multiply(
        dx.as<Real>(), T, K, M, into, [=](std::int64_t t, std::int64_t m) { return dY[t * M + m]; },
        [=](std::int64_t m, std::int64_t k) { return W[m * K + k]; });
  });
}

// Of y = x wᵀ:  dw[m, k] += Σ_t dy[t, m] x[t, k]
void linear_backward_weight(const View& dw, const View& dy, const View& x) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const Real *dY = dy.as<Real>(), *X = x.as<Real>();  // [T, M], [T, K]
    const std::int64_t T = x.dim(0), K = x.dim(1), M = dy.dim(1);
    multiply(
        dw.as<Real>(), M, K, T, Into::add, [=](std::int64_t m, std::int64_t t) { return dY[t * M + m]; },
        [=](std::int64_t t, std::int64_t k) { return X[t * K + k]; });
  });
}

}  // namespace ref

}  // namespace capstan::kernels
