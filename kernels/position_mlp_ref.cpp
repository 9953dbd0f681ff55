#include "kernels/position_mlp.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_inputs(const Operands& operands, const View& z, const View& p, const View& gate, const View& alpha,
                  const View& w_up, const View& w_down) {
  const std::int64_t T = z.dim(0), G = z.dim(1), D = z.dim(-1), I = gate.dim(-1);
  operands.check_wide("z", z, {T, G, D});
  operands.check("p", p, {T, G, D});
  operands.check("gate", gate, {T, I});
  operands.check("alpha", alpha, {G, G});
  operands.check("w_up", w_up, {I, G});
  operands.check("w_down", w_down, {G, I});
}

}  // namespace

void position_mlp_forward(const View& z_next, const View& z, const View& p, const View& gate, const View& alpha,
                          const View& w_up, const View& w_down) {
  const Operands operands("position_mlp_forward", z);
  check_inputs(operands, z, p, gate, alpha, w_up, w_down);
  operands.check("z_next", z_next, z.shape());
  pick(z, ref::position_mlp_forward, cpu::position_mlp_forward, cuda::position_mlp_forward)(z_next, z, p, gate, alpha,
                                                                                            w_up, w_down);
}

void position_mlp_backward(const PositionMlpGradients& out, const View& dz_next, const View& z, const View& p,
                           const View& gate, const View& alpha, const View& w_up, const View& w_down) {
  const Operands operands("position_mlp_backward", z);
  check_inputs(operands, z, p, gate, alpha, w_up, w_down);
  operands.check("dz_next", dz_next, z.shape());
  operands.check("dz", out.dz, z.shape());
  operands.check("dp", out.dp, z.shape());
  operands.check("dgate", out.dgate, gate.shape());
  operands.check_if_present("dalpha", out.dalpha, alpha.shape());
  operands.check_if_present("dw_up", out.dw_up, w_up.shape());
  operands.check_if_present("dw_down", out.dw_down, w_down.shape());
  pick(z, ref::position_mlp_backward, cpu::position_mlp_backward, cuda::position_mlp_backward)(out, dz_next, z, p, gate,
                                                                                               alpha, w_up, w_down);
}

MagnitudeSum complex_magnitude(const View& z) {
  const Operands operands("complex_magnitude", z);
  operands.check_wide("z", z, {z.dim(0), z.dim(1), z.dim(-1)});
  CAPSTAN_CHECK(z.dim(2) % 2 == 0, "head size {} is odd", z.dim(2));
  return pick(z, ref::complex_magnitude, cpu::complex_magnitude, cuda::complex_magnitude)(z);
}

namespace ref {

namespace {

/// A small dense matrix in double.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns)
      : rows_(rows), columns_(columns), value_(static_cast<std::size_t>(rows * columns)) {}
  template <class Real> Matrix(const Real* value, std::int64_t rows, std::int64_t columns) : Matrix(rows, columns) {
    std::copy(value, value + rows * columns, value_.begin());
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  double& operator()(std::int64_t r, std::int64_t c) { return value_[static_cast<std::size_t>(r * columns_ + c)]; }
  double operator()(std::int64_t r, std::int64_t c) const { return value_[static_cast<std::size_t>(r * columns_ + c)]; }
  Matrix transposed() const {
    Matrix out(columns_, rows_);
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < columns_; ++c) out(c, r) = (*this)(r, c);
    return out;
  }
  template <class Real> void store(Real* to, Into into) const {
    for (std::size_t i = 0; i < value_.size(); ++i)
      to[i] = static_cast<Real>(into == Into::add ? static_cast<double>(to[i]) + value_[i] : value_[i]);
  }

 private:
  std::int64_t rows_, columns_;
  std::vector<double> value_;
};

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows(), b.columns());
  for (std::int64_t r = 0; r < a.rows(); ++r)
    for (std::int64_t c = 0; c < b.columns(); ++c)
      for (std::int64_t k = 0; k < a.columns(); ++k) out(r, c) += a(r, k) * b(k, c);
  return out;
}

Matrix operator+(Matrix a, const Matrix& b) {
  for (std::int64_t r = 0; r < a.rows(); ++r)
    for (std::int64_t c = 0; c < a.columns(); ++c) a(r, c) += b(r, c);
  return a;
}

