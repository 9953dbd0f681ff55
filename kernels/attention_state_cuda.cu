#include "kernels/attention_devices.h"
#include "kernels/device_cuda.h"
#include "kernels/elements.cuh"
#include "kernels/reduce.cuh"

// What attention does to its state before the first tile and after the last one: row by row, a warp per row and head.

namespace capstan::kernels::cuda {

namespace {

struct Fill {
  static constexpr int pack = 1;
  float* x;
  float value;
  template <int V> __device__ void at(std::int64_t i) const { x[i] = value; }
};

constexpr int rows_of_block = element_threads / warp_lanes;

dim3 row_grid(std::int64_t rows) {
  return dim3(static_cast<unsigned>(std::min(most_element_blocks, quotient_up(rows, rows_of_block))));
}

__device__ inline std::int64_t first_row() {
  return std::int64_t(blockIdx.x) * rows_of_block + threadIdx.x / warp_lanes;
}

}  // namespace

// m = no key yet, l = 0, o = 0, carry = 0, horizon = -1
void attention_begin(const AttentionState& state, double no_key_yet) {
  for_each_element(Fill{device_data<float>(state.m), static_cast<float>(no_key_yet)}, state.m.elements(), {});
  state.l.fill_zero();
  state.o.fill_zero();
  for (int which = 0; which < gated_sums; ++which) {
    if (!state.carry[which]) continue;
    state.carry[which].fill_zero();
    fill_device_memory(state.horizon[which].data(), 0xff, state.horizon[which].bytes());
  }
}

namespace {

/// o [rows, columns] /= l, m = m + ln l; a row without keys: o = 0, m = +inf.
__global__ void __launch_bounds__(element_threads)
    finish_rows(float* __restrict__ m, float* __restrict__ o, const float* __restrict__ l, std::int64_t rows,
                int columns) {
  const unsigned lane = threadIdx.x % warp_lanes;
  for (std::int64_t row = first_row(); row < rows; row += std::int64_t(gridDim.x) * rows_of_block) {
    const float sum = l[row], inverse = sum > 0 ? 1 / sum : 0;
    if (lane == 0) m[row] = sum > 0 ? m[row] + logf(sum) : INFINITY;
    for (int e = static_cast<int>(lane); e < columns; e += warp_lanes) o[row * columns + e] *= inverse;
  }
}

}  // namespace

// o /= l, m = lse = m + ln l
void attention_finish(const AttentionState& state) {
  const std::int64_t rows = state.m.elements();
  launch<void>(finish_rows, row_grid(rows), dim3(element_threads), stream_of_thread(), device_data<float>(state.m),
               device_data<float>(state.o), device_data<float>(state.l), rows, static_cast<int>(state.o.dim(-1)));
}

namespace {

/// delta[row] = Σ_e d_o[row, e] o[row, e], in double
template <class T>
__global__ void __launch_bounds__(element_threads) dot_rows(float* __restrict__ delta, const T* __restrict__ d_o,
                                                            const T* __restrict__ o, std::int64_t rows, int columns) {
  const unsigned lane = threadIdx.x % warp_lanes;
  for (std::int64_t row = first_row(); row < rows; row += std::int64_t(gridDim.x) * rows_of_block) {
    double sum = 0;
    for (int e = static_cast<int>(lane); e < columns; e += warp_lanes)
      sum +=
          static_cast<double>(value_of(d_o[row * columns + e])) * static_cast<double>(value_of(o[row * columns + e]));
    sum = warp_sum(sum);
    if (lane == 0) delta[row] = static_cast<float>(sum);
  }
}

}  // namespace

// Of o = Σ_j A_j U_j:  delta = Σ_E do · o, what each weight's gradient is less
void attention_delta(const View& delta, const View& d_o, const View& o) {
  const std::int64_t rows = delta.elements();
  with_stored(o.type(), [&](auto stored) {
    using T = decltype(stored);
    launch<void>(dot_rows<DeviceType<T>>, row_grid(rows), dim3(element_threads), stream_of_thread(),
                 device_data<float>(delta), device_data<T>(d_o), device_data<T>(o), rows, static_cast<int>(o.dim(-1)));
  });
}

}  // namespace capstan::kernels::cuda
