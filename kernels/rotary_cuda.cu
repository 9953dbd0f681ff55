#include "kernels/elements.cuh"
#include "kernels/rotary.h"

// Pairs (f, f + D/2) of a head are computed by one thread, or several pairs as packs. The order of f32 operations is the cpu's.

namespace capstan::kernels::cuda {

namespace {

constexpr std::int64_t passed_entries = 256;

/// Numbers in double that a kernel gets with its other parameters (4 KiB at most, CUDA guide, "Function Parameters").
struct Passed {
  double at[passed_entries];
};

/// z[t, f] of [T, D] for entries first ≤ f < first + count of each half row; i counts pairs of those.
struct Phases {
  static constexpr int pack = 1;
  float* z;                      // [T, 2 half]
  const std::int64_t* position;  // [T]
  Passed frequency;
  double amplitude;
  std::int64_t half, first, count;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [t, f] = divide(i, count);
    // The product is rounded, not fused with the reduction that follows: the angle of every device.
    const double phase = __dmul_rn(static_cast<double>(position[t]), frequency.at[f]);
    float* const row = z + t * 2 * half + first + f;
    row[0] = static_cast<float>(amplitude * cos(phase));
    row[half] = static_cast<float>(amplitude * sin(phase));
  }
};

/// z[t, f], z[t, f + D/2] *= exp((position - centre) log_base[f])
struct Decay {
  static constexpr int pack = 1;
  float* z;
  const std::int64_t* position;
  Passed log_base;
  double centre;
  std::int64_t half, first, count;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [t, f] = divide(i, count);
    const double decay = exp((static_cast<double>(position[t]) - centre) * log_base.at[f]);
    float* const row = z + t * 2 * half + first + f;
    row[0] = static_cast<float>(static_cast<double>(row[0]) * decay);
    row[half] = static_cast<float>(static_cast<double>(row[half]) * decay);
  }
};

/// op over all pairs of z [T, 1, D], which has its numbers (a field of Op) from `numbers`, as many at a time as can be passed.
template <class Op>
void for_each_phase(const View& z, const View& position, const std::vector<double>& numbers, double other) {
  const std::int64_t half = std::ssize(numbers);
  for (std::int64_t first = 0; first < half; first += passed_entries) {
    const std::int64_t count = std::min(passed_entries, half - first);
    Passed passed{};
    std::copy_n(numbers.begin() + first, count, passed.at);
    const Op op{device_data<float>(z), device_data<std::int64_t>(position), passed, other, half, first, count};
    for_each_element(op, z.dim(0) * count, {});
  }
}

}  // namespace

// z[t, f] = amplitude cos(angle), z[t, f + D/2] = amplitude sin(angle), in double, cast last
void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude) {
  for_each_phase<Phases>(z, position, frequency, amplitude);
}

// z[t, f], z[t, f + D/2] *= exp((position - centre) log_base[f]), in double like the phases
void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre) {
  for_each_phase<Decay>(z, position, log_base, centre);
}

namespace {

/// y = x z; i counts pairs of x.
template <class T> struct Rotate {
  static constexpr int pack = 4;
  T* y;            // [T, H, D]
  const T* x;      // [T, H, D]
  const float* z;  // [T, H / group, D]
  std::int64_t group, half;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [th, f] = divide(i, half);
    const std::int64_t at = th * 2 * half + f, at_z = divide(th, group).quotient * 2 * half + f;
    const Pack<T, V> xr = load<V>(x + at), xi = load<V>(x + at + half);
    const Pack<float, V> zr = load<V>(z + at_z), zi = load<V>(z + at_z + half);
    Pack<T, V> yr, yi;
    for (int k = 0; k < V; ++k) {
      const float real = value_of(xr.at[k]), imaginary = value_of(xi.at[k]);
      yr.at[k] = element_of<T>(real * zr.at[k] - imaginary * zi.at[k]);
      yi.at[k] = element_of<T>(real * zi.at[k] + imaginary * zr.at[k]);
    }
    store(y + at, yr);
    store(y + at + half, yi);
  }
};

}  // namespace

// y = x z
void rotary_forward(const View& y, const View& x, const View& z) {
  const std::int64_t half = x.dim(2) / 2, group = x.dim(1) / z.dim(1);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    const Rotate<DeviceType<T>> rotate{device_data<T>(y), device_data<T>(x), device_data<float>(z), group, half};
    for_each_element(rotate, x.elements() / 2, {y, x, z}, half);
  });
}

namespace {

/// y (+)= conj(z) x of V pairs.
template <int V, class Z>
__device__ inline void multiply_conjugate(Pack<float, V>& yr, Pack<float, V>& yi, const Pack<Z, V>& zr,
                                          const Pack<Z, V>& zi, const Pack<float, V>& xr, const Pack<float, V>& xi) {
  for (int k = 0; k < V; ++k) {
    const float real = value_of(zr.at[k]), imaginary = value_of(zi.at[k]);
    yr.at[k] += real * xr.at[k] + imaginary * xi.at[k];
    yi.at[k] += real * xi.at[k] - imaginary * xr.at[k];
  }
}

/// dx = conj(z) dy, dz += conj(x) dy over `heads` heads that follow each other: one without dz, a z head's group with it. i counts
/// pairs of such groups. dx may be the memory of dy.
template <class T> struct RotateBack {
  static constexpr int pack = 4;
  float *dx, *dz;   // [T, H, D], [T, Gz, D] or null
  const float* dy;  // [T, H, D]
  const T* x;       // [T, H, D], unless dz is null
  const float* z;   // [T, Gz, D]
  std::int64_t heads, group, half;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [first, f] = divide(i, half);
    const std::int64_t at_z = divide(first * heads, group).quotient * 2 * half + f;
    const Pack<float, V> zr = load<V>(z + at_z), zi = load<V>(z + at_z + half);
    Pack<float, V> dzr{}, dzi{};
    if (dz) dzr = load<V>(dz + at_z), dzi = load<V>(dz + at_z + half);
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t at = (first * heads + h) * 2 * half + f;
      const Pack<float, V> dyr = load<V>(dy + at), dyi = load<V>(dy + at + half);
      Pack<float, V> dxr{}, dxi{};
      multiply_conjugate<V>(dxr, dxi, zr, zi, dyr, dyi);
      store(dx + at, dxr);
      store(dx + at + half, dxi);
      if (dz) multiply_conjugate<V>(dzr, dzi, load<V>(x + at), load<V>(x + at + half), dyr, dyi);
    }
    if (dz) store(dz + at_z, dzr), store(dz + at_z + half, dzi);
  }
};

}  // namespace

// Of y = x z:  dx = conj(z) dy,  dz[g] += Σ_{h in g} conj(x) dy, in the order of h
void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z) {
  const std::int64_t half = dy.dim(2) / 2, group = dy.dim(1) / z.dim(1), heads = dz ? group : 1;
  with_stored(dz ? x.type() : DType::f32, [&](auto stored) {
    using T = decltype(stored);
    const RotateBack<DeviceType<T>> back{device_data<float>(dx),
                                         dz ? device_data<float>(dz) : nullptr,
                                         device_data<float>(dy),
                                         dz ? device_data<T>(x) : nullptr,
                                         device_data<float>(z),
                                         heads,
                                         group,
                                         half};
    for_each_element(back, dy.elements() / 2 / heads, {dx, dy, z, dz ? dz : dx, dz ? x : dx}, half);
  });
}

}  // namespace capstan::kernels::cuda
