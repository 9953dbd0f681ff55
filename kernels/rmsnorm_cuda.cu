#include <algorithm>

#include "kernels/column_sums.cuh"
#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"
#include "kernels/rmsnorm.h"

// A block per row; a thread has every blockDim-th pack of the row. The gradient of the weight is summed over rows as in
// column_sums.cuh.

namespace capstan::kernels::cuda {

namespace {

constexpr int row_threads = 256;  // at most, for a row

/// 1 / sqrt(mean_c x[c]² + eps) from the thread's part of the squares
__device__ inline float inverse_rms(BlockReduction& shared, float squares, std::int64_t C, float eps) {
  return rsqrtf(block_sum(shared, squares) / static_cast<float>(C) + eps);
}

/// y = w x r, each [C], in packs of V. Row t is block t.
template <class T, int V>
__global__ void __launch_bounds__(row_threads)
    forward_row(T* __restrict__ Y, const T* __restrict__ X, const T* __restrict__ W, std::int64_t C, float eps) {
  using Values = Pack<T, V>;
  BlockReduction& shared = ptx::shared<BlockReduction>();
  Values* const y = reinterpret_cast<Values*>(Y + blockIdx.x * C);
  const Values *const x = reinterpret_cast<const Values*>(X + blockIdx.x * C), *w = reinterpret_cast<const Values*>(W);
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < C / V; i += blockDim.x) {
    const Values of_x = x[i];
    for (int k = 0; k < V; ++k) squares += value_of(of_x.at[k]) * value_of(of_x.at[k]);
  }
  const float r = inverse_rms(shared, squares, C, eps);
  for (std::int64_t i = threadIdx.x; i < C / V; i += blockDim.x) {
    const Values of_x = x[i], of_w = w[i];
    Values of_y;
    for (int k = 0; k < V; ++k) of_y.at[k] = element_of<T>(value_of(of_w.at[k]) * (value_of(of_x.at[k]) * r));
    y[i] = of_y;
  }
}

/// dx (+)= r (w dy - n mean_c(w dy n)),  n = x r; each [C], in packs of V. Row t is block t; its r is kept in R[t].
template <class T, class Dy, int V>
__global__ void __launch_bounds__(row_threads)
    backward_row(T* __restrict__ dX, float* __restrict__ R, const Dy* __restrict__ dY, const T* __restrict__ X,
                 const T* __restrict__ W, std::int64_t C, float eps, bool add) {
  using Values = Pack<T, V>;
  using Gradients = Pack<Dy, V>;
  BlockReduction& shared = ptx::shared<BlockReduction>();
  Values* const dx = reinterpret_cast<Values*>(dX + blockIdx.x * C);
  const Gradients* const dy = reinterpret_cast<const Gradients*>(dY + blockIdx.x * C);
  const Values *const x = reinterpret_cast<const Values*>(X + blockIdx.x * C), *w = reinterpret_cast<const Values*>(W);
  float squares = 0, dot = 0;
  for (std::int64_t i = threadIdx.x; i < C / V; i += blockDim.x) {
    const Values of_x = x[i], of_w = w[i];
    const Gradients of_dy = dy[i];
    for (int k = 0; k < V; ++k) {
      const float value = value_of(of_x.at[k]);
      squares += value * value;
      dot += (value_of(of_w.at[k]) * value_of(of_dy.at[k])) * value;
    }
  }
  const float r = inverse_rms(shared, squares, C, eps);
  const float mean = block_sum(shared, dot) * r / static_cast<float>(C);
  if (threadIdx.x == 0) R[blockIdx.x] = r;
  for (std::int64_t i = threadIdx.x; i < C / V; i += blockDim.x) {
    const Values of_x = x[i], of_w = w[i];
    const Gradients of_dy = dy[i];
    Values of_dx{};
    if (add) of_dx = dx[i];
    for (int k = 0; k < V; ++k) {
      const float n = value_of(of_x.at[k]) * r;
      const float gradient = r * (value_of(of_w.at[k]) * value_of(of_dy.at[k]) - n * mean);
      of_dx.at[k] = element_of<T>(value_of(of_dx.at[k]) + gradient);
    }
    dx[i] = of_dx;
  }
}

/// dy[t, c] x[t, c] r[t]
template <class T, class Dy> struct WeightTerm {
  const Dy* dy;
  const T* x;
  const float* r;
  std::int64_t columns;
  __device__ float operator()(std::int64_t t, std::int64_t c) const {
    return value_of(dy[t * columns + c]) * (value_of(x[t * columns + c]) * r[t]);
  }
};

/// Whole warps, as many as the row has packs for: the shape alone decides, and so the order of sums.
dim3 threads_for(std::int64_t packs) {
  return dim3(static_cast<unsigned>(std::min<std::int64_t>(row_threads, quotient_up(packs, warp_lanes) * warp_lanes)));
}

/// Calls f(pack) with a constant: `widest` of T if all rows of C elements lie so that they can be read in packs, else 1.
template <class T, class F> void with_pack(std::initializer_list<View> views, std::int64_t C, F&& f) {
  const bool packs = std::all_of(views.begin(), views.end(), [C](const View& view) { return in_packs(view, C); });
  if (packs) f(std::integral_constant<int, widest<T>>{});
  else f(std::integral_constant<int, 1>{});
}

}  // namespace

