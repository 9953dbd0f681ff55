#pragma once
// FIRE's score term of one pair and one head (arXiv 2310.04418, §3; after its equation 2, with ψ(y) = ln(1 + |c| y)):
//
//   x = A / B,  A = ln(1 + |c| d),  B = ln(1 + |c| max(i, |L|)) + 1e-6
//   f = out_bias + Σ_r out_r relu(in_r x + in_bias_r)
//
// d = position_i - position_j >= 0, i = position_i.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/score_terms.h"

namespace capstan::kernels::terms {

constexpr double fire_least_denominator = 1e-6;

/// -1, 0, 1
template <class Real> Real sign(Real x) { return Real((x > 0) - (x < 0)); }

/// A NaN stays one.
template <class Real> Real relu(Real x) { return x < 0 ? Real(0) : x; }

/// Pointers to a FireTerm of one head.
template <class Real> struct Fire {
  std::int64_t width = 0;  ///< R
  Real *in = nullptr, *in_bias = nullptr, *out = nullptr, *out_bias = nullptr, *scale = nullptr;

  Fire() = default;
  /// Views may be absent: these pointers stay null.
  Fire(const FireTerm& term, std::int64_t head, std::int64_t width_in) : width(width_in) {
    const auto pointer = [](const View& view, std::int64_t offset) {
      return view ? view.as<Real>() + offset : nullptr;
    };
    in = pointer(term.in, 0);
    in_bias = pointer(term.in_bias, 0);
    out = pointer(term.out, head * width);
    out_bias = pointer(term.out_bias, head);
    scale = pointer(term.scale, 0);
  }

  Real numerator(std::int64_t distance) const { return std::log(1 + std::abs(scale[0]) * Real(distance)); }
  Real denominator(std::int64_t position) const {
    const Real reach = std::max(Real(position), std::abs(scale[1]));
    return std::log(1 + std::abs(scale[0]) * reach) + Real(fire_least_denominator);
  }
};

template <class Real> Real fire_bias(const Fire<Real>& fire, std::int64_t distance, std::int64_t position) {
  const Real x = fire.numerator(distance) / fire.denominator(position);
  Real sum = *fire.out_bias;
  for (std::int64_t r = 0; r < fire.width; ++r) sum += fire.out[r] * relu(fire.in[r] * x + fire.in_bias[r]);
  return sum;
}

/// dx → dscale: with a = |c|, m = max(i, |L|),
///   dA/da = d / (1 + a d), dB/da = m / (1 + a m), dB/dm = a / (1 + a m);  m follows |L| where |L| > i.
template <class Real>
void fire_scale_backward(Real* d_scale, Real dx, const Fire<Real>& fire, std::int64_t distance, std::int64_t position) {
  const Real a = std::abs(fire.scale[0]), d = Real(distance), reach = std::max(Real(position), std::abs(fire.scale[1]));
  const Real top = fire.numerator(distance), bottom = fire.denominator(position);
  const Real d_top = dx / bottom, d_bottom = -dx * top / (bottom * bottom);
  d_scale[0] += sign(fire.scale[0]) * (d_top * d / (1 + a * d) + d_bottom * reach / (1 + a * reach));
  if (std::abs(fire.scale[1]) > Real(position)) d_scale[1] += sign(fire.scale[1]) * d_bottom * a / (1 + a * reach);
}

/// Of fire_bias; everything in `out` adds to and may be null.
template <class Real>
void fire_bias_backward(const Fire<Real>& out, Real d_bias, const Fire<Real>& fire, std::int64_t distance,
                        std::int64_t position) {
  const Real x = fire.numerator(distance) / fire.denominator(position);
  if (out.out_bias) *out.out_bias += d_bias;
  Real dx = 0;
  for (std::int64_t r = 0; r < fire.width; ++r) {
    const Real hidden = fire.in[r] * x + fire.in_bias[r];
    if (!(hidden > 0)) continue;
    const Real d_hidden = d_bias * fire.out[r];
    if (out.out) out.out[r] += d_bias * hidden;
    if (out.in) out.in[r] += d_hidden * x;
    if (out.in_bias) out.in_bias[r] += d_hidden;
    dx += d_hidden * fire.in[r];
  }
  if (out.scale) fire_scale_backward(out.scale, dx, fire, distance, position);
}

}  // namespace capstan::kernels::terms
