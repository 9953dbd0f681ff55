#pragma once
// Operations that do the same for every element, in packs where the arrays allow it.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/launch.cuh"
#include "kernels/stream_cuda.h"
#include "kernels/values.cuh"

namespace capstan::kernels {

constexpr int element_threads = 256;
constexpr std::int64_t most_element_blocks =
    8192;  // with more elements than they have threads, each thread takes several

inline std::int64_t quotient_up(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

/// Grid of a kernel whose threads take items first, first + all threads, …
inline dim3 element_grid(std::int64_t items) {
  return dim3(static_cast<unsigned>(std::min(most_element_blocks, quotient_up(items, element_threads))));
}

struct Quotient {
  std::int64_t quotient, rest;
};
/// i / n and i % n, of small numbers by the fast division.
__device__ inline Quotient divide(std::int64_t i, std::int64_t n) {
  if (((i | n) >> 32) == 0) {
    const unsigned narrow = static_cast<unsigned>(i), by = static_cast<unsigned>(n), quotient = narrow / by;
    return {quotient, narrow - quotient * by};
  }
  const std::int64_t quotient = i / n;
  return {quotient, i - quotient * n};
}

template <int V, class T> __device__ inline Pack<T, V> load(const T* from) {
  return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <int V, class T> __device__ inline void store(T* to, const Pack<T, V>& values) {
  *reinterpret_cast<Pack<T, V>*>(to) = values;
}

/// op.at<V>(i) for i = 0, V, 2V, … below n; the last elements one by one.
template <int V, class Op>
__global__ void __launch_bounds__(element_threads) each_element(const Op op, std::int64_t n) {
  const std::int64_t threads = std::int64_t(gridDim.x) * blockDim.x, packs = n / V;
  const std::int64_t first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = first; i < packs; i += threads) op.template at<V>(i * V);
  if (packs * V + first < n) op.template at<1>(packs * V + first);
}

inline bool is_aligned(const View& view) { return reinterpret_cast<std::uintptr_t>(view.data()) % 16 == 0; }

/// Calls op.at<V>(i) for elements i, …, i + V - 1 of n, V being Op::pack or 1. No pack lies across rows of `row` elements, if it
/// is given. views: what is read and written in packs.
template <class Op>
void for_each_element(const Op& op, std::int64_t n, std::initializer_list<View> views, std::int64_t row = Op::pack) {
  const bool packs = row % Op::pack == 0 && std::all_of(views.begin(), views.end(), is_aligned);
  if (packs)
    launch<void>(each_element<Op::pack, Op>, element_grid(quotient_up(n, Op::pack)), dim3(element_threads),
                 stream_of_thread(), op, n);
  else launch<void>(each_element<1, Op>, element_grid(n), dim3(element_threads), stream_of_thread(), op, n);
}

/// y[i] = f(x[i]). y may be the memory of x.
template <class F, class Y, class X> struct Map1 {
  static constexpr int pack = std::min(widest<Y>, widest<X>);
  F f;
  Y* y;
  const X* x;
  template <int V> __device__ void at(std::int64_t i) const {
    const Pack<X, V> of_x = load<V>(x + i);
    Pack<Y, V> of_y;
    for (int k = 0; k < V; ++k) of_y.at[k] = element_of<Y>(f(value_of(of_x.at[k])));
    store(y + i, of_y);
  }
};

/// y[i] = f(a[i], b[i]). y may be the memory of a or b.
template <class F, class Y, class A, class B> struct Map2 {
  static constexpr int pack = std::min({widest<Y>, widest<A>, widest<B>});
  F f;
  Y* y;
  const A* a;
  const B* b;
  template <int V> __device__ void at(std::int64_t i) const {
    const Pack<A, V> of_a = load<V>(a + i);
    const Pack<B, V> of_b = load<V>(b + i);
    Pack<Y, V> of_y;
    for (int k = 0; k < V; ++k) of_y.at[k] = element_of<Y>(f(value_of(of_a.at[k]), value_of(of_b.at[k])));
    store(y + i, of_y);
  }
};

/// y = f(x) for views whose elements are stored as Y and X.
template <class Y, class X, class F> void map_elements(const F& f, const View& y, const View& x) {
  const Map1<F, DeviceType<Y>, DeviceType<X>> map{f, device_data<Y>(y), device_data<X>(x)};
  for_each_element(map, y.elements(), {y, x});
}
/// y = f(a, b)
template <class Y, class A, class B, class F>
void map_elements(const F& f, const View& y, const View& a, const View& b) {
  const Map2<F, DeviceType<Y>, DeviceType<A>, DeviceType<B>> map{f, device_data<Y>(y), device_data<A>(a),
                                                                 device_data<B>(b)};
  for_each_element(map, y.elements(), {y, a, b});
}

}  // namespace capstan::kernels
