#include "kernels/bias.h"
#include "kernels/column_sums.cuh"
#include "kernels/device_scratch.cuh"

namespace capstan::kernels::cuda {

namespace {

/// y (+)= b of the element's column. Packs lie within rows.
template <class T> struct AddBias {
  static constexpr int pack = widest<T>;
  T* y;
  const T* b;
  std::int64_t columns;
  bool add;
  template <int V> __device__ void at(std::int64_t i) const {
    const Pack<T, V> of_b = load<V>(b + divide(i, columns).rest);
    Pack<T, V> of_y = of_b;
    if (add) {
      of_y = load<V>(y + i);
      for (int k = 0; k < V; ++k) of_y.at[k] = element_of<T>(value_of(of_y.at[k]) + value_of(of_b.at[k]));
    }
    store(y + i, of_y);
  }
};

template <class T> struct Term {
  const T* dy;
  std::int64_t columns;
  __device__ float operator()(std::int64_t t, std::int64_t m) const { return value_of(dy[t * columns + m]); }
};

}  // namespace

// y[t, m] = b[m]
void bias_forward(const View& y, const View& b, Into into) {
  with_stored(y.type(), [&](auto stored) {
    using T = decltype(stored);
    const AddBias<DeviceType<T>> op{device_data<T>(y), device_data<T>(b), y.dim(1), into == Into::add};
    for_each_element(op, y.elements(), {y, b}, y.dim(1));
  });
}

// Of y[t, m] = b[m]:  db[m] += Σ_t dy[t, m]
void bias_backward(const View& db, const View& dy) {
  const std::int64_t T = dy.dim(0), M = dy.dim(1);
  with_stored(dy.type(), [&](auto stored) {
    using Stored = decltype(stored);
    thread_local DeviceScratch memory;
    float* const partial = memory.of<float>(column_partials(T, M));
    add_column_sums(device_data<float>(db), partial, Term<DeviceType<Stored>>{device_data<Stored>(dy), M}, T, M);
  });
}

}  // namespace capstan::kernels::cuda
