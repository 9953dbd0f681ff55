#pragma once
// How a block holds a tile of 64 rows x 64 columns: warp w has rows 16w to 16w + 15 in the layout of the tensor core's sums
// (kernels/ptx.cuh, mma_m16n8k16). A thread has rows g and g + 8 of its warp and of every 8 columns two, 2q and 2q + 1; the four
// threads of a quad (same g) share their rows.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/reduce.cuh"

namespace capstan::kernels::cuda::attention {

constexpr int tile_size = 64;  ///< largest_tile: rows and keys of a tile, which may be used in part
constexpr int block_threads = 128;
constexpr int warp_rows = 16;
constexpr int column_blocks = tile_size / 8;
constexpr int half_rows = 2;  ///< rows of a thread

/// Where a thread stands.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  int g = lane / 4, q = lane % 4;
  /// Row h (0, 1) of the tile.
  __device__ int row(int h) const { return warp_rows * warp + g + 8 * h; }
  __device__ int column(int n, int c) const { return 8 * n + 2 * q + c; }
};

/// A thread's part of a tile [64, 64]: at[n][2h + c] is (row h, column 8n + 2q + c).
struct Fragment {
  float at[column_blocks][4];
};

/// f(n, i, h, column) for every element of the thread.
template <class F> __device__ inline void for_each_element(const Lane& lane, F&& f) {
#pragma unroll
  for (int n = 0; n < column_blocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, i / 2, lane.column(n, i % 2));
}

/// f(n, i, h) for every element of the thread, where f reads tables: the barriers keep the compiler from having all entries in
/// registers at once.
template <class F> __device__ inline void for_each_gathered(F&& f) {
#pragma unroll
  for (int n = 0; n < column_blocks; ++n) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, i / 2);
  }
}

/// The same as a loop, for much code that is seldom run: fragments that f indexes then lie in the thread's memory.
template <class F> __device__ inline void for_each_rolled(const Lane& lane, F&& f) {
#pragma unroll 1
  for (int n = 0; n < column_blocks; ++n)
#pragma unroll 1
    for (int i = 0; i < 4; ++i) f(n, i, i / 2, lane.column(n, i % 2));
}

template <int N> __device__ inline void clear(float (&x)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
}

/// Sum over the four threads of a row; all get it, with the same bits.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

/// Σ over columns of row h.
__device__ inline float row_sum(const Fragment& x, int h) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < column_blocks; ++n) sum += x.at[n][2 * h] + x.at[n][2 * h + 1];
  return quad_sum(sum);
}

/// x → its inclusive sums along each row, from the last column to the first (near → far), in a tree that position alone
/// decides. Per 8 columns: two threads' sums, then the two pairs'.
__device__ inline void sums_from_last(Fragment& x, const Lane& lane) {
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    float before = 0;
#pragma unroll
    for (int n = column_blocks - 1; n >= 0; --n) {
      float &first = x.at[n][2 * h], &second = x.at[n][2 * h + 1];
      const float pair = first + second;
      const float neighbour = __shfl_xor_sync(all_lanes, pair, 1), two = pair + neighbour;
      const float others = __shfl_xor_sync(all_lanes, two, 2);
      const float nearer = (lane.q % 2 == 0 ? neighbour : 0.0f) + (lane.q < 2 ? others : 0.0f);
      first = before + (nearer + pair);
      second = before + (nearer + second);
      before += two + others;
    }
  }
}

/// The same from the first column to the last (far → near), beginning with start[h], which becomes the whole sum.
__device__ inline void sums_from_first(Fragment& x, float (&start)[half_rows], const Lane& lane) {
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    float before = start[h];
#pragma unroll
    for (int n = 0; n < column_blocks; ++n) {
      float &first = x.at[n][2 * h], &second = x.at[n][2 * h + 1];
      const float pair = first + second;
      const float neighbour = __shfl_xor_sync(all_lanes, pair, 1), two = pair + neighbour;
      const float others = __shfl_xor_sync(all_lanes, two, 2);
      const float farther = (lane.q % 2 == 1 ? neighbour : 0.0f) + (lane.q >= 2 ? others : 0.0f);
      second = before + (farther + pair);
      first = before + (farther + first);
      before += two + others;
    }
    start[h] = before;
  }
}

/// Words that the warps of a block give each other; two sets, used in turn.
struct Votes {
  unsigned of_warp[2][block_threads / warp_lanes];
};

/// Bits that any thread of the block has set; the same answer for all. Holds a barrier. `turn` counts the calls.
template <int Bits> __device__ inline unsigned block_or(Votes& votes, int& turn, unsigned mine, const Lane& lane) {
  unsigned of_warp = 0;
#pragma unroll
  for (int bit = 0; bit < Bits; ++bit) of_warp |= __any_sync(all_lanes, (mine >> bit & 1) != 0) ? 1u << bit : 0u;
  unsigned(&set)[block_threads / warp_lanes] = votes.of_warp[turn & 1];
  ++turn;
  if (lane.lane == 0) set[lane.warp] = of_warp;
  __syncthreads();
  return set[0] | set[1] | set[2] | set[3];
}

}  // namespace capstan::kernels::cuda::attention
