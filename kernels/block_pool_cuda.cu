#include "kernels/block_pool.h"
#include "kernels/elements.cuh"

// A thread per block of tokens and column; its neighbours read neighbouring columns, and the same documents.

namespace capstan::kernels::cuda {

namespace {

/// The tokens of block b that count, [first, end): documents are runs, so these are the last ones.
struct Counted {
  std::int64_t first, end;
};
__device__ inline Counted counted_of(const std::int64_t* document, std::int64_t b, std::int64_t block, std::int64_t T) {
  const std::int64_t begin = b * block, end = min(begin + block, T);
  std::int64_t first = end - 1;
  while (first > begin && document[first - 1] == document[end - 1]) --first;
  return {first, end};
}

/// mean[b, n] = (Σ_j x[j, n]) / count, summed in the order of j; i counts mean's elements.
struct Mean {
  static constexpr int pack = widest<float>;
  float* mean;     // [blocks, N]
  const float* x;  // [T, N]
  const std::int64_t* document;
  std::int64_t block, T, N;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [b, n] = divide(i, N);
    const Counted counted = counted_of(document, b, block, T);
    Pack<float, V> sum{};
    for (std::int64_t t = counted.first; t < counted.end; ++t) {
      const Pack<float, V> of_x = load<V>(x + t * N + n);
      for (int k = 0; k < V; ++k) sum.at[k] += of_x.at[k];
    }
    for (int k = 0; k < V; ++k) sum.at[k] /= static_cast<float>(counted.end - counted.first);
    store(mean + i, sum);
  }
};

/// dx[j, n] += dmean[b, n] / count; i counts dmean's elements.
struct MeanBack {
  static constexpr int pack = widest<float>;
  float* dx;           // [T, N]
  const float* dmean;  // [blocks, N]
  const std::int64_t* document;
  std::int64_t block, T, N;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [b, n] = divide(i, N);
    const Counted counted = counted_of(document, b, block, T);
    Pack<float, V> part = load<V>(dmean + i);
    for (int k = 0; k < V; ++k) part.at[k] /= static_cast<float>(counted.end - counted.first);
    for (std::int64_t t = counted.first; t < counted.end; ++t) {
      Pack<float, V> of_dx = load<V>(dx + t * N + n);
      for (int k = 0; k < V; ++k) of_dx.at[k] += part.at[k];
      store(dx + t * N + n, of_dx);
    }
  }
};

}  // namespace

// mean_b = (Σ_j x_j) / n
void block_mean(const View& mean, const View& x, const View& document, std::int64_t block) {
  const std::int64_t T = x.dim(0), N = x.dim(1);
  const Mean op{device_data<float>(mean), device_data<float>(x), device_data<std::int64_t>(document), block, T, N};
  for_each_element(op, mean.elements(), {mean, x}, N);
}

// Of mean_b = (Σ_j x_j) / n:  dx_j += dmean_b / n
void block_mean_backward(const View& dx, const View& dmean, const View& document, std::int64_t block) {
  const std::int64_t T = dx.dim(0), N = dx.dim(1);
  const MeanBack op{
      device_data<float>(dx), device_data<float>(dmean), device_data<std::int64_t>(document), block, T, N};
  for_each_element(op, dmean.elements(), {dx, dmean}, N);
}

}  // namespace capstan::kernels::cuda
