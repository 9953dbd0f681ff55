#pragma once
// Forward of attention_tile.h: a block per query tile and head walks the key tiles of the chunk, near → far.
//
//   S = s Q Kᵀ; logit = S + terms; m' = max(m, max_j logit); P = e^{logit - m'}
//   l' = l e^{m - m'} + Σ_j P;  O' = O e^{m - m'} + kept P U
//
// O is held in registers, one product's columns at a time: with z (TAPE) the kernel runs twice, first for the columns of z, which
// changes nothing but these, then for those of v. That costs S once more, and spares the registers that 2D columns would take.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_dropout.cuh"
#include "kernels/attention_scores.cuh"

namespace capstan::kernels::cuda::attention {

struct StateArguments {
  float *o, *m, *l;                                       ///< [T, H, E], [T, H], [T, H]
  std::int64_t *carry[gated_sums], *horizon[gated_sums];  ///< [T, H], [query tiles, H], or null
  Counts* counts;                                         ///< of every block, or null: nobody counts
  bool of_z;                                              ///< the columns of z; else those of v, and all the state

  __device__ bool counted() const { return counts != nullptr && !of_z; }
};

/// Softmax state of the thread's rows.
struct SoftmaxRows {
  float m[half_rows], l[half_rows];
};

__device__ inline void write_softmax(const StateArguments& s, const SoftmaxRows& rows, const Arguments& a,
                                     const QueryTile& t, const Lane& lane) {
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    if (lane.q != 0 || !t.has(lane.row(h))) continue;
    s.m[a.at(t.row(lane, h), t.head)] = rows.m[h];
    s.l[a.at(t.row(lane, h), t.head)] = rows.l[h];
  }
}

/// logit → P; m and l brought up to date; shrink = e^{m - m'}.
__device__ inline void softmax_weights(Fragment& logit, SoftmaxRows& rows, float (&shrink)[half_rows]) {
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    float most = logit.at[0][2 * h];
#pragma unroll
    for (int n = 0; n < column_blocks; ++n) most = fmaxf(most, fmaxf(logit.at[n][2 * h], logit.at[n][2 * h + 1]));
    const float m = fmaxf(rows.m[h], quad_max(most));
    shrink[h] = ptx::exp2_approx((rows.m[h] - m) * log2_e);
    rows.m[h] = m;
#pragma unroll
    for (int n = 0; n < column_blocks; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& weight = logit.at[n][2 * h + c];
        weight = ptx::exp2_approx((weight - m) * log2_e);
      }
    rows.l[h] = __fmaf_rn(rows.l[h], shrink[h], row_sum(logit, h));
  }
}

/// What a block's rows carry, per gated sum: in shared memory, where a loop over the sums finds it. A warp reads and writes its own rows
/// only; the threads of a quad have the same numbers.
struct Carries {
  std::int64_t sum[gated_sums][tile_size];

  __device__ Carry of(int which, const Lane& lane) const {
    Carry carry;
#pragma unroll
    for (int h = 0; h < half_rows; ++h) carry.sum[h] = sum[which][lane.row(h)];
    return carry;
  }
  __device__ void keep(int which, const Carry& carry, const Lane& lane) {
    __syncwarp();  // the quad has read
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      if (lane.q == 0) sum[which][lane.row(h)] = carry.sum[h];
    __syncwarp();
  }
};

/// What all threads of a block know from its beginning to its end. In shared memory: as registers of each thread it would leave too few
/// for the terms.
struct BlockWork {
  QueryTile rows;
  std::int64_t first_key;
  TileRange tiles;

  __device__ BlockWork(const Arguments& a, std::int64_t number, std::int64_t head)
      : rows(a, number, head), first_key(a.key_index[0]), tiles(key_tiles_of(a, rows, first_key)) {}
};

template <class Products> struct ForwardShared {
  typename Products::Tile q, k, u;
  Common common;
  Carries carries;
  BlockWork work;
};

