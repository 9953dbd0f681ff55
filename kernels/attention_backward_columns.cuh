#pragma once
// Backward, the columns' part: a block per key tile and kv head walks the heads of its group and their query tiles, in this order,
// and makes dv, dz, dk with the gradients of key offsets, or a gate_k's gradient. Carries and X come from the band that the rows'
// part left; beyond a row's horizon from its final carry.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_backward.cuh"
#include "kernels/terms/order_free_backward.cuh"

namespace capstan::kernels::cuda::attention {

/// Carries and X on entry of the tile, of the thread's rows.
__device__ inline void read_band(BackwardSums& sums, const Arguments& a, const BackwardArguments& b, const QueryTile& t,
                                 const Meeting& m, std::int64_t tile, const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const GatedArguments& g = a.sum[w];
      if (g.gates == Gates::none) continue;
      const std::int64_t row = t.row(lane, h);
      BandEntry entry{0, 0};
      if (sums.live(w, m)) entry = b.band[w][((tile - b.first_tile) * a.heads + t.head) * a.rows + row];
      else entry.carry = carry_value(b.final_carry[w][a.at(row, t.head)], g.last);
      sums.carry[w].value[h] = entry.carry;
      sums.gate_grad[w][h] = entry.gate_grad;
    }
}

/// sum += duᵀ gate_q. Begins and ends with a barrier.
template <class T, int N>
__device__ inline void multiply_gate_queries(float (&sum)[N][4], Work& work, const Fragment& d_u, const Arguments& a,
                                             const GatedArguments& g, const QueryTile& t, const Lane& lane) {
  __syncthreads();
  keep_f32(work, d_u, lane);
#pragma unroll
  for (int first = 0; first < N; first += chunk_columns / 8) {
    if (first * 8 >= a.depth) continue;
    __syncthreads();
    load_gate_queries<T>(work.chunk, a, g, t, first * 8);
    __syncthreads();
    fma_multiply<true, chunk_columns / 8>(sum, work.f32, work.chunk, first, lane);
  }
  __syncthreads();
}

/// Queries and their part of d_o; q is the older group. The values that dP needs come again where those of z took their place.
template <class Products>
__device__ inline void load_column_tiles(BackwardShared<Products>& shared, const Arguments& a,
                                         const BackwardArguments& b, const QueryTile& t, const Meeting& m) {
  using T = typename Products::Element;
  Products::load(shared.q, rows_of<T>(a.q, t.begin, t.rows, a.heads, t.head, a.depth, 0, a.depth));
  ptx::copy_async_commit();
  const std::int64_t from = b.job == Job::dz ? a.depth : 0;
  Products::load(shared.d_o, rows_of<T>(b.d_o, t.begin, t.rows, a.heads, t.head, a.columns(), from, a.depth));
  if (b.job == Job::dk || b.job == Job::gate)
    Products::load(shared.u, rows_of<T>(a.v, m.begin, m.keys, a.groups, t.group, a.depth, 0, a.depth));
  ptx::copy_async_commit();
}

/// target [T or blocks, G, D] += factor sum
template <int N>
__device__ inline void add_to_keys(float* target, const float (&sum)[N][4], float factor, bool to_gates,
                                   const Arguments& a, const GatedArguments& g, const Meeting& m, std::int64_t group,
                                   const Lane& lane) {
  const std::uint64_t some = to_gates && g.gates == Gates::block_ends ? block_ends(g, m) : low_bits(m.keys);
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const int column = lane.column(n, 0), key = lane.row(h);
      if (column >= a.depth || (some >> key & 1) == 0) continue;
      const std::int64_t row = to_gates ? gate_row(g, m.begin + key) : m.begin + key;
      float2* const at = reinterpret_cast<float2*>(target + (row * a.groups + group) * a.depth + column);
      const float2 before = *at;
      *at = make_float2(before.x + factor * sum[n][2 * h], before.y + factor * sum[n][2 * h + 1]);
    }
}

/// d_key_offset [T, H] -= the block's sums of a head. Begins and ends with a barrier; the sums are 0 afterwards.
template <class Products>
__device__ inline void add_key_offsets(BackwardShared<Products>& shared, const Arguments& a, const BackwardArguments& b,
                                       const Meeting& m, std::int64_t head) {
  __syncthreads();
  const int key = static_cast<int>(threadIdx.x);
  if (key < tile_size) {
    float sum = 0;
    for (auto& of_warp : shared.key_sum) {
      sum += of_warp[key];
      of_warp[key] = 0;
    }
    if (key < m.keys) b.d_key_offset[a.at(m.begin + key, head)] -= sum;
  }
  __syncthreads();
}

