#include "tests/support/oracle_tape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace capstan::tests {

namespace {

/// e^-|x|, from which σ and its relatives come without overflow or cancellation.
template <class Real> Real decay(Real x) { return std::exp(-std::abs(x)); }

template <class Real> Real sigma(Real x) { return (x >= 0 ? Real(1) : decay(x)) / (1 + decay(x)); }

/// To eight significant bits, ties to even.
template <class Real> Real bfloat16(Real x) {
  int exponent = 0;
  const Real mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(mantissa * 256), exponent - 8);
}

template <class Real> Real sign(Real x) { return Real((x > 0) - (x < 0)); }

}  // namespace

template <class Real> auto OracleTape<Real>::close(Real value, Real scale) -> Id {
  if (values_.size() >= std::numeric_limits<Id>::max()) throw std::length_error("oracle tape: too many nodes");
  values_.push_back(value);
  if (recorded_) nodes_.push_back({scale, terms_.size(), pairs_.size()});
  return Id(values_.size() - 1);
}

template <class Real> auto OracleTape<Real>::dot(Ids a, Ids b, Real scale) -> Id {
  if (a.size() != b.size()) throw std::invalid_argument("oracle tape: dot product of different lengths");
  Real sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (recorded_) pairs_.push_back({a[n], b[n]});
    sum += value(a[n]) * value(b[n]);
  }
  return close(scale * sum, scale);
}

template <class Real> auto OracleTape<Real>::products(Id a, Id b, Id c, Id d, Real factor) -> Id {
  term(a, value(b));
  term(b, value(a));
  term(c, factor * value(d));
  term(d, factor * value(c));
  return close(value(a) * value(b) + factor * value(c) * value(d));
}

template <class Real> auto OracleTape<Real>::product(Id a, Id b, Id c) -> Id {
  term(a, value(b) * value(c));
  term(b, value(a) * value(c));
  term(c, value(a) * value(b));
  return close(value(a) * value(b) * value(c));
}

template <class Real> auto OracleTape<Real>::quotient(Id a, Id b) -> Id {
  const Real result = value(a) / value(b);
  term(a, 1 / value(b));
  term(b, -result / value(b));
  return close(result);
}

template <class Real> auto OracleTape<Real>::stored(Id x) -> Id {
  if (!narrow_) return x;
  term(x, 1);
  const Id id = close(bfloat16(value(x)));
  if (recorded_) nodes_[id].stored = true;
  return id;
}

template <class Real> auto OracleTape<Real>::linear(Id a, Real u, Id b, Real v) -> Id {
  term(a, u);
  term(b, v);
  return close(u * value(a) + v * value(b));
}

template <class Real> auto OracleTape<Real>::linear(Id a, Real u, Real constant) -> Id {
  term(a, u);
  return close(u * value(a) + constant);
}

template <class Real> auto OracleTape<Real>::sum(Ids x, Real scale) -> Id {
  Real total = 0;
  for (Id each : x) {
    term(each, scale);
    total += value(each);
  }
  return close(scale * total);
}

template <class Real> auto OracleTape<Real>::sigmoid(Id x) -> Id {
  const Real e = decay(value(x));
  term(x, e / ((1 + e) * (1 + e)));  // σ' = σ (1 - σ)
  return close(sigma(value(x)));
}

template <class Real> auto OracleTape<Real>::log_sigmoid(Id x) -> Id {
  term(x, sigma(-value(x)));  // σ' / σ = 1 - σ
  return close(std::min(value(x), Real(0)) - std::log1p(decay(value(x))));
}

template <class Real> auto OracleTape<Real>::silu(Id x) -> Id {
  const Real v = value(x), s = sigma(v);
  term(x, s + v * s * sigma(-v));
  return close(v * s);
}

template <class Real> auto OracleTape<Real>::gelu(Id x) -> Id {
  const Real v = value(x), normal = (1 + std::erf(v / std::sqrt(Real(2)))) / 2;
  const Real density = std::exp(-v * v / 2) / std::sqrt(2 * std::acos(Real(-1)));
  term(x, normal + v * density);
  return close(v * normal);
}

template <class Real> auto OracleTape<Real>::relu(Id x) -> Id {
  if (value(x) <= 0) return leaf(0);
  return linear(x, 1);
}

template <class Real> auto OracleTape<Real>::capped(Id x, Real cap) -> Id {
  if (value(x) >= cap) return leaf(cap);
  return linear(x, 1);
}

template <class Real> auto OracleTape<Real>::exp_difference(Id a, Id b) -> Id {
  const Real result = std::exp(value(a) - value(b));
  term(a, result);
  term(b, -result);
  return close(result);
}

template <class Real> auto OracleTape<Real>::log_sum_exp(Ids x) -> Id {
  Real highest = value(x[0]), sum = 0;
  for (Id each : x) highest = std::max(highest, value(each));
  for (Id each : x) sum += std::exp(value(each) - highest);
  if (recorded_)
    for (Id each : x) term(each, std::exp(value(each) - highest) / sum);
  return close(highest + std::log(sum));
}

template <class Real> auto OracleTape<Real>::inverse_rms(Ids x, Real eps) -> Id {
  const Real count = Real(x.size());
  Real squares = 0;
  for (Id each : x) squares += value(each) * value(each);
  const Real r = 1 / std::sqrt(squares / count + eps);
  for (Id each : x) term(each, -r * r * r * value(each) / count);
  return close(r);
}

template <class Real> auto OracleTape<Real>::mix(Id p, Id below, Id above) -> Id {
  const Real w = value(p) - std::floor(value(p));
  term(p, value(above) - value(below));
  term(below, 1 - w);
  term(above, w);
  return close((1 - w) * value(below) + w * value(above));
}

template <class Real> auto OracleTape<Real>::log_distance(Id c, Real d) -> Id {
  const Real size = std::abs(value(c));
  term(c, sign(value(c)) * d / (1 + size * d));
  return close(std::log1p(size * d));
}

template <class Real> auto OracleTape<Real>::log_range(Id c, Id l, Real d, Real offset) -> Id {
  const Real size = std::abs(value(c)), range = std::max(d, std::abs(value(l)));
  term(c, sign(value(c)) * range / (1 + size * range));
  if (std::abs(value(l)) > d) term(l, sign(value(l)) * size / (1 + size * range));
  return close(std::log1p(size * range) + offset);
}

template <class Real> void OracleTape<Real>::backward(Id output) {
  if (!recorded_) throw std::logic_error("oracle tape: only values");
  adjoints_.assign(nodes_.size(), 0);
  adjoints_[output] = 1;
  for (std::size_t n = std::size_t(output) + 1; n-- > 0;) {
    if (nodes_[n].stored) adjoints_[n] = bfloat16(adjoints_[n]);
    const Real adjoint = adjoints_[n], scaled = adjoint * nodes_[n].scale;
    if (adjoint == 0) continue;
    for (std::size_t t = n == 0 ? 0 : nodes_[n - 1].terms; t < nodes_[n].terms; ++t)
      adjoints_[terms_[t].input] += adjoint * terms_[t].partial;
    for (std::size_t t = n == 0 ? 0 : nodes_[n - 1].pairs; t < nodes_[n].pairs; ++t) {
      adjoints_[pairs_[t].a] += scaled * value(pairs_[t].b);
      adjoints_[pairs_[t].b] += scaled * value(pairs_[t].a);
    }
  }
}

template class OracleTape<float>;
template class OracleTape<double>;
template class OracleTape<long double>;

}  // namespace capstan::tests
