#include <bit>

#include "kernels/elementwise.h"
#include "kernels/isa.h"

// One multiplication or addition per element, so that vector parts and tails of loops round alike wherever they fall.
// These loops wait for memory; the compiler's default instruction set is enough except for all_finite.

namespace capstan::kernels::cpu {

void add(const View& y, const View& x) {
  const std::int64_t n = y.elements();
  float* const Y = y.as<float>();
  const float* const X = x.as<float>();
  for (std::int64_t i = 0; i < n; ++i) Y[i] += X[i];
}

void scale(const View& y, double factor) {
  const std::int64_t n = y.elements();
  float* const Y = y.as<float>();
  const float f = static_cast<float>(factor);
  for (std::int64_t i = 0; i < n; ++i) Y[i] *= f;
}

// y[t, g] = factor Σ_{h in g} x[t, h], summed in the order of h
void group_sum(const View& y, const View& x, double factor) {
  const std::int64_t TG = y.dim(0) * y.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
  const float f = static_cast<float>(factor);
  for (std::int64_t tg = 0; tg < TG; ++tg) {
    float* const Y = y.as<float>() + tg * D;                // [D]
    const float* const X = x.as<float>() + tg * group * D;  // [H/G, D]
    for (std::int64_t d = 0; d < D; ++d) Y[d] = X[d];
    for (std::int64_t h = 1; h < group; ++h)
      for (std::int64_t d = 0; d < D; ++d) Y[d] += X[h * D + d];
    for (std::int64_t d = 0; d < D; ++d) Y[d] *= f;
  }
}

// Of y[t, g] = factor Σ_{h in g} x[t, h]:  x[t, h] = factor y[t, g(h)]
void group_spread(const View& x, const View& y, double factor) {
  const std::int64_t TH = x.dim(0) * x.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
  const float f = static_cast<float>(factor);
  for (std::int64_t th = 0; th < TH; ++th) {
    float* const X = x.as<float>() + th * D;                // [D]
    const float* const Y = y.as<float>() + th / group * D;  // [D]
    for (std::int64_t d = 0; d < D; ++d) X[d] = f * Y[d];
  }
}

// Row copies by memcpy: nothing to gain from a second version.
void take_columns(const View& part, const View& whole, std::int64_t begin) { ref::take_columns(part, whole, begin); }
void put_columns(const View& whole, const View& part, std::int64_t begin) { ref::put_columns(whole, part, begin); }

bool all_finite(const View& x) {
  constexpr std::uint32_t exponent = 0x7f800000;  // all ones in infinities and NaNs only
  const std::int64_t n = x.elements();
  const float* const X = x.as<float>();
  std::uint32_t bad = 0;
  on_best_isa([ =, &bad ]() __attribute__((always_inline)) {
    std::uint32_t found = 0;
    for (std::int64_t i = 0; i < n; ++i)
      found |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(X[i]) & exponent) == exponent);
    bad = found;
  });
  return bad == 0;
}

}  // namespace capstan::kernels::cpu
