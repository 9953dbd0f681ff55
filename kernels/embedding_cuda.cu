#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/embedding.h"

// An id outside of [0, V) cannot be told by an exception here: its row of y is NaN, and its row of dy goes nowhere.

namespace capstan::kernels::cuda {

namespace {

constexpr std::int64_t span_tokens = 1 << 14;  // of backward: each looks for its word's next place among these only

/// y[t] = w[id[t]]; i counts y's elements.
template <class T> struct TakeWords {
  static constexpr int pack = widest<T>;
  T* y;                     // [T, C]
  const std::int32_t* ids;  // [T]
  const T* w;               // [V, C]
  std::int64_t V, C;
  template <int N> __device__ void at(std::int64_t i) const {
    const auto [t, c] = divide(i, C);
    const std::int64_t id = ids[t];
    Pack<T, N> word;
    if (0 <= id && id < V) word = load<N>(w + id * C + c);
    else
      for (int k = 0; k < N; ++k) word.at[k] = element_of<T>(NAN);
    store(y + i, word);
  }
};

}  // namespace

// y[t] = w[id[t]]
void embedding_forward(const View& y, const View& ids, const View& w) {
  const std::int64_t V = w.dim(0), C = y.dim(1);
  with_stored(y.type(), [&](auto stored) {
    using T = decltype(stored);
    const TakeWords<DeviceType<T>> take{device_data<T>(y), device_data<std::int32_t>(ids), device_data<T>(w), V, C};
    for_each_element(take, y.elements(), {y, w}, C);
  });
}

namespace {

/// next[t]: the first s > t with id[s] = id[t], or -1. follows[s] = 1 where s is some t's next. A thread per token; its
/// neighbours read neighbouring ids.
__global__ void __launch_bounds__(element_threads)
    link_words(std::int32_t* __restrict__ next, std::int32_t* __restrict__ follows,
               const std::int32_t* __restrict__ ids, int tokens) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= tokens) return;
  const std::int32_t id = ids[t];
  int s = t + 1;
  while (s < tokens && ids[s] != id) ++s;
  next[t] = s < tokens ? s : -1;
  if (s < tokens) follows[s] = 1;
}

/// dw[id] += dy[t] for the tokens t of a word, in their order: block (t, strip of columns) has the word that t is the first of.
template <class T>
__global__ void __launch_bounds__(element_threads)
    add_words(float* __restrict__ dW, const std::int32_t* __restrict__ next, const std::int32_t* __restrict__ follows,
              const std::int32_t* __restrict__ ids, const T* __restrict__ dY, std::int64_t V, std::int64_t C) {
  const std::int64_t c = std::int64_t(blockIdx.y) * blockDim.x + threadIdx.x, id = ids[blockIdx.x];
  if (follows[blockIdx.x] != 0 || c >= C || id < 0 || id >= V) return;
  float sum = dW[id * C + c];
  for (std::int32_t t = static_cast<std::int32_t>(blockIdx.x); t >= 0; t = next[t]) sum += value_of(dY[t * C + c]);
  dW[id * C + c] = sum;
}

}  // namespace

// Of y[t] = w[id[t]]:  dw[id[t]] += dy[t], in the order of t: the bits of the cpu
void embedding_backward(const View& dw, const View& ids, const View& dy) {
  const std::int64_t T = dy.dim(0), C = dy.dim(1);
  const unsigned strips = static_cast<unsigned>(quotient_up(C, element_threads));
  thread_local DeviceScratch memory;
  std::int32_t* const next = memory.of<std::int32_t>(2 * std::min(T, span_tokens));
  with_stored(dy.type(), [&](auto stored) {
    using Element = DeviceType<decltype(stored)>;
    const Element* const dY = device_data<decltype(stored)>(dy);
    for (std::int64_t begin = 0; begin < T; begin += span_tokens) {
      const std::int64_t tokens = std::min(span_tokens, T - begin);
      const std::int32_t* const id = device_data<std::int32_t>(ids) + begin;
      std::int32_t* const follows = next + tokens;
      View(follows, DType::i32, Device::cuda, {tokens}).fill_zero();
      launch<void>(link_words, element_grid(tokens), dim3(element_threads), stream_of_thread(), next, follows, id,
                   static_cast<int>(tokens));
      launch<void>(add_words<Element>, dim3(static_cast<unsigned>(tokens), strips), dim3(element_threads),
                   stream_of_thread(), device_data<float>(dw), next, follows, id, dY + begin * C, dw.dim(0), C);
    }
  });
}

}  // namespace capstan::kernels::cuda
