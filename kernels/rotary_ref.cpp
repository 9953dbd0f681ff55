#include "kernels/rotary.h"

#include <cmath>

#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

/// x or dy [T, H, D] and z [T, Gz, D] with even D and Gz a divisor of H.
void check_rotary(const Operands& operands, const View& x, const View& z) {
  operands.check_wide("z", z, {x.dim(0), z.dim(1), x.dim(-1)});
  CAPSTAN_CHECK(x.dim(2) % 2 == 0, "head size {} is odd", x.dim(2));
  CAPSTAN_CHECK(z.dim(1) > 0 && x.dim(1) % z.dim(1) == 0, "{} heads over {} phase heads", x.dim(1), z.dim(1));
}

}  // namespace

void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude) {
  const Operands operands("rotary_phases", z);
  operands.check("z", z, {z.dim(0), 1, 2 * std::ssize(frequency)});
  operands.check("position", position, {z.dim(0)}, DType::i64);
  pick(z, ref::rotary_phases, cpu::rotary_phases, cuda::rotary_phases)(z, position, frequency, amplitude);
}

void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre) {
  const Operands operands("rotary_decay", z);
  operands.check("z", z, {z.dim(0), 1, 2 * std::ssize(log_base)});
  operands.check("position", position, {z.dim(0)}, DType::i64);
  pick(z, ref::rotary_decay, cpu::rotary_decay, cuda::rotary_decay)(z, position, log_base, centre);
}

void rotary_forward(const View& y, const View& x, const View& z) {
  const Operands operands("rotary_forward", x);
  operands.check("y", y, x.shape());
  check_rotary(operands, x, z);
  pick(x, ref::rotary_forward, cpu::rotary_forward, cuda::rotary_forward)(y, x, z);
}

void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z) {
  const Operands operands("rotary_backward", dy);
  operands.check_wide("dy", dy, dy.shape());
  operands.check("dx", dx, dy.shape());
  check_rotary(operands, dy, z);
  if (dz) {
    operands.check_any_width("x", x, dy.shape());
    operands.check("dz", dz, z.shape());
    CAPSTAN_CHECK(dy.elements() == 0 || dx.data() != dy.data(),
                  "dz needs dy after dx is written: they cannot share memory");
  }
  pick(dy, ref::rotary_backward, cpu::rotary_backward, cuda::rotary_backward)(dx, dz, dy, x, z);
}

namespace ref {

// z[t, f] = amplitude cos(angle), z[t, f + D/2] = amplitude sin(angle)
void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude) {
  with_real(z.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t half = std::ssize(frequency);
    for (std::int64_t t = 0; t < z.dim(0); ++t) {
      Real* const Z = z.as<Real>() + t * 2 * half;  // [D]
      for (std::int64_t f = 0; f < half; ++f) {
        // libm reduces the double product modulo the true 2π; an f32 product would be 0.06 rad off at a million tokens.
        const double phase =
            static_cast<double>(position.as<std::int64_t>()[t]) * frequency[static_cast<std::size_t>(f)];
        Z[f] = static_cast<Real>(amplitude * std::cos(phase));
        Z[half + f] = static_cast<Real>(amplitude * std::sin(phase));
      }
    }
  });
}

// z[t, f], z[t, f + D/2] *= exp((position - centre) log_base[f]), in double like the phases
void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre) {
  with_real(z.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t half = std::ssize(log_base);
    for (std::int64_t t = 0; t < z.dim(0); ++t) {
      Real* const Z = z.as<Real>() + t * 2 * half;  // [D]
      const double distance = static_cast<double>(position.as<std::int64_t>()[t]) - centre;
      for (std::int64_t f = 0; f < half; ++f) {
        const double decay = std::exp(distance * log_base[static_cast<std::size_t>(f)]);
        Z[f] = static_cast<Real>(static_cast<double>(Z[f]) * decay);
        Z[half + f] = static_cast<Real>(static_cast<double>(Z[half + f]) * decay);
      }
    }
  });
}

// y = x z:  yr = xr zr - xi zi,  yi = xr zi + xi zr
void rotary_forward(const View& y, const View& x, const View& z) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = x.dim(0), H = x.dim(1), D = x.dim(2), half = D / 2, Gz = z.dim(1);
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t h = 0; h < H; ++h) {
        const Real* const X = x.as<Real>() + (t * H + h) * D;              // [D]
        const Real* const Z = z.as<Real>() + (t * Gz + h / (H / Gz)) * D;  // [D]
        Real* const Y = y.as<Real>() + (t * H + h) * D;                    // [D]
        for (std::int64_t f = 0; f < half; ++f) {
          const Real xr = X[f], xi = X[half + f];
          Y[f] = xr * Z[f] - xi * Z[half + f];
          Y[half + f] = xr * Z[half + f] + xi * Z[f];
        }
      }
    }
  });
}

// Of y = x z:  dx = conj(z) dy,  dz[g] += Σ_{h in g} conj(x) dy
void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z) {
  with_real(dy.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = dy.dim(0), H = dy.dim(1), D = dy.dim(2), half = D / 2, Gz = z.dim(1);
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t at = (t * H + h) * D, at_z = (t * Gz + h / (H / Gz)) * D;
        const Real *dY = dy.as<Real>() + at, *Z = z.as<Real>() + at_z;  // [D]
        Real* const dX = dx.as<Real>() + at;                            // [D]
        for (std::int64_t f = 0; f < half; ++f) {
          const Real dyr = dY[f], dyi = dY[half + f];
          dX[f] = Z[f] * dyr + Z[half + f] * dyi;
          dX[half + f] = Z[f] * dyi - Z[half + f] * dyr;
          if (!dz) continue;
          const Real* X = x.as<Real>() + at;      // [D]
          Real* const dZ = dz.as<Real>() + at_z;  // [D]
          dZ[f] += X[f] * dyr + X[half + f] * dyi;
          dZ[half + f] += X[f] * dyi - X[half + f] * dyr;
        }
      }
    }
  });
}

}  // namespace ref

}  // namespace capstan::kernels
