// Each loop runs over one row of the last axis at a time: which elements fall into a loop's vector part and which into its tail
// then depends on the row's length only, never on the row's place in the call. `ivdep`: results may lie exactly over an operand
// (the header's promise), which every loop bears, since it reads an index before it writes it.

#include "kernels/activation.h"
#include "kernels/isa.h"
#include "kernels/simd_math.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

/// silu(a) = a σ(a);  silu'(a) = σ(a) (1 + a (1 - σ(a)))
struct Silu {
  [[gnu::always_inline]] static float value(float a) { return a * fast_sigmoid(a); }
  [[gnu::always_inline]] static float slope(float a) {
    const float sigma = fast_sigmoid(a);
    return sigma * (1.0f + a * (1.0f - sigma));
  }
};

/// gelu(a) = a Φ(a);  gelu'(a) = Φ(a) + a exp(-a²/2)/√(2π)
struct Gelu {
  [[gnu::always_inline]] static float value(float a) { return a * fast_normal(a, fast_bell(a)); }
  [[gnu::always_inline]] static float slope(float a) {
    constexpr float peak = 0.398942280f;  // 1/√(2π)
    const float bell = fast_bell(a);
    return fast_normal(a, bell) + a * (peak * bell);
  }
};

/// Calls body(functions, a number as stored).
template <class Body> void with(const View& x, Activation f, const Body& body) {
  with_functions<Silu, Gelu>(f, [&](auto of) { with_stored(x.type(), [&](auto stored) { body(of, stored); }); });
}

/// Calls row(offset, length) for each row of the last axis, compiled for this machine, on the rank's threads.
template <class Row> void for_each_row(const View& view, const Row& row) {
  const std::int64_t length = view.shape().rank() == 0 ? 1 : view.dim(-1);
  parallel_rows(length == 0 ? 0 : view.elements() / length, length, [&](std::int64_t begin, std::int64_t end) {
    on_best_isa([ =, &row ]() __attribute__((always_inline)) {
      for (std::int64_t r = begin; r < end; ++r) row(r * length, length);
    });
  });
}

}  // namespace

// h = f(gate) up
void gated_forward(const View& h, const View& gate, const View& up, Activation f) {
  with(gate, f, [&](auto of, auto stored) {
    using F = decltype(of);
    using T = decltype(stored);
    T* const H = h.as<T>();
    const T *const A = gate.as<T>(), *const U = up.as<T>();
    for_each_row(
        gate, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
          for (std::int64_t i = begin; i < begin + length; ++i)
            H[i] = stored_as<T>(F::value(to_float(A[i])) * to_float(U[i]));
        });
  });
}

// Of h = f(gate) up:  dgate = dh up f'(gate), dup = dh f(gate)
void gated_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up,
                    Activation f) {
  with(gate, f, [&](auto of, auto stored) {
    using F = decltype(of);
    using T = decltype(stored);
    T *const dA = dgate.as<T>(), *const dU = dup.as<T>();
    const T *const dH = dh.as<T>(), *const A = gate.as<T>(), *const U = up.as<T>();
    for_each_row(
        gate, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
          for (std::int64_t i = begin; i < begin + length; ++i) {
            const float a = to_float(A[i]), u = to_float(U[i]), d = to_float(dH[i]);
            dA[i] = stored_as<T>(d * u * F::slope(a));
            dU[i] = stored_as<T>(d * F::value(a));
          }
        });
  });
}

// y = f(x)
void activation_forward(const View& y, const View& x, Activation f) {
  with(x, f, [&](auto of, auto stored) {
    using F = decltype(of);
    using T = decltype(stored);
    T* const Y = y.as<T>();
    const T* const X = x.as<T>();
    for_each_row(
        x, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
          for (std::int64_t i = begin; i < begin + length; ++i) Y[i] = stored_as<T>(F::value(to_float(X[i])));
        });
  });
}

// Of y = f(x):  dx = dy f'(x)
void activation_backward(const View& dx, const View& dy, const View& x, Activation f) {
  with(x, f, [&](auto of, auto stored) {
    using F = decltype(of);
    using T = decltype(stored);
    T* const dX = dx.as<T>();
    const T *const dY = dy.as<T>(), *const X = x.as<T>();
    for_each_row(
        x, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
          for (std::int64_t i = begin; i < begin + length; ++i)
            dX[i] = stored_as<T>(to_float(dY[i]) * F::slope(to_float(X[i])));
        });
  });
}

}  // namespace capstan::kernels::cpu
