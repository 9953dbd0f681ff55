#include "kernels/activation.h"
#include "kernels/elements.cuh"

namespace capstan::kernels::cuda {

namespace {

/// σ(a), from exp of a negative number on both sides: no overflow, full relative accuracy.
__device__ inline float sigmoid(float a) {
  const float e = expf(-fabsf(a));
  return (a < 0 ? e : 1.0f) / (1.0f + e);
}

/// silu(a) = a σ(a);  silu'(a) = σ(a) (1 + a (1 - σ(a)))
struct Silu {
  __device__ static float value(float a) { return a * sigmoid(a); }
  __device__ static float slope(float a) {
    const float sigma = sigmoid(a);
    return sigma * (1.0f + a * (1.0f - sigma));
  }
};

/// Φ(a) = ½ erfc(-a/√2): full relative accuracy on both sides.
__device__ inline float normal(float a) { return 0.5f * erfcf(-0.707106781f * a); }

/// gelu(a) = a Φ(a);  gelu'(a) = Φ(a) + a exp(-a²/2)/√(2π)
struct Gelu {
  __device__ static float value(float a) { return a * normal(a); }
  __device__ static float slope(float a) { return normal(a) + a * (0.398942280f * expf(-0.5f * (a * a))); }
};

template <class F> struct Value {
  __device__ float operator()(float a) const { return F::value(a); }
};
template <class F> struct Gated {
  __device__ float operator()(float a, float up) const { return F::value(a) * up; }
};
template <class F> struct Gradient {
  __device__ float operator()(float dy, float a) const { return dy * F::slope(a); }
};

/// Both results of a pack are stored after everything is read: they may lie over what they are of.
template <class F, class T> struct GatedGradients {
  static constexpr int pack = widest<T>;
  T *dgate, *dup;
  const T *dh, *gate, *up;
  template <int V> __device__ void at(std::int64_t i) const {
    const Pack<T, V> of_dh = load<V>(dh + i), of_gate = load<V>(gate + i), of_up = load<V>(up + i);
    Pack<T, V> of_dgate, of_dup;
    for (int k = 0; k < V; ++k) {
      const float a = value_of(of_gate.at[k]), u = value_of(of_up.at[k]), d = value_of(of_dh.at[k]);
      of_dgate.at[k] = element_of<T>(d * u * F::slope(a));
      of_dup.at[k] = element_of<T>(d * F::value(a));
    }
    store(dgate + i, of_dgate);
    store(dup + i, of_dup);
  }
};

/// Calls body(functions, a number as stored).
template <class Body> void with(const View& x, Activation f, const Body& body) {
  with_functions<Silu, Gelu>(f, [&](auto of) { with_stored(x.type(), [&](auto stored) { body(of, stored); }); });
}

}  // namespace

// h = f(gate) up
void gated_forward(const View& h, const View& gate, const View& up, Activation f) {
  with(gate, f, [&](auto of, auto stored) {
    using T = decltype(stored);
    map_elements<T, T, T>(Gated<decltype(of)>{}, h, gate, up);
  });
}

// Of h = f(gate) up:  dgate = dh up f'(gate), dup = dh f(gate)
void gated_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up,
                    Activation f) {
  with(gate, f, [&](auto of, auto stored) {
    using T = decltype(stored);
    const GatedGradients<decltype(of), DeviceType<T>> gradients{
        device_data<T>(dgate), device_data<T>(dup), device_data<T>(dh), device_data<T>(gate), device_data<T>(up)};
    for_each_element(gradients, gate.elements(), {dgate, dup, dh, gate, up});
  });
}

// y = f(x)
void activation_forward(const View& y, const View& x, Activation f) {
  with(x, f, [&](auto of, auto stored) {
    using T = decltype(stored);
    map_elements<T, T>(Value<decltype(of)>{}, y, x);
  });
}

// Of y = f(x):  dx = dy f'(x)
void activation_backward(const View& dx, const View& dy, const View& x, Activation f) {
  with(x, f, [&](auto of, auto stored) {
    using T = decltype(stored);
    map_elements<T, T, T>(Gradient<decltype(of)>{}, dx, dy, x);
  });
}

}  // namespace capstan::kernels::cuda