/// gate ∘ a: row i of a times gate[i].
Matrix scaled_rows(const Matrix& gate, Matrix a) {
  for (std::int64_t r = 0; r < a.rows(); ++r)
    for (std::int64_t c = 0; c < a.columns(); ++c) a(r, c) *= gate(0, r);
  return a;
}

}  // namespace

// zc = z + alpha p;  a = w_up zc;  z' = zc + w_down (g ∘ a)
void position_mlp_forward(const View& z_next, const View& z, const View& p, const View& gate, const View& alpha,
                          const View& w_up, const View& w_down) {
  with_real(z.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = z.dim(0), G = z.dim(1), D = z.dim(2), I = gate.dim(1);
    const Matrix A(alpha.as<Real>(), G, G), U(w_up.as<Real>(), I, G), W(w_down.as<Real>(), G, I);
    for (std::int64_t t = 0; t < T; ++t) {
      const Matrix g(gate.as<Real>() + t * I, 1, I);
      const Matrix zc = Matrix(z.as<Real>() + t * G * D, G, D) + A * Matrix(p.as<Real>() + t * G * D, G, D);
      const Matrix next = zc + W * scaled_rows(g, U * zc);
      next.store(z_next.as<Real>() + t * G * D, Into::overwrite);
    }
  });
}

// Of zc = z + alpha p;  a = w_up zc;  z' = zc + w_down b with b = g ∘ a;  G = dz':
// dw_down += G bᵀ;  db = w_downᵀ G;  dg = Σ_D db a;  da = g ∘ db;  dw_up += da zcᵀ;  dzc = G + w_upᵀ da;
// dalpha += dzc pᵀ;  dp = alphaᵀ dzc;  dz += dzc
void position_mlp_backward(const PositionMlpGradients& out, const View& dz_next, const View& z, const View& p,
                           const View& gate, const View& alpha, const View& w_up, const View& w_down) {
  with_real(z.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = z.dim(0), G = z.dim(1), D = z.dim(2), I = gate.dim(1);
    const Matrix A(alpha.as<Real>(), G, G), U(w_up.as<Real>(), I, G), W(w_down.as<Real>(), G, I);
    Matrix dA(G, G), dU(I, G), dW(G, I);
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t at = t * G * D;
      const Matrix g(gate.as<Real>() + t * I, 1, I), P(p.as<Real>() + at, G, D), dnext(dz_next.as<Real>() + at, G, D);
      const Matrix zc = Matrix(z.as<Real>() + at, G, D) + A * P;
      const Matrix a = U * zc;
      dW = dW + dnext * scaled_rows(g, a).transposed();
      const Matrix db = W.transposed() * dnext;
      const Matrix da = scaled_rows(g, db);
      dU = dU + da * zc.transposed();
      const Matrix dzc = dnext + U.transposed() * da;
      dA = dA + dzc * P.transposed();
      (A.transposed() * dzc).store(out.dp.as<Real>() + at, Into::overwrite);
      dzc.store(out.dz.as<Real>() + at, Into::add);
      for (std::int64_t i = 0; i < I; ++i) {
        double sum = 0;
        for (std::int64_t d = 0; d < D; ++d) sum += db(i, d) * a(i, d);
        out.dgate.as<Real>()[t * I + i] = static_cast<Real>(sum);
      }
    }
    if (out.dalpha) dA.store(out.dalpha.as<Real>(), Into::add);
    if (out.dw_up) dU.store(out.dw_up.as<Real>(), Into::add);
    if (out.dw_down) dW.store(out.dw_down.as<Real>(), Into::add);
  });
}

MagnitudeSum complex_magnitude(const View& z) {
  MagnitudeSum out{0, 0, z.elements() / 2};
  with_real(z.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t TG = z.dim(0) * z.dim(1), half = z.dim(2) / 2;
    for (std::int64_t tg = 0; tg < TG; ++tg) {
      const Real* const Z = z.as<Real>() + tg * 2 * half;  // [D]
      for (std::int64_t f = 0; f < half; ++f) {
        const double magnitude = std::hypot(static_cast<double>(Z[f]), static_cast<double>(Z[half + f]));
        out.sum += magnitude;
        out.max = std::max(out.max, magnitude);
      }
    }
  });
  return out;
}

}  // namespace ref

}  // namespace capstan::kernels
