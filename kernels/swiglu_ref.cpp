#include "kernels/swiglu.h"

#include <cmath>

#include "kernels/operands.h"

namespace capstan::kernels {

void swiglu_forward(const View& h, const View& gate, const View& up) {
  const Operands operands("swiglu_forward", gate);
  operands.check("h", h, gate.shape());
  operands.check("up", up, gate.shape());
  pick(gate, ref::swiglu_forward, cpu::swiglu_forward, cuda::swiglu_forward)(h, gate, up);
}

void swiglu_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up) {
  const Operands operands("swiglu_backward", gate);
  operands.check("dgate", dgate, gate.shape());
  operands.check("dup", dup, gate.shape());
  operands.check("dh", dh, gate.shape());
  operands.check("up", up, gate.shape());
  pick(gate, ref::swiglu_backward, cpu::swiglu_backward, cuda::swiglu_backward)(dgate, dup, dh, gate, up);
}

void silu_forward(const View& y, const View& x) {
  Operands("silu_forward", x).check("y", y, x.shape());
  pick(x, ref::silu_forward, cpu::silu_forward, cuda::silu_forward)(y, x);
}

void silu_backward(const View& dx, const View& dy, const View& x) {
  const Operands operands("silu_backward", x);
  operands.check("dx", dx, x.shape());
  operands.check("dy", dy, x.shape());
  pick(x, ref::silu_backward, cpu::silu_backward, cuda::silu_backward)(dx, dy, x);
}

namespace ref {

namespace {

/// σ(a), from exp of a negative number on both sides: no overflow, full relative accuracy.
template <class Real> Real sigmoid(Real a) {
  const Real e = std::exp(-std::abs(a));
  return (a < 0 ? e : Real(1)) / (1 + e);
}

template <class Real> Real silu(Real a) { return a * sigmoid(a); }

/// silu'(a) = σ(a) (1 + a (1 - σ(a)))
template <class Real> Real silu_slope(Real a) { return sigmoid(a) * (1 + a * (1 - sigmoid(a))); }

}  // namespace

// h = silu(gate) up
void swiglu_forward(const View& h, const View& gate, const View& up) {
  with_real(gate.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < gate.elements(); ++i) h.as<Real>()[i] = silu(gate.as<Real>()[i]) * up.as<Real>()[i];
  });
}

// Of h = silu(gate) up:  dgate = dh up silu'(gate), dup = dh silu(gate)
void swiglu_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up) {
  with_real(gate.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < gate.elements(); ++i) {
      const Real a = gate.as<Real>()[i], u = up.as<Real>()[i],
                 d = dh.as<Real>()[i];  // first: dgate, dup may lie over them
      dgate.as<Real>()[i] = d * u * silu_slope(a);
      dup.as<Real>()[i] = d * silu(a);
    }
  });
}

// y = silu(x)
void silu_forward(const View& y, const View& x) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < x.elements(); ++i) y.as<Real>()[i] = silu(x.as<Real>()[i]);
  });
}

// Of y = silu(x):  dx = dy silu'(x)
void silu_backward(const View& dx, const View& dy, const View& x) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < x.elements(); ++i) dx.as<Real>()[i] = dy.as<Real>()[i] * silu_slope(x.as<Real>()[i]);
  });
}

}  // namespace ref

}  // namespace capstan::kernels
