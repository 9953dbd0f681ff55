// Each loop runs over one row of the last axis at a time: which elements fall into a loop's vector part and which into its tail
// then depends on the row's length only, never on the row's place in the call. `ivdep`: results may lie exactly over an operand
// (the header's promise), which every loop bears, since it reads an index before it writes it.

#include "kernels/isa.h"
#include "kernels/simd_math.h"
#include "kernels/swiglu.h"

namespace capstan::kernels::cpu {

namespace {

[[gnu::always_inline]] inline float silu(float a) { return a * fast_sigmoid(a); }

/// silu'(a) = σ(a) (1 + a (1 - σ(a)))
[[gnu::always_inline]] inline float silu_slope(float a) {
  const float sigma = fast_sigmoid(a);
  return sigma * (1.0f + a * (1.0f - sigma));
}

/// Calls row(offset, length) for each row of the last axis, compiled for this machine.
template <class Row> void for_each_row(const View& view, const Row& row) {
  const std::int64_t length = view.shape().rank() == 0 ? 1 : view.dim(-1), elements = view.elements();
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t begin = 0; begin < elements; begin += length) row(begin, length);
  });
}

}  // namespace

// h = silu(gate) up
void swiglu_forward(const View& h, const View& gate, const View& up) {
  float* const H = h.as<float>();
  const float *const A = gate.as<float>(), *const U = up.as<float>();
  for_each_row(
      gate, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + length; ++i) H[i] = silu(A[i]) * U[i];
      });
}

// Of h = silu(gate) up:  dgate = dh up silu'(gate), dup = dh silu(gate)
void swiglu_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up) {
  float *const dA = dgate.as<float>(), *const dU = dup.as<float>();
  const float *const dH = dh.as<float>(), *const A = gate.as<float>(), *const U = up.as<float>();
  for_each_row(
      gate, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + length; ++i) {
          const float a = A[i], u = U[i], d = dH[i];
          dA[i] = d * u * silu_slope(a);
          dU[i] = d * silu(a);
        }
      });
}

// y = silu(x)
void silu_forward(const View& y, const View& x) {
  float* const Y = y.as<float>();
  const float* const X = x.as<float>();
  for_each_row(
      x, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + length; ++i) Y[i] = silu(X[i]);
      });
}

// Of y = silu(x):  dx = dy silu'(x)
void silu_backward(const View& dx, const View& dy, const View& x) {
  float* const dX = dx.as<float>();
  const float *const dY = dy.as<float>(), *const X = x.as<float>();
  for_each_row(
      x, [=](std::int64_t begin, std::int64_t length) __attribute__((always_inline)) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + length; ++i) dX[i] = dY[i] * silu_slope(X[i]);
      });
}

}  // namespace capstan::kernels::cpu
