#pragma once
// The sums and maxima of reduce.cuh in double.

#include "kernels/reduce.cuh"

namespace capstan::kernels {

/// Shared memory of the block-wide functions below.
struct WideReduction {
  double of_warp[max_warps];
};

__device__ inline double warp_sum(double x) {
  for (int step = 1; step < warp_lanes; step *= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

__device__ inline double warp_max(double x) {
  for (int step = 1; step < warp_lanes; step *= 2) x = fmax(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

/// As block_reduce; 0 stands for warps that the block does not have.
template <class OfWarp> __device__ inline double block_reduce(WideReduction& shared, double x, OfWarp of_warp) {
  const unsigned lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes, warps = blockDim.x / warp_lanes;
  x = of_warp(x);
  __syncthreads();
  if (lane == 0) shared.of_warp[warp] = x;
  __syncthreads();
  return of_warp(lane < warps ? shared.of_warp[lane] : 0.0);
}

__device__ inline double block_sum(WideReduction& shared, double x) {
  return block_reduce(shared, x, [](double of_lane) { return warp_sum(of_lane); });
}

/// Of numbers that are not negative.
__device__ inline double block_max(WideReduction& shared, double x) {
  return block_reduce(shared, x, [](double of_lane) { return warp_max(of_lane); });
}

}  // namespace capstan::kernels
