#pragma once
// The products between tiles, as a policy: `Bf16Products` on the tensor core (operands in bf16, sums in f32; weights and gradients of
// scores are rounded to bf16 where they enter a product), `F32Products` by plain f32 operations. Both with the layout of
// attention_fragment.cuh, so that all else is written once. A policy has
//
//   Element                     what tiles are made of
//   Tile                        64 rows of Columns entries in shared memory
//   load(tile, …)               begins to copy rows of an Element array into it
//   scores(s, a, b)             s[i][j] += Σ_d a[i][d] b[j][d]
//   multiply(sum, x, y, work)   sum[i][d] += Σ_j x[i][j] y[j][d], x a fragment
//   keep(work, x)               puts x where the block can read it; then, after a barrier,
//   multiply_transposed(sum, work, y)   sum[j][d] += Σ_i x[i][j] y[i][d]
//
// Columns: the head size, padded with zeros to 32, 64 or 128.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_fragment.cuh"
#include "kernels/ptx.cuh"
#include "kernels/values.cuh"

namespace capstan::kernels::cuda::attention {

constexpr int f32_stride = tile_size + 4, bf16_stride = tile_size + 8;
constexpr int chunk_columns = 32, chunk_stride = chunk_columns + 4;

/// Weights or gradients of scores of a tile, [64, 64], and columns of a matrix that products in f32 pass by.
struct alignas(16) Work {
  union {
    float f32[tile_size][f32_stride];
    __nv_bfloat16 bf16[tile_size][bf16_stride];
  };
  float chunk[tile_size][chunk_stride];
};

/// Rows of a matrix in device memory: row r begins `stride` elements after row r - 1; `count` rows of `depth` elements.
template <class T> struct Rows {
  const T* first;
  std::int64_t stride;
  int count, depth;
};

/// Rows of a matrix [T, heads or groups, columns] that belong to a tile: `depth` columns from `from` on.
template <class T>
__device__ inline Rows<T> rows_of(const void* matrix, std::int64_t begin, int count, std::int64_t heads,
                                  std::int64_t head, std::int64_t columns, std::int64_t from, std::int64_t depth) {
  return {static_cast<const T*>(matrix) + (begin * heads + head) * columns + from, heads * columns, count,
          static_cast<int>(depth)};
}

/// Begins to copy rows; zeros where there are none. Every row begins at a multiple of 16 bytes.
template <int Columns, int Stride, class T> __device__ inline void copy_rows(T (*tile)[Stride], const Rows<T>& rows) {
  constexpr int pack = widest<T>, packs = Columns / pack;
  for (int at = static_cast<int>(threadIdx.x); at < tile_size * packs; at += block_threads) {
    const int row = at / packs, column = at % packs * pack;
    const bool valid = row < rows.count && column < rows.depth;
    ptx::copy_async_16(&tile[row][column], valid ? rows.first + row * rows.stride + column : rows.first, valid);
  }
}

/// Before a kernel ends: also of copies that nobody came to use.
__device__ inline void wait_for_copies() {
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
}

// ---- f32 ------------------------------------------------------------------------------------------------------------

/// sum += a·b, in the order of the entries.
__device__ inline void add_products(float& sum, const float4& a, const float4& b) {
  sum = __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}

/// s[i][j] += Σ_d a[i][d] b[j][d] over Columns entries, in their order. Sparing: barriers keep few of b's entries in registers.
template <int Columns, bool sparing, int A, int B>
__device__ inline void fma_scores(Fragment& s, const float (*a)[A], const float (*b)[B], const Lane& lane) {
#pragma unroll 1
  for (int d = 0; d < Columns; d += 4) {
    const float4 upper = *reinterpret_cast<const float4*>(&a[lane.row(0)][d]),
                 lower = *reinterpret_cast<const float4*>(&a[lane.row(1)][d]);
#pragma unroll
    for (int n = 0; n < column_blocks; ++n) {
      if (sparing) __syncwarp();
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float4 key = *reinterpret_cast<const float4*>(&b[lane.column(n, c)][d]);
        add_products(s.at[n][c], upper, key);
        add_products(s.at[n][2 + c], lower, key);
      }
    }
  }
}

