#include "kernels/bias.h"
#include "kernels/operands.h"

namespace capstan::kernels {

void bias_forward(const View& y, const View& b, Into into) {
  const Operands operands("bias_forward", y);
  operands.check("y", y, {y.dim(0), y.dim(-1)});
  operands.check("b", b, {y.dim(-1)});
  pick(y, ref::bias_forward, cpu::bias_forward, cuda::bias_forward)(y, b, into);
}

void bias_backward(const View& db, const View& dy) {
  const Operands operands("bias_backward", dy);
  operands.check("dy", dy, {dy.dim(0), dy.dim(-1)});
  operands.check_wide("db", db, {dy.dim(-1)});
  pick(dy, ref::bias_backward, cpu::bias_backward, cuda::bias_backward)(db, dy);
}

namespace ref {

// y[t, m] = b[m]
void bias_forward(const View& y, const View& b, Into into) {
  with_real(y.type(), [&](auto real) {
    using Real = decltype(real);
    Real* const Y = y.as<Real>();        // [T, M]
    const Real* const B = b.as<Real>();  // [M]
    const std::int64_t M = y.dim(1);
    for (std::int64_t i = 0; i < y.elements(); ++i) Y[i] = (into == Into::add ? Y[i] : Real(0)) + B[i % M];
  });
}

// Of y[t, m] = b[m]:  db[m] += Σ_t dy[t, m], summed in double
void bias_backward(const View& db, const View& dy) {
  with_real(dy.type(), [&](auto real) {
    using Real = decltype(real);
    const Real* const dY = dy.as<Real>();  // [T, M]
    const std::int64_t M = dy.dim(1);
    for (std::int64_t m = 0; m < M; ++m) {
      double sum = static_cast<double>(db.as<Real>()[m]);
      for (std::int64_t t = 0; t < dy.dim(0); ++t) sum += static_cast<double>(dY[t * M + m]);
      db.as<Real>()[m] = static_cast<Real>(sum);
    }
  });
}

}  // namespace ref

}  // namespace capstan::kernels