// y[t, c] = w[c] x[t, c] r_t
void rmsnorm_forward(const View& y, const View& x, const View& w, double eps) {
  const std::int64_t T = x.dim(0), C = x.dim(1);
  with_stored(x.type(), [&](auto stored) {
    using Stored = decltype(stored);
    using Element = DeviceType<Stored>;
    with_pack<Element>({y, x, w}, C, [&](auto pack) {
      launch<BlockReduction>(forward_row<Element, pack()>, dim3(static_cast<unsigned>(T)), threads_for(C / pack()),
                             stream_of_thread(), device_data<Stored>(y), device_data<Stored>(x), device_data<Stored>(w),
                             C, static_cast<float>(eps));
    });
  });
}

namespace {

template <class Stored, class StoredDy>
void backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, float eps, bool add) {
  using Element = DeviceType<Stored>;
  using Gradient = DeviceType<StoredDy>;
  const std::int64_t T = x.dim(0), C = x.dim(1);
  thread_local DeviceScratch memory;
  float* const r = memory.of<float>(T + (dw ? column_partials(T, C) : 0));  // [T], then the partial sums
  const Gradient* const dY = device_data<StoredDy>(dy);
  const Element* const X = device_data<Stored>(x);
  with_pack<Element>({dx, dy, x, w}, C, [&](auto pack) {
    launch<BlockReduction>(backward_row<Element, Gradient, pack()>, dim3(static_cast<unsigned>(T)),
                           threads_for(C / pack()), stream_of_thread(), device_data<Stored>(dx), r, dY, X,
                           device_data<Stored>(w), C, eps, add);
  });
  if (dw) add_column_sums(device_data<float>(dw), r + T, WeightTerm<Element, Gradient>{dY, X, r, C}, T, C);
}

}  // namespace

// Of y[t, c] = w[c] x[t, c] r_t, with n = x r, g = w dy:  dx = r (g - n mean_c(g n));  dw[c] += Σ_t dy n
void rmsnorm_backward(const View& dx, const View& dw, const View& dy, const View& x, const View& w, double eps,
                      Into into) {
  with_stored(x.type(), [&](auto stored) {
    with_stored(dy.type(), [&](auto of_dy) {
      backward<decltype(stored), decltype(of_dy)>(dx, dw, dy, x, w, static_cast<float>(eps), into == Into::add);
    });
  });
}

}  // namespace capstan::kernels::cuda