/// sum[i][d] += Σ_j x[i][j] y[j][d]; Transposed: Σ_j x[j][i] y[j][d]. The column blocks of `sum` from `first` on, N of them.
template <bool Transposed, int N, int Blocks, int X, int Y>
__device__ inline void fma_multiply(float (&sum)[Blocks][4], const float (*x)[X], const float (*y)[Y], int first,
                                    const Lane& lane) {
#pragma unroll 1
  for (int j = 0; j < tile_size; ++j) {
    const float upper = Transposed ? x[j][lane.row(0)] : x[lane.row(0)][j],
                lower = Transposed ? x[j][lane.row(1)] : x[lane.row(1)][j];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 value = *reinterpret_cast<const float2*>(&y[j][lane.column(n, 0)]);
      float(&at)[4] = sum[first + n];
      at[0] = __fmaf_rn(upper, value.x, at[0]);
      at[1] = __fmaf_rn(upper, value.y, at[1]);
      at[2] = __fmaf_rn(lower, value.x, at[2]);
      at[3] = __fmaf_rn(lower, value.y, at[3]);
    }
  }
}

/// x into work, in f32. A warp's rows are there for the warp after a __syncwarp, for others after a barrier.
__device__ inline void keep_f32(Work& work, const Fragment& x, const Lane& lane) {
#pragma unroll
  for (int n = 0; n < column_blocks; ++n)
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      *reinterpret_cast<float2*>(&work.f32[lane.row(h)][lane.column(n, 0)]) =
          make_float2(x.at[n][2 * h], x.at[n][2 * h + 1]);
}

template <int Columns> struct F32Products {
  using Element = float;
  static constexpr int columns = Columns, stride = Columns + 4;
  struct Tile {
    alignas(16) float at[tile_size][stride];
  };

  __device__ static void load(Tile& tile, const Rows<float>& rows) { copy_rows<Columns>(tile.at, rows); }
  /// The same of rows that are f32 in either policy.
  __device__ static void load_wide(Tile& tile, const Rows<float>& rows) { load(tile, rows); }

  __device__ static void scores(Fragment& s, const Tile& a, const Tile& b, const Lane& lane) {
    fma_scores<Columns, false>(s, a.at, b.at, lane);
  }
  __device__ static void multiply(float (&sum)[Columns / 8][4], const Fragment& x, const Tile& y, Work& work,
                                  const Lane& lane) {
    __syncwarp();  // what the warp's rows of `work` held before has been read
    keep_f32(work, x, lane);
    __syncwarp();
    fma_multiply<false, Columns / 8>(sum, work.f32, y.at, 0, lane);
  }
  __device__ static void keep(Work& work, const Fragment& x, const Lane& lane) { keep_f32(work, x, lane); }
  __device__ static void multiply_transposed(float (&sum)[Columns / 8][4], const Work& work, const Tile& y,
                                             const Lane& lane) {
    fma_multiply<true, Columns / 8>(sum, work.f32, y.at, 0, lane);
  }
};

// ---- bf16 -----------------------------------------------------------------------------------------------------------

