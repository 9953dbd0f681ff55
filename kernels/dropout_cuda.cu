#include "kernels/dropout.h"
#include "kernels/elements.cuh"

namespace capstan::kernels::cuda {

namespace {

/// x[n, c] = 0 or factor x[n, c]; i counts x's elements.
template <class T> struct Drop {
  static constexpr int pack = widest<T>;
  T* x;                        // [N, C]
  const std::int64_t* tokens;  // [N]
  std::int64_t C, T_of_sequence;
  std::uint64_t seed;
  std::uint32_t threshold;
  float factor;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [n, c] = divide(i, C);
    const std::uint32_t row = dropout_row(seed, static_cast<std::uint64_t>(divide(n, T_of_sequence).quotient),
                                          static_cast<std::uint64_t>(tokens[n]));
    Pack<T, V> values = load<V>(x + i);
    for (int k = 0; k < V; ++k) {
      const bool dropped = is_dropped(row, static_cast<std::uint32_t>(c + k), threshold);
      values.at[k] = element_of<T>(dropped ? 0.0f : value_of(values.at[k]) * factor);
    }
    store(x + i, values);
  }
};

}  // namespace

// x[n, c] = 0 or x[n, c] / (1 - rate)
void apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed) {
  const std::int64_t C = x.dim(1);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    const Drop<DeviceType<T>> drop{device_data<T>(x),       device_data<std::int64_t>(index),  C, index.dim(1), seed,
                                   dropout_threshold(rate), static_cast<float>(1 / (1 - rate))};
    for_each_element(drop, x.elements(), {x}, C);
  });
}

}  // namespace capstan::kernels::cuda
