#include <cstdint>

#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/elementwise.h"

// One multiplication or addition per element, rounded like on the cpu: the same bits as there.

namespace capstan::kernels::cuda {

namespace {

struct Sum {
  __device__ float operator()(float y, float x) const { return y + x; }
};
struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Times {
  float factor;
  __device__ float operator()(float y) const { return y * factor; }
};

}  // namespace

// y += x
void add(const View& y, const View& x) {
  with_stored(y.type(), [&](auto of_y) {
    using Y = decltype(of_y);
    with_stored(x.type(), [&](auto of_x) { map_elements<Y, Y, decltype(of_x)>(Sum{}, y, y, x); });
  });
}

// y = x
void convert(const View& y, const View& x) {
  with_stored(y.type(), [&](auto of_y) {
    with_stored(x.type(), [&](auto of_x) { map_elements<decltype(of_y), decltype(of_x)>(Same{}, y, x); });
  });
}

// y *= factor
void scale(const View& y, double factor) {
  with_stored(y.type(), [&](auto of_y) {
    using Y = decltype(of_y);
    map_elements<Y, Y>(Times{static_cast<float>(factor)}, y, y);
  });
}

namespace {

/// y[tg, d] = factor Σ_{h < group} x[tg, h, d], summed in the order of h; i counts y's elements.
template <class T> struct SumHeads {
  static constexpr int pack = widest<T>;
  T* y;        // [T G, D]
  const T* x;  // [T G, group, D]
  std::int64_t group, D;
  float factor;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [tg, d] = divide(i, D);
    const T* const head = x + tg * group * D + d;
    float sum[V];
    Pack<T, V> values = load<V>(head);
    for (int k = 0; k < V; ++k) sum[k] = value_of(values.at[k]);
    for (std::int64_t h = 1; h < group; ++h) {
      values = load<V>(head + h * D);
      for (int k = 0; k < V; ++k) sum[k] += value_of(values.at[k]);
    }
    for (int k = 0; k < V; ++k) values.at[k] = element_of<T>(sum[k] * factor);
    store(y + i, values);
  }
};

/// x[th, d] = factor y[th / group, d]; i counts x's elements.
template <class T> struct SpreadHeads {
  static constexpr int pack = widest<T>;
  T* x;        // [T H, D]
  const T* y;  // [T G, D]
  std::int64_t group, D;
  float factor;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [th, d] = divide(i, D);
    Pack<T, V> values = load<V>(y + divide(th, group).quotient * D + d);
    for (int k = 0; k < V; ++k) values.at[k] = element_of<T>(factor * value_of(values.at[k]));
    store(x + i, values);
  }
};

}  // namespace

// y[t, g] = factor Σ_{h in g} x[t, h]
void group_sum(const View& y, const View& x, double factor) {
  const std::int64_t group = x.dim(1) / y.dim(1), D = x.dim(2);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    const SumHeads<DeviceType<T>> sum{device_data<T>(y), device_data<T>(x), group, D, static_cast<float>(factor)};
    for_each_element(sum, y.elements(), {y, x}, D);
  });
}

// Of y[t, g] = factor Σ_{h in g} x[t, h]:  x[t, h] = factor y[t, g(h)]
void group_spread(const View& x, const View& y, double factor) {
  const std::int64_t group = x.dim(1) / y.dim(1), D = x.dim(2);
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    const SpreadHeads<DeviceType<T>> spread{device_data<T>(x), device_data<T>(y), group, D, static_cast<float>(factor)};
    for_each_element(spread, x.elements(), {y, x}, D);
  });
}

namespace {

struct alignas(16) SixteenBytes {
  std::uint64_t half[2];
};

/// to[row, c] = from[row, c] for c < width, rows being to_pitch and from_pitch apart: any elements, moved as Units.
template <class Unit> struct MoveColumns {
  static constexpr int pack = 1;
  Unit* to;
  const Unit* from;
  std::int64_t width, to_pitch, from_pitch;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [row, c] = divide(i, width);
    to[row * to_pitch + c] = from[row * from_pitch + c];
  }
};

/// The same in bytes, of the host.
struct Columns {
  char* to;
  const char* from;
  std::int64_t rows, width, to_pitch, from_pitch;

  /// Whether everything is a multiple of so many bytes.
  bool fits(std::int64_t unit) const {
    const std::int64_t bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to)) |
                              static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from)) | width | to_pitch |
                              from_pitch;
    return bits % unit == 0;
  }
  template <class Unit> void move() const {
    constexpr std::int64_t size = sizeof(Unit);
    const MoveColumns<Unit> op{reinterpret_cast<Unit*>(to), reinterpret_cast<const Unit*>(from), width / size,
                               to_pitch / size, from_pitch / size};
    for_each_element(op, rows * (width / size), {});
  }
};

void move_columns(const Columns& columns) {
  if (columns.fits(sizeof(SixteenBytes))) columns.move<SixteenBytes>();
  else if (columns.fits(sizeof(std::uint32_t))) columns.move<std::uint32_t>();
  else if (columns.fits(sizeof(std::uint16_t))) columns.move<std::uint16_t>();
  else columns.move<std::uint8_t>();
}

}  // namespace

void take_columns(const View& part, const View& whole, std::int64_t begin) {
  if (part.elements() == 0) return;
  const std::int64_t size = size_of(part.type()), width = part.dim(-1) * size;
  move_columns({static_cast<char*>(part.data()), static_cast<const char*>(whole.data()) + begin * size,
                part.bytes() / width, width, width, whole.dim(-1) * size});
}

void put_columns(const View& whole, const View& part, std::int64_t begin) {
  if (part.elements() == 0) return;
  const std::int64_t size = size_of(part.type()), width = part.dim(-1) * size;
  move_columns({static_cast<char*>(whole.data()) + begin * size, static_cast<const char*>(part.data()),
                part.bytes() / width, width, whole.dim(-1) * size, width});
}

namespace {

/// found[0] |= 1 if an element of x has all exponent bits set: an infinity or a NaN.
template <class T>
__global__ void __launch_bounds__(element_threads) find_infinite(int* found, const T* x, std::int64_t n) {
  constexpr unsigned exponent = 0x7f800000;
  const std::int64_t threads = std::int64_t(gridDim.x) * blockDim.x;
  int bad = 0;
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads)
    bad |= static_cast<int>((__float_as_uint(value_of(x[i])) & exponent) == exponent);
  if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(found, 1);
}

}  // namespace

bool all_finite(const View& x) {
  thread_local DeviceScratch memory;
  const View found(memory.of<std::int32_t>(1), DType::i32, Device::cuda, {1});
  found.fill_zero();
  with_stored(x.type(), [&](auto stored) {
    using T = decltype(stored);
    launch<void>(find_infinite<DeviceType<T>>, element_grid(x.elements()), dim3(element_threads), stream_of_thread(),
                 device_data<std::int32_t>(found), device_data<T>(x), x.elements());
  });
  return host_values<std::int32_t>(found)[0] == 0;
}

}  // namespace capstan::kernels::cuda