template <int Columns> struct Bf16Products {
  using Element = __nv_bfloat16;
  static constexpr int columns = Columns, stride = Columns + 8;  // ldmatrix's eight rows then lie in different banks
  struct Tile {
    alignas(16) __nv_bfloat16 at[tile_size][stride];
  };

  __device__ static void load(Tile& tile, const Rows<__nv_bfloat16>& rows) { copy_rows<Columns>(tile.at, rows); }
  /// Of f32 rows, rounded.
  __device__ static void load_wide(Tile& tile, const Rows<float>& rows) {
    constexpr int packs = Columns / 4;
    for (int at = static_cast<int>(threadIdx.x); at < tile_size * packs; at += block_threads) {
      const int row = at / packs, column = at % packs * 4;
      float4 x = {0, 0, 0, 0};
      if (row < rows.count && column < rows.depth)
        x = *reinterpret_cast<const float4*>(rows.first + row * rows.stride + column);
      *reinterpret_cast<Pack<__nv_bfloat162, 2>*>(&tile.at[row][column]) = {
          {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)}};
    }
  }

  __device__ static void scores(Fragment& s, const Tile& a, const Tile& b, const Lane& lane) {
    const int matrix = lane.lane / 8, row = lane.lane % 8;
#pragma unroll 1  // unrolled, the addresses of all rows would be kept in registers
    for (int d = 0; d < Columns; d += 16) {
      std::uint32_t of_a[4];
      ptx::ldmatrix_x4(of_a, &a.at[warp_rows * lane.warp + matrix % 2 * 8 + row][d + matrix / 2 * 8]);
#pragma unroll
      for (int n = 0; n < column_blocks; n += 2) {
        std::uint32_t of_b[4];
        ptx::ldmatrix_x4(of_b, &b.at[8 * (n + matrix / 2) + row][d + matrix % 2 * 8]);
        ptx::mma_m16n8k16(s.at[n], of_a, {of_b[0], of_b[1]});
        ptx::mma_m16n8k16(s.at[n + 1], of_a, {of_b[2], of_b[3]});
      }
    }
  }

  /// sum += a y[first..first + 15], with a of 16 columns.
  __device__ static void add_rows(float (&sum)[Columns / 8][4], const std::uint32_t (&a)[4], const Tile& y, int first,
                                  const Lane& lane) {
    const int matrix = lane.lane / 8, row = lane.lane % 8;
#pragma unroll
    for (int n = 0; n < Columns / 8; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_transposed(b, &y.at[first + matrix % 2 * 8 + row][8 * (n + matrix / 2)]);
      ptx::mma_m16n8k16(sum[n], a, {b[0], b[1]});
      ptx::mma_m16n8k16(sum[n + 1], a, {b[2], b[3]});
    }
  }

  __device__ static void multiply(float (&sum)[Columns / 8][4], const Fragment& x, const Tile& y, Work&,
                                  const Lane& lane) {
#pragma unroll
    for (int j = 0; j < tile_size; j += 16) {
      const float(&left)[4] = x.at[j / 8], (&right)[4] = x.at[j / 8 + 1];
      const std::uint32_t a[4] = {ptx::pack_bf16(left[0], left[1]), ptx::pack_bf16(left[2], left[3]),
                                  ptx::pack_bf16(right[0], right[1]), ptx::pack_bf16(right[2], right[3])};
      add_rows(sum, a, y, j, lane);
    }
  }

  __device__ static void keep(Work& work, const Fragment& x, const Lane& lane) {
#pragma unroll
    for (int n = 0; n < column_blocks; ++n)
#pragma unroll
      for (int h = 0; h < half_rows; ++h)
        *reinterpret_cast<__nv_bfloat162*>(&work.bf16[lane.row(h)][lane.column(n, 0)]) =
            __floats2bfloat162_rn(x.at[n][2 * h], x.at[n][2 * h + 1]);
  }
  __device__ static void multiply_transposed(float (&sum)[Columns / 8][4], const Work& work, const Tile& y,
                                             const Lane& lane) {
    const int matrix = lane.lane / 8, row = lane.lane % 8;
#pragma unroll
    for (int i = 0; i < tile_size; i += 16) {
      std::uint32_t a[4];  // of xᵀ: matrix m lies at rows 8 (m % 2) of xᵀ, so columns of x, and rows i + 8 (m / 2) of x
      ptx::ldmatrix_x4_transposed(a, &work.bf16[i + matrix / 2 * 8 + row][warp_rows * lane.warp + matrix % 2 * 8]);
      add_rows(sum, a, y, i, lane);
    }
  }
};

}  // namespace capstan::kernels::cuda::attention
