#include "kernels/isa.h"
#include "kernels/rotary.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

/// y = x z over one head, D = 2 half. y may be the memory of x: both elements of a pair are read before either is written.
template <class T> [[gnu::always_inline]] inline void multiply(T* y, const T* x, const float* z, std::int64_t half) {
#pragma GCC ivdep
  for (std::int64_t f = 0; f < half; ++f) {
    const float xr = to_float(x[f]), xi = to_float(x[half + f]);
    y[f] = stored_as<T>(xr * z[f] - xi * z[half + f]);
    y[half + f] = stored_as<T>(xr * z[half + f] + xi * z[f]);
  }
}

/// y (+)= conj(z) x over one head; y may be the memory of x when it overwrites.
template <Into into, class Z>
[[gnu::always_inline]] inline void multiply_conjugate(float* y, const Z* z, const float* x, std::int64_t half) {
#pragma GCC ivdep
  for (std::int64_t f = 0; f < half; ++f) {
    const float xr = x[f], xi = x[half + f], zr = to_float(z[f]), zi = to_float(z[half + f]);
    const float real = zr * xr + zi * xi, imaginary = zr * xi - zi * xr;
    y[f] = into == Into::add ? y[f] + real : real;
    y[half + f] = into == Into::add ? y[half + f] + imaginary : imaginary;
  }
}

}  // namespace

// Made once per step, by cos, sin and exp in double: there is nothing to gain from a second version.
constexpr std::int64_t cost_of_phase = 32;

void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude) {
  parallel_rows(z.dim(0), z.dim(2) * cost_of_phase, [&](std::int64_t begin, std::int64_t end) {
    ref::rotary_phases(z.rows(begin, end), position.rows(begin, end), frequency, amplitude);
  });
}

void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre) {
  parallel_rows(z.dim(0), z.dim(2) * cost_of_phase, [&](std::int64_t begin, std::int64_t end) {
    ref::rotary_decay(z.rows(begin, end), position.rows(begin, end), log_base, centre);
  });
}

// y = x z
void rotary_forward(const View& y, const View& x, const View& z) {
  const std::int64_t H = x.dim(1), D = x.dim(2), Gz = z.dim(1), group = H / Gz;
  const float* const Z = z.as<float>();  // [T, Gz, D]
  with_stored(x.type(), [&](auto stored) {
    using Value = decltype(stored);
    Value* const Y = y.as<Value>();        // [T, H, D]
    const Value* const X = x.as<Value>();  // [T, H, D]
    parallel_rows(x.dim(0), H * D, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t h = 0; h < H; ++h)
            multiply(Y + (t * H + h) * D, X + (t * H + h) * D, Z + (t * Gz + h / group) * D, D / 2);
      });
    });
  });
}

// Of y = x z:  dx = conj(z) dy,  dz[g] += Σ_{h in g} conj(x) dy
void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z) {
  const std::int64_t H = dy.dim(1), D = dy.dim(2), Gz = z.dim(1), group = H / Gz;
  float *const dX = dx.as<float>(), *const dZ = dz ? dz.as<float>() : nullptr;  // [T, H, D], [T, Gz, D]
  const float *const dY = dy.as<float>(), *const Z = z.as<float>();             // [T, H, D], [T, Gz, D]
  with_stored(dz ? x.type() : DType::f32, [&](auto stored) {
    using Value = decltype(stored);
    const Value* const X = dz ? x.as<Value>() : nullptr;  // [T, H, D]
    parallel_rows(dy.dim(0), H * D, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t) {
          for (std::int64_t h = 0; h < H; ++h) {
            const std::int64_t at = (t * H + h) * D, at_z = (t * Gz + h / group) * D;
            multiply_conjugate<Into::overwrite>(dX + at, Z + at_z, dY + at, D / 2);
            if (dZ) multiply_conjugate<Into::add>(dZ + at_z, X + at, dY + at, D / 2);
          }
        }
      });
    });
  });
}

}  // namespace capstan::kernels::cpu