template <int Sums>
__device__ inline void read_carries(Carries& carries, const Arguments& a, const StateArguments& s, const QueryTile& t,
                                    const Lane& lane) {
#pragma unroll 1
  for (int w = 0; w < Sums; ++w) {
    if (a.sum[w].gates == Gates::none) continue;
    Carry carry;
#pragma unroll
    for (int h = 0; h < half_rows; ++h) carry.sum[h] = s.carry[w][a.at(t.row(lane, h), t.head)];
    carries.keep(w, carry, lane);
  }
}
template <int Sums>
__device__ inline void write_carries(const Carries& carries, const Arguments& a, const StateArguments& s,
                                     const QueryTile& t, const Lane& lane) {
#pragma unroll 1
  for (int w = 0; w < Sums; ++w)
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      if (a.sum[w].gates != Gates::none && lane.q == 0 && t.has(lane.row(h)))
        s.carry[w][a.at(t.row(lane, h), t.head)] = carries.sum[w][lane.row(h)];
}

/// Bits for block_or, two per sum: 1 some row has a gate; 2 some row that sees keys is not saturated.
template <int Sums>
__device__ inline unsigned gates_of_tile(const Carries& carries, const Arguments& a, const QueryTile& t,
                                         const Meeting& m, const Lane& lane) {
  unsigned bits = 0;
#pragma unroll 1
  for (int w = 0; w < Sums; ++w) {
    const GatedArguments& g = a.sum[w];
    if (g.gates == Gates::none) continue;
    Path path;
    unsigned mine = find_path(path, a, g, m, t, lane);
    const Carry carry = carries.of(w, lane);
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      if (m.allowed[h] != 0 && !saturated(carry.sum[h], g.last)) mine |= 2;
    bits |= mine << (2 * w);
  }
  return bits;
}

/// o's rows of the tile, columns from `from` on, to and from registers.
template <int N>
__device__ inline void read_rows(float (&sum)[N][4], const float* matrix, const Arguments& a, const QueryTile& t,
                                 std::int64_t columns, std::int64_t from, const Lane& lane) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const int column = lane.column(n, 0);
      const bool valid = column < a.depth && t.has(lane.row(h));
      const float* const at = matrix + a.at(t.row(lane, h), t.head) * columns + from + column;
      const float2 pair = valid ? *reinterpret_cast<const float2*>(at) : make_float2(0, 0);
      sum[n][2 * h] = pair.x;
      sum[n][2 * h + 1] = pair.y;
    }
}
template <int N>
__device__ inline void write_rows(float* matrix, const float (&sum)[N][4], const Arguments& a, const QueryTile& t,
                                  std::int64_t columns, std::int64_t from, const Lane& lane) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const int column = lane.column(n, 0);
      if (column >= a.depth || !t.has(lane.row(h))) continue;
      float* const at = matrix + a.at(t.row(lane, h), t.head) * columns + from + column;
      *reinterpret_cast<float2*>(at) = make_float2(sum[n][2 * h], sum[n][2 * h + 1]);
    }
}

template <int N> __device__ inline void shrink_rows(float (&sum)[N][4], const float (&shrink)[half_rows]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] *= shrink[i / 2];
}