/// The product of one query tile. `m` has met it.
template <class Products, bool terms>
__device__ inline void add_query_tile(float (&sum)[Products::columns / 8][4], BackwardShared<Products>& shared,
                                      BackwardSums& sums, const Arguments& a, const BackwardArguments& b,
                                      const QueryTile& t, const Meeting& m, std::int64_t tile, const Lane& lane) {
  using T = typename Products::Element;
  Work& work = shared.common.work;
  __syncthreads();  // nobody reads the tiles before any more
  load_column_tiles(shared, a, b, t, m);
  const SavedRows saved(a, b, t, lane);
  const OrderFreeRows order_free(a, t, lane);
  if constexpr (terms) read_band(sums, a, b, t, m, tile, lane);
  ptx::copy_async_wait<1>();
  __syncthreads();
  Fragment weight, d;
  Gated gated[gated_sums];
  scaled_scores<Products>(weight, shared.q, shared.k, a.scale, lane);
  if constexpr (terms) add_terms_again<Products, Walk::given>(weight, gated, sums, shared, a, t, m, lane);
  find_weights(weight, saved, m, lane);
  ptx::copy_async_wait<0>();
  __syncthreads();
  if (b.job == Job::dv || b.job == Job::dz) {
    if (terms && a.dropout.on) drop_weights(weight, a, t, m, lane);
    Products::keep(work, weight, lane);
    __syncthreads();
    return Products::multiply_transposed(sum, work, shared.d_o, lane);
  }
  value_scores(d, shared, a, b, t, m, lane);
  find_d_logit(d, weight, saved, a, t, m, lane);
  if constexpr (terms) {
    if (b.d_key_offset != nullptr) key_offsets_backward(shared.key_sum[lane.warp], d, a, t, m, order_free, lane);
    Fragment d_score;
    if (!find_d_scores(d_score, d, sums, gated, a, b, t, lane)) return;
    if (b.job == Job::gate) return multiply_gate_queries<T>(sum, work, d_score, a, a.sum[b.which], t, lane);
    d = d_score;
  }
  Products::keep(work, d, lane);
  __syncthreads();
  Products::multiply_transposed(sum, work, shared.q, lane);
}

/// dv, dz, dk or a gate_k's gradient; see the head of this file. Terms: any but s q·k.
template <class Products, bool terms>
__global__ void __launch_bounds__(block_threads, 2)
    backward_columns(const __grid_constant__ Arguments a, const __grid_constant__ BackwardArguments b) {
  using T = typename Products::Element;
  BackwardShared<Products>& shared = ptx::shared<BackwardShared<Products>>();
  const Lane lane;
  const std::int64_t tile = b.first_tile + blockIdx.x, group = blockIdx.y, of_group = a.heads / a.groups;
  const std::int64_t first_key = a.key_index[0];
  float sum[Products::columns / 8][4];
  clear(sum);
  Meeting m;
  m.begin = tile * a.tile;
  m.keys = static_cast<int>(min(a.tile, a.keys - m.begin));
  m.first = first_key + m.begin;
  Products::load(shared.k, rows_of<T>(a.k, m.begin, m.keys, a.groups, group, a.depth, 0, a.depth));
  for (int at = static_cast<int>(threadIdx.x); at < block_warps * tile_size; at += block_threads)
    shared.key_sum[at / tile_size][at % tile_size] = 0;
  int turn = 0;
  const TileRange range = query_tiles_of(a, m);
  for (std::int64_t head = group * of_group; head < (group + 1) * of_group; ++head) {
    for (std::int64_t query_tile = range.first; query_tile < range.end; ++query_tile) {
      const QueryTile t(a, query_tile, head);
      if (!may_meet(m, a, t, tile, first_key, lane)) continue;
      BackwardSums sums(a, b, t);
      if (!m.all || (terms && a.gated)) {
        const unsigned mine = (m.allowed[0] | m.allowed[1]) != 0 ? 1 : 0;
        const unsigned votes =
            block_or<3>(shared.common.votes, turn, mine | (terms ? sums.find(a, t, m, lane) << 1 : 0), lane);
        if ((votes & 1) == 0) continue;
        if constexpr (terms) sums.choose(a, m, votes >> 1);
      }
      add_query_tile<Products, terms>(sum, shared, sums, a, b, t, m, tile, lane);
    }
    if (terms && b.d_key_offset != nullptr) add_key_offsets(shared, a, b, m, head);
  }
  wait_for_copies();
  const bool scaled = b.job == Job::dk || b.job == Job::gate;
  // Gates without a gate_k of their own are made of k, and so is their gradient.
  add_to_keys(b.target, sum, scaled ? a.scale : 1.0f, b.job == Job::gate, a, a.sum[b.which], m, group, lane);
}

}  // namespace capstan::kernels::cuda::attention
