#include <cmath>
#include <numbers>

#include "kernels/activation.h"
#include "kernels/operands.h"

namespace capstan::kernels {

void gated_forward(const View& h, const View& gate, const View& up, Activation f) {
  const Operands operands("gated_forward", gate);
  operands.check("h", h, gate.shape());
  operands.check("up", up, gate.shape());
  pick(gate, ref::gated_forward, cpu::gated_forward, cuda::gated_forward)(h, gate, up, f);
}

void gated_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up,
                    Activation f) {
  const Operands operands("gated_backward", gate);
  operands.check("dgate", dgate, gate.shape());
  operands.check("dup", dup, gate.shape());
  operands.check("dh", dh, gate.shape());
  operands.check("up", up, gate.shape());
  pick(gate, ref::gated_backward, cpu::gated_backward, cuda::gated_backward)(dgate, dup, dh, gate, up, f);
}

void activation_forward(const View& y, const View& x, Activation f) {
  Operands("activation_forward", x).check("y", y, x.shape());
  pick(x, ref::activation_forward, cpu::activation_forward, cuda::activation_forward)(y, x, f);
}

void activation_backward(const View& dx, const View& dy, const View& x, Activation f) {
  const Operands operands("activation_backward", x);
  operands.check("dx", dx, x.shape());
  operands.check("dy", dy, x.shape());
  pick(x, ref::activation_backward, cpu::activation_backward, cuda::activation_backward)(dx, dy, x, f);
}

namespace ref {

namespace {

/// σ(a), from exp of a negative number on both sides: no overflow, full relative accuracy.
template <class Real> Real sigmoid(Real a) {
  const Real e = std::exp(-std::abs(a));
  return (a < 0 ? e : Real(1)) / (1 + e);
}

/// silu(a) = a σ(a);  silu'(a) = σ(a) (1 + a (1 - σ(a)))
struct Silu {
  template <class Real> Real value(Real a) const { return a * sigmoid(a); }
  template <class Real> Real slope(Real a) const { return sigmoid(a) * (1 + a * (1 - sigmoid(a))); }
};

/// Φ(a) = ½ erfc(-a/√2): full relative accuracy on both sides.
template <class Real> Real normal(Real a) { return Real(0.5) * std::erfc(-a / std::numbers::sqrt2_v<Real>); }

/// gelu(a) = a Φ(a);  gelu'(a) = Φ(a) + a exp(-a²/2)/√(2π)
struct Gelu {
  template <class Real> Real value(Real a) const { return a * normal(a); }
  template <class Real> Real slope(Real a) const {
    constexpr Real peak = std::numbers::inv_sqrtpi_v<Real> / std::numbers::sqrt2_v<Real>;
    return normal(a) + a * peak * std::exp(-a * a / 2);
  }
};

/// Calls body(functions, a number of the type).
template <class Body> void with(const View& x, Activation f, const Body& body) {
  with_functions<Silu, Gelu>(f, [&](auto of) { with_real(x.type(), [&](auto real) { body(of, real); }); });
}

}  // namespace

// h = f(gate) up
void gated_forward(const View& h, const View& gate, const View& up, Activation f) {
  with(gate, f, [&](auto of, auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < gate.elements(); ++i)
      h.as<Real>()[i] = of.value(gate.as<Real>()[i]) * up.as<Real>()[i];
  });
}

// Of h = f(gate) up:  dgate = dh up f'(gate), dup = dh f(gate)
void gated_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up,
                    Activation f) {
  with(gate, f, [&](auto of, auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < gate.elements(); ++i) {
      const Real a = gate.as<Real>()[i], u = up.as<Real>()[i],
                 d = dh.as<Real>()[i];  // first: dgate, dup may lie over them
      dgate.as<Real>()[i] = d * u * of.slope(a);
      dup.as<Real>()[i] = d * of.value(a);
    }
  });
}

// y = f(x)
void activation_forward(const View& y, const View& x, Activation f) {
  with(x, f, [&](auto of, auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < x.elements(); ++i) y.as<Real>()[i] = of.value(x.as<Real>()[i]);
  });
}

// Of y = f(x):  dx = dy f'(x)
void activation_backward(const View& dx, const View& dy, const View& x, Activation f) {
  with(x, f, [&](auto of, auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < x.elements(); ++i) dx.as<Real>()[i] = dy.as<Real>()[i] * of.slope(x.as<Real>()[i]);
  });
}

}  // namespace ref

}  // namespace capstan::kernels
