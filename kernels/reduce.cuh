#pragma once
// Sums and maxima over a warp or a block, in a fixed order: the same bits at every run. All threads get the result.

#include <cuda_runtime.h>

namespace capstan::kernels {

constexpr int warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffff;
constexpr int max_warps = 32;  ///< of a block

/// One number per warp: the shared memory of the block-wide functions below.
struct BlockReduction {
  float of_warp[max_warps];
};

/// A butterfly: after step s each lane has the sum of its 2s neighbours, formed as the same tree in every lane.
__device__ inline float warp_sum(float x) {
  for (int step = 1; step < warp_lanes; step *= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = 1; step < warp_lanes; step *= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

/// combine(x of every warp's result), `none` standing for warps that the block does not have. Blocks are one-dimensional, of
/// whole warps. May be called again at once: it begins with a barrier, so that nobody still reads what the last call left.
template <class OfWarp>
__device__ inline float block_reduce(BlockReduction& shared, float x, float none, OfWarp of_warp) {
  const unsigned lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes, warps = blockDim.x / warp_lanes;
  x = of_warp(x);
  __syncthreads();
  if (lane == 0) shared.of_warp[warp] = x;
  __syncthreads();
  return of_warp(lane < warps ? shared.of_warp[lane] : none);
}

__device__ inline float block_sum(BlockReduction& shared, float x) {
  return block_reduce(shared, x, 0.0f, [](float of_lane) { return warp_sum(of_lane); });
}

__device__ inline float block_max(BlockReduction& shared, float x) {
  return block_reduce(shared, x, -INFINITY, [](float of_lane) { return warp_max(of_lane); });
}

}  // namespace capstan::kernels
