#pragma once
// Sums and maxima over a warp or a block, in float or double, in a fixed order: the same bits at every run. All threads get the
// result.

#include <cuda_runtime.h>

#include <type_traits>

namespace capstan::kernels {

constexpr int warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffff;
constexpr int max_warps = 32;  ///< of a block

/// One number per warp: the shared memory of the block-wide functions below.
template <class Real> struct ReductionOf { Real of_warp[max_warps]; };
using BlockReduction = ReductionOf<float>;
using WideReduction = ReductionOf<double>;

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

/// A butterfly: after step s each lane has the sum of its 2s neighbours, formed as the same tree in every lane.
template <class Real> __device__ inline Real warp_sum(Real x) {
  for (int step = 1; step < warp_lanes; step *= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

template <class Real> __device__ inline Real warp_max(Real x) {
  for (int step = 1; step < warp_lanes; step *= 2) x = larger(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

/// combine(x of every warp's result), `none` standing for warps that the block does not have. Blocks are one-dimensional, of
/// whole warps. May be called again at once: it begins with a barrier, so that nobody still reads what the last call left.
template <class Real, class OfWarp>
__device__ inline Real block_reduce(ReductionOf<Real>& shared, Real x, Real none, OfWarp of_warp) {
  const unsigned lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes, warps = blockDim.x / warp_lanes;
  x = of_warp(x);
  __syncthreads();
  if (lane == 0) shared.of_warp[warp] = x;
  __syncthreads();
  return of_warp(lane < warps ? shared.of_warp[lane] : none);
}

template <class Real> __device__ inline Real block_sum(ReductionOf<Real>& shared, std::type_identity_t<Real> x) {
  return block_reduce(shared, x, Real(0), [](Real of_lane) { return warp_sum(of_lane); });
}

template <class Real> __device__ inline Real block_max(ReductionOf<Real>& shared, std::type_identity_t<Real> x) {
  return block_reduce(shared, x, Real(-INFINITY), [](Real of_lane) { return warp_max(of_lane); });
}

}  // namespace capstan::kernels