/// The block's counters: its warps' gates in their order, and warp 0's tiles.
__device__ inline void write_counts(Counts* counts, const Common& common) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  Counts sum = common.counts[0];
  for (int warp = 1; warp < block_threads / warp_lanes; ++warp) sum += common.counts[warp];
  counts[std::int64_t(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}
__device__ inline void count_tile(Counts& counts, bool all_flat) {
  if (threadIdx.x != 0) return;
  counts.tiles += 1;
  counts.saturated_tiles += all_flat;
}

/// Begins to copy a tile's keys, and its values: a group of copies each.
template <class Products>
__device__ inline void load_keys(ForwardShared<Products>& shared, const Arguments& a, const QueryTile& t,
                                 std::int64_t tile) {
  using T = typename Products::Element;
  const std::int64_t begin = tile * a.tile;
  const int keys = static_cast<int>(min(a.tile, a.keys - begin));
  Products::load(shared.k, rows_of<T>(a.k, begin, keys, a.groups, t.group, a.depth, 0, a.depth));
  ptx::copy_async_commit();
}
template <class Products>
__device__ inline void load_values(ForwardShared<Products>& shared, const Arguments& a, const QueryTile& t,
                                   const Meeting& m, bool of_z) {
  using T = typename Products::Element;
  const std::int64_t group = t.group;
  if (of_z) Products::load_wide(shared.u, rows_of<float>(a.z, m.begin, m.keys, a.groups, group, a.depth, 0, a.depth));
  else Products::load(shared.u, rows_of<T>(a.v, m.begin, m.keys, a.groups, group, a.depth, 0, a.depth));
  ptx::copy_async_commit();
}

/// The biases of all terms; horizon and carries go on. The loop over the sums stays a loop: two copies of its body would want more
/// registers than there are.
template <class Products, Terms terms>
__device__ inline void add_terms(Fragment& logit, ForwardShared<Products>& shared, const Arguments& a,
                                 const StateArguments& s, const QueryTile& t, const Meeting& m, unsigned votes,
                                 const Lane& lane) {
  bool all_flat = a.gated;
#pragma unroll 1
  for (int w = 0; w < sums_of<terms>; ++w) {
    const GatedArguments& g = a.sum[w];
    if (g.gates == Gates::none) continue;
    Path path;
    choose_path(path, a, g, m, (votes >> (2 * w) & 3) == 3);
    if (path.general) find_path(path, a, g, m, t, lane);
    all_flat = all_flat && path.flat;
    Gated gated;
    Carry carry = shared.carries.of(w, lane);
    const bool first = w == 0 || a.sum[0].gates == Gates::none;
    add_gated<Products, terms, Walk::forward>(logit, gated, carry, first, w == 0 && s.counted(), shared.common,
                                              shared.q, shared.k, a, g, t, m, path, lane);
    if (path.summed) shared.carries.keep(w, carry, lane);
    if (path.summed && !s.of_z && threadIdx.x == 0)  // the farthest tile so far
      s.horizon[w][a.at(t.number, t.head)] = m.first;
  }
  if (s.counted()) count_tile(shared.common.counts[0], all_flat);
  if constexpr (terms == Terms::all)
    if (a.terms.any) add_order_free(logit, shared.common.work, a, t, m, lane);
}

template <class Products, Terms terms>
__global__ void __launch_bounds__(block_threads, 2)
    forward_tiles(const __grid_constant__ Arguments a, const __grid_constant__ StateArguments s) {
  using T = typename Products::Element;
  constexpr int blocks = Products::columns / 8;
  ForwardShared<Products>& shared = ptx::shared<ForwardShared<Products>>();
  const Lane lane;
  if (threadIdx.x == 0)
    shared.work = BlockWork(a, a.query_tiles() - 1 - blockIdx.x, blockIdx.y);  // the longest rows begin first
  __syncthreads();
  const QueryTile& t = shared.work.rows;
  const TileRange& range = shared.work.tiles;
  Products::load(shared.q, rows_of<T>(a.q, t.begin, t.rows, a.heads, t.head, a.depth, 0, a.depth));
  const std::int64_t from = s.of_z ? a.depth : 0;
  float o[blocks][4];
  read_rows(o, s.o, a, t, a.columns(), from, lane);
  SoftmaxRows softmax;
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    softmax.m[h] = s.m[a.at(t.row(lane, h), t.head)];
    softmax.l[h] = s.l[a.at(t.row(lane, h), t.head)];
  }
  constexpr bool gated = terms != Terms::none;
  if constexpr (gated) read_carries<sums_of<terms>>(shared.carries, a, s, t, lane);
  if (lane.lane == 0) shared.common.counts[lane.warp] = {};
  int turn = 0;
  bool met = false;          // rows that see no key are left as they are
  bool next_copied = false;  // the next tile's keys are being copied
  for (int left = static_cast<int>(range.end - range.first) - 1; left >= 0; --left) {
    const std::int64_t tile = range.first + left;
    const bool copied = next_copied;
    next_copied = false;
    Meeting m;
    if (!may_meet(m, a, t, tile, shared.work.first_key, lane)) continue;
    unsigned votes = 0;
    if (!m.all || (gated && a.gated)) {
      const unsigned mine = (m.allowed[0] | m.allowed[1]) != 0 ? 1 : 0;
      const unsigned gates = gated ? gates_of_tile<sums_of<terms>>(shared.carries, a, t, m, lane) : 0;
      votes = block_or<5>(shared.common.votes, turn, mine | gates << 1, lane);
      if ((votes & 1) == 0) continue;
    }
    met = true;
    if (!copied) ptx::copy_async_wait<0>();  // of a tile that met no row
    __syncthreads();                         // nobody reads the tile before any more
    if (!copied) load_keys(shared, a, t, tile);
    load_values(shared, a, t, m, s.of_z);
    ptx::copy_async_wait<1>();
    __syncthreads();
    Fragment logit;
    scaled_scores<Products>(logit, shared.q, shared.k, a.scale, lane);
    if constexpr (gated) add_terms<Products, terms>(logit, shared, a, s, t, m, votes >> 1, lane);
    else if (s.counted()) count_tile(shared.common.counts[0], false);
    apply_mask(logit, m, lane);
    float shrink[half_rows];
    softmax_weights(logit, softmax, shrink);
    if (terms == Terms::all && a.dropout.on) drop_weights(logit, a, t, m, lane);
    shrink_rows(o, shrink);
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (left > 0) {  // while the values are multiplied; found from `left`, so that `tile` is not kept until here
      load_keys(shared, a, t, range.first + left - 1);
      next_copied = true;
    }
    Products::multiply(o, logit, shared.u, shared.common.work, lane);
  }
  wait_for_copies();
  if (met) {
    write_rows(s.o, o, a, t, a.columns(), from, lane);
    if (!s.of_z) write_softmax(s, softmax, a, t, lane);
    if constexpr (gated)
      if (!s.of_z) write_carries<sums_of<terms>>(shared.carries, a, s, t, lane);
  }
  if (s.counted()) write_counts(s.counts, shared.common);
}

