#include <numeric>

#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/global_norm.h"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

namespace capstan::kernels::cuda {

namespace {

constexpr std::int64_t piece_elements = 1 << 16;

/// sum[b] = Σ x² over piece b: each thread every 256th element, then the threads as a tree.
__global__ void __launch_bounds__(element_threads)
    square_pieces(double* __restrict__ sum, const float* __restrict__ x, std::int64_t n) {
  WideReduction& shared = ptx::shared<WideReduction>();
  const std::int64_t begin = blockIdx.x * piece_elements, end = min(n, begin + piece_elements);
  double squares = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += element_threads)
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  squares = block_sum(shared, squares);
  if (threadIdx.x == 0) sum[blockIdx.x] = squares;
}

}  // namespace

double sum_of_squares(const View& x) {
  thread_local DeviceScratch memory;
  const std::int64_t n = x.elements(), pieces = quotient_up(n, piece_elements);
  if (n == 0) return 0;
  const View sum(memory.of<double>(pieces), DType::f64, Device::cuda, {pieces});
  launch<WideReduction>(square_pieces, dim3(static_cast<unsigned>(pieces)), dim3(element_threads), stream_of_thread(),
                        device_data<double>(sum), device_data<float>(x), n);
  const std::vector<double> sums = host_values<double>(sum);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace capstan::kernels::cuda
