#include "kernels/isa.h"
#include "kernels/rotary.h"

namespace capstan::kernels::cpu {

namespace {

/// y = x z over one head, D = 2 half. y may be the memory of x: both elements of a pair are read before either is written.
[[gnu::always_inline]] inline void multiply(float* y, const float* x, const float* z, std::int64_t half) {
#pragma GCC ivdep
  for (std::int64_t f = 0; f < half; ++f) {
    const float xr = x[f], xi = x[half + f];
    y[f] = xr * z[f] - xi * z[half + f];
    y[half + f] = xr * z[half + f] + xi * z[f];
  }
}

/// y (+)= conj(z) x over one head; y may be the memory of x when it overwrites.
template <Into into>
[[gnu::always_inline]] inline void multiply_conjugate(float* y, const float* z, const float* x, std::int64_t half) {
#pragma GCC ivdep
  for (std::int64_t f = 0; f < half; ++f) {
    const float xr = x[f], xi = x[half + f];
    const float real = z[f] * xr + z[half + f] * xi, imaginary = z[f] * xi - z[half + f] * xr;
    y[f] = into == Into::add ? y[f] + real : real;
    y[half + f] = into == Into::add ? y[half + f] + imaginary : imaginary;
  }
}

}  // namespace

// Made once per step, by cos, sin and exp in double: there is nothing to gain from a second version.
void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude) {
  ref::rotary_phases(z, position, frequency, amplitude);
}

void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre) {
  ref::rotary_decay(z, position, log_base, centre);
}

// y = x z
void rotary_forward(const View& y, const View& x, const View& z) {
  const std::int64_t T = x.dim(0), H = x.dim(1), D = x.dim(2), Gz = z.dim(1), group = H / Gz;
  float* const Y = y.as<float>();                                  // [T, H, D]
  const float *const X = x.as<float>(), *const Z = z.as<float>();  // [T, H, D], [T, Gz, D]
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t h = 0; h < H; ++h)
        multiply(Y + (t * H + h) * D, X + (t * H + h) * D, Z + (t * Gz + h / group) * D, D / 2);
  });
}

// Of y = x z:  dx = conj(z) dy,  dz[g] += Σ_{h in g} conj(x) dy
void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z) {
  const std::int64_t T = dy.dim(0), H = dy.dim(1), D = dy.dim(2), Gz = z.dim(1), group = H / Gz;
  float *const dX = dx.as<float>(), *const dZ = dz ? dz.as<float>() : nullptr;  // [T, H, D], [T, Gz, D]
  const float *const dY = dy.as<float>(), *const Z = z.as<float>();             // [T, H, D], [T, Gz, D]
  const float* const X = dz ? x.as<float>() : nullptr;                          // [T, H, D]
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t at = (t * H + h) * D, at_z = (t * Gz + h / group) * D;
        multiply_conjugate<Into::overwrite>(dX + at, Z + at_z, dY + at, D / 2);
        if (dZ) multiply_conjugate<Into::add>(dZ + at_z, X + at, dY + at, D / 2);
      }
    }
  });
}

}  // namespace capstan::kernels::cpu