// ---- gate sums ------------------------------------------------------------------------------------------------------

template <class Products> struct GateSumShared {
  typename Products::Tile q, k;
  Common common;
};

/// total [T, H] = Σ of a gated sum's gates over the chunk, tile by tile in fixed point.
template <class Products>
__global__ void __launch_bounds__(block_threads)
    gate_sum_tiles(const __grid_constant__ Arguments a, std::int64_t* __restrict__ total, int which) {
  using T = typename Products::Element;
  GateSumShared<Products>& shared = ptx::shared<GateSumShared<Products>>();
  const Lane lane;
  const QueryTile t(a, a.query_tiles() - 1 - blockIdx.x, blockIdx.y);
  const GatedArguments& g = a.sum[which];
  Products::load(shared.q, rows_of<T>(a.q, t.begin, t.rows, a.heads, t.head, a.depth, 0, a.depth));
  std::int64_t sum[half_rows] = {};
  int turn = 0;
  const std::int64_t first_key = a.key_index[0];
  const TileRange range = key_tiles_of(a, t, first_key);
  for (std::int64_t tile = range.end - 1; tile >= range.first; --tile) {
    Meeting m;
    if (!may_meet(m, a, t, tile, first_key, lane)) continue;
    Path path;
    if (block_or<1>(shared.common.votes, turn, find_path(path, a, g, m, t, lane), lane) == 0) continue;
    Fragment scores, gate;
    if (g.separate) {
      gate_scores<T>(scores, shared.common.work, a, g, t, m, lane);
    } else {
      Products::load(shared.k, rows_of<T>(a.k, m.begin, m.keys, a.groups, t.group, a.depth, 0, a.depth));
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      __syncthreads();
      scaled_scores<Products>(scores, shared.q, shared.k, a.scale, lane);
      __syncthreads();
    }
    find_gate_values(gate, scores, path.has, g.floor, lane);
#pragma unroll
    for (int h = 0; h < half_rows; ++h) sum[h] += fixed_sum(gate, h);
  }
  wait_for_copies();
#pragma unroll
  for (int h = 0; h < half_rows; ++h)
    if (lane.q == 0 && t.has(lane.row(h))) total[a.at(t.row(lane, h), t.head)] = sum[h];
}

}  // namespace capstan::kernels::cuda::attention
