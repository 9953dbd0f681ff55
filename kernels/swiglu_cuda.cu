#include "kernels/elements.cuh"
#include "kernels/swiglu.h"

namespace capstan::kernels::cuda {

namespace {

/// σ(a), from exp of a negative number on both sides: no overflow, full relative accuracy.
__device__ inline float sigmoid(float a) {
  const float e = expf(-fabsf(a));
  return (a < 0 ? e : 1.0f) / (1.0f + e);
}

__device__ inline float silu(float a) { return a * sigmoid(a); }

/// silu'(a) = σ(a) (1 + a (1 - σ(a)))
__device__ inline float silu_slope(float a) {
  const float sigma = sigmoid(a);
  return sigma * (1.0f + a * (1.0f - sigma));
}

struct Silu {
  __device__ float operator()(float a) const { return silu(a); }
};
struct GatedSilu {
  __device__ float operator()(float a, float up) const { return silu(a) * up; }
};
struct SiluGradient {
  __device__ float operator()(float dy, float a) const { return dy * silu_slope(a); }
};

/// Both results of a pack are stored after everything is read: they may lie over what they are of.
template <class T> struct SwigluGradients {
  static constexpr int pack = widest<T>;
  T *dgate, *dup;
  const T *dh, *gate, *up;
  template <int V> __device__ void at(std::int64_t i) const {
    const Pack<T, V> of_dh = load<V>(dh + i), of_gate = load<V>(gate + i), of_up = load<V>(up + i);
    Pack<T, V> of_dgate, of_dup;
    for (int k = 0; k < V; ++k) {
      const float a = value_of(of_gate.at[k]), u = value_of(of_up.at[k]), d = value_of(of_dh.at[k]);
      of_dgate.at[k] = element_of<T>(d * u * silu_slope(a));
      of_dup.at[k] = element_of<T>(d * silu(a));
    }
    store(dgate + i, of_dgate);
    store(dup + i, of_dup);
  }
};

}  // namespace

// h = silu(gate) up
void swiglu_forward(const View& h, const View& gate, const View& up) {
  with_stored(gate.type(), [&](auto stored) {
    using T = decltype(stored);
    map_elements<T, T, T>(GatedSilu{}, h, gate, up);
  });
}

// Of h = silu(gate) up:  dgate = dh up silu'(gate), dup = dh silu(gate)
void swiglu_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up) {
  with_stored(gate.type(), [&](auto stored) {
    using T = decltype(stored);
    const SwigluGradients<DeviceType<T>> gradients{device_data<T>(dgate), device_data<T>(dup), device_data<T>(dh),
                                                   device_data<T>(gate), device_data<T>(up)};
    for_each_element(gradients, gate.elements(), {dgate, dup, dh, gate, up});
  });
}

// y = silu(x)
void silu_forward(const View& y, const View& x) {
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    map_elements<T, T>(Silu{}, y, x);
  });
}

// Of y = silu(x):  dx = dy silu'(x)
void silu_backward(const View& dx, const View& dy, const View& x) {
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    map_elements<T, T, T>(SiluGradient{}, dx, dy, x);
  });
}

}  // namespace capstan::kernels::cuda
