#pragma once
// Backward, the rows' part: a block per query tile and head walks the key tiles of the launch, far → near, and makes dq (or a
// gate_q's gradient), the gradients of row terms, and partial sums of shared weights. It carries X and walks the carry back; what
// both are on entry of each tile, it leaves in a band for the columns' part.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_backward.cuh"
#include "kernels/terms/order_free_backward.cuh"

namespace capstan::kernels::cuda::attention {

/// What lanes 0 to 15 of a warp hold of the row that they walk along.
struct RowBins {
  RowBin table[gated_sums];
  OrderFreeBins order_free;
};

/// dtable of one sum: along the row where positions differ from key to key, else by the row's sum.
__device__ inline void table_backward(RowBin& bin, float* d_table, Work& work, const Fragment& d_logit,
                                      const Gated& gated, const Carry& carry, const Path& path, const GatedArguments& g,
                                      const Arguments& a, const QueryTile& t, const Lane& lane) {
  if (d_table == nullptr) return;
  float* const d_row = d_table + a.at(t.begin + walked_row(lane), t.head) * (g.last + 1);
  const bool mine = walks(lane) && t.has(walked_row(lane));
  if (path.summed) {
    walk_rows(work, d_logit, gated.place, lane, [&](float d, float place) {
      if (mine) bin.add(d_row, Place(place), d);
    });
    return;
  }
  const float d = of_walked_row(row_sum(d_logit, 0), row_sum(d_logit, 1), lane),
              place = of_walked_row(carry.value[0], carry.value[1], lane);
  if (mine) bin.add(d_row, Place(place), d);
}

/// Everything that rows bring but dq.
__device__ inline void row_terms_backward(RowBins& bins, float (&d_offset)[half_rows], Common& common,
                                          const Fragment& d_logit, const Gated (&gated)[gated_sums],
                                          const BackwardSums& sums, const Arguments& a, const BackwardArguments& b,
                                          const QueryTile& t, const Meeting& m, const OrderFreeRows& order_free,
                                          const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
    if (a.sum[w].gates != Gates::none)
      table_backward(bins.table[w], b.d_table[w], common.work, d_logit, gated[w], sums.carry[w], sums.path[w], a.sum[w],
                     a, t, lane);
  if (a.terms.any)
    order_free_rows_backward(bins.order_free, d_offset, common.work, d_logit, a, b, t, m, order_free, lane);
}

/// Held-back entries of row tables go where they belong.
__device__ inline void flush_bins(RowBins& bins, const Arguments& a, const BackwardArguments& b, const QueryTile& t,
                                  const Lane& lane) {
  if (!walks(lane) || !t.has(walked_row(lane))) return;
  const std::int64_t at = a.at(t.begin + walked_row(lane), t.head);
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
    if (b.d_table[w] != nullptr) bins.table[w].flush(b.d_table[w] + at * (a.sum[w].last + 1));
  if (b.d_offset_table != nullptr) bins.order_free.offset.flush(b.d_offset_table + at * (a.terms.offset_last + 1));
  if (b.d_relative != nullptr) bins.order_free.relative.flush(b.d_relative + at * (a.terms.relative_last + 1));
}

/// The sums' state of the thread's rows.
__device__ inline void read_state(BackwardSums& sums, const Arguments& a, const BackwardArguments& b,
                                  const QueryTile& t, const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      if (a.sum[w].gates == Gates::none) continue;
      sums.carry[w].sum[h] = b.carry[w][a.at(t.row(lane, h), t.head)];
      sums.gate_grad[w][h] = b.gate_grad[w][a.at(t.row(lane, h), t.head)];
    }
}
__device__ inline void write_state(const BackwardSums& sums, const Arguments& a, const BackwardArguments& b,
                                   const QueryTile& t, const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      if (a.sum[w].gates == Gates::none || lane.q != 0 || !t.has(lane.row(h))) continue;
      b.carry[w][a.at(t.row(lane, h), t.head)] = sums.carry[w].sum[h];
      b.gate_grad[w][a.at(t.row(lane, h), t.head)] = sums.gate_grad[w][h];
    }
}

/// After add_terms_again and before X goes on.
__device__ inline void write_band(const BackwardSums& sums, const Arguments& a, const BackwardArguments& b,
                                  const QueryTile& t, const Meeting& m, std::int64_t tile, const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      if (a.sum[w].gates == Gates::none || !sums.live(w, m) || lane.q != 0 || !t.has(lane.row(h))) continue;
      b.band[w][((tile - b.first_tile) * a.heads + t.head) * a.rows + t.row(lane, h)] = {sums.carry[w].value[h],
                                                                                         sums.gate_grad[w][h]};
    }
}

/// sum += du gate_k: what the rows of a gate_q get. Begins and ends with a barrier.
template <class T, int N>
__device__ inline void multiply_gate_keys(float (&sum)[N][4], Work& work, const Fragment& d_u, const Arguments& a,
                                          const GatedArguments& g, const QueryTile& t, const Meeting& m,
                                          const Lane& lane) {
  __syncthreads();
  keep_f32(work, d_u, lane);
#pragma unroll
  for (int first = 0; first < N; first += chunk_columns / 8) {
    if (first * 8 >= a.depth) continue;
    __syncthreads();
    load_gate_keys<T>(work.chunk, a, g, m, t.group, first * 8);
    __syncthreads();
    fma_multiply<false, chunk_columns / 8>(sum, work.f32, work.chunk, first, lane);
  }
  __syncthreads();
}

/// target [T, H, D] += scale sum
template <int N>
__device__ inline void add_to_rows(float* target, const float (&sum)[N][4], const Arguments& a, const QueryTile& t,
                                   const Lane& lane) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const int column = lane.column(n, 0);
      if (column >= a.depth || !t.has(lane.row(h))) continue;
      float2* const at = reinterpret_cast<float2*>(target + a.at(t.row(lane, h), t.head) * a.depth + column);
      const float2 before = *at;
      *at = make_float2(before.x + a.scale * sum[n][2 * h], before.y + a.scale * sum[n][2 * h + 1]);
    }
}

/// Loads what the tile needs: the keys, and what the columns of z have taken the place of.
template <class Products>
__device__ inline void load_row_tiles(BackwardShared<Products>& shared, const Arguments& a, const BackwardArguments& b,
                                      const QueryTile& t, const Meeting& m, bool again) {
  using T = typename Products::Element;
  const std::int64_t group = t.group;
  Products::load(shared.k, rows_of<T>(a.k, m.begin, m.keys, a.groups, group, a.depth, 0, a.depth));
  ptx::copy_async_commit();
  Products::load(shared.u, rows_of<T>(a.v, m.begin, m.keys, a.groups, group, a.depth, 0, a.depth));
  if (again) Products::load(shared.d_o, rows_of<T>(b.d_o, t.begin, t.rows, a.heads, t.head, a.columns(), 0, a.depth));
  ptx::copy_async_commit();
}

/// dq, or a gate_q's gradient; see the head of this file. Terms: any but s q·k.
template <class Products, bool terms>
__global__ void __launch_bounds__(block_threads, 2)
    backward_rows(const __grid_constant__ Arguments a, const __grid_constant__ BackwardArguments b) {
  using T = typename Products::Element;
  BackwardShared<Products>& shared = ptx::shared<BackwardShared<Products>>();
  const Lane lane;
  const QueryTile t(a, a.query_tiles() - 1 - blockIdx.x, blockIdx.y);
  Products::load(shared.q, rows_of<T>(a.q, t.begin, t.rows, a.heads, t.head, a.depth, 0, a.depth));
  const SavedRows saved(a, b, t, lane);
  BackwardSums sums(a, b, t);
  if constexpr (terms) read_state(sums, a, b, t, lane);
  const OrderFreeRows order_free(a, t, lane);
  RowBins bins;
  float d_offset[half_rows] = {}, sum[Products::columns / 8][4];
  clear(sum);
  if constexpr (terms)
    if (b.job == Job::dq) clear_partials(a, b, t, lane);
  int turn = 0;
  bool loaded = false;
  const std::int64_t first_key = a.key_index[0];
  const TileRange range = key_tiles_of(a, t, first_key);
  for (std::int64_t tile = max(range.first, b.first_tile); tile < min(range.end, b.end_tile); ++tile) {
    Meeting m;
    if (!may_meet(m, a, t, tile, first_key, lane)) continue;
    if (!m.all || (terms && a.gated)) {
      const unsigned mine = (m.allowed[0] | m.allowed[1]) != 0 ? 1 : 0,
                     votes = block_or<3>(shared.common.votes, turn, mine | (terms ? sums.find(a, t, m, lane) << 1 : 0),
                                         lane);
      if ((votes & 1) == 0) continue;
      if constexpr (terms) sums.choose(a, m, votes >> 1);
    }
    __syncthreads();  // nobody reads the tiles before any more
    load_row_tiles(shared, a, b, t, m, !loaded || a.z != nullptr);
    loaded = true;
    ptx::copy_async_wait<1>();
    __syncthreads();
    Fragment weight, d;
    Gated gated[gated_sums];
    scaled_scores<Products>(weight, shared.q, shared.k, a.scale, lane);
    if constexpr (terms) add_terms_again<Products, Walk::backward>(weight, gated, sums, shared, a, t, m, lane);
    find_weights(weight, saved, m, lane);
    ptx::copy_async_wait<0>();
    __syncthreads();
    value_scores(d, shared, a, b, t, m, lane);
    find_d_logit(d, weight, saved, a, t, m, lane);
    if constexpr (terms) {
      const bool main = b.job == Job::dq;
      if (main) {
        write_band(sums, a, b, t, m, tile, lane);
        row_terms_backward(bins, d_offset, shared.common, d, gated, sums, a, b, t, m, order_free, lane);
      }
      Fragment d_score;
      if (!find_d_scores(d_score, d, sums, gated, a, b, t, lane)) continue;
      if (main) Products::multiply(sum, d_score, shared.k, shared.common.work, lane);
      else multiply_gate_keys<T>(sum, shared.common.work, d_score, a, a.sum[b.which], t, m, lane);
    } else {
      Products::multiply(sum, d, shared.k, shared.common.work, lane);
    }
  }
  wait_for_copies();
  if (!loaded) return;  // no row sees a key: what rows beyond the tile's end have read of its last one stays as it is
  add_to_rows(b.target, sum, a, t, lane);
  if (!terms || b.job != Job::dq) return;
  write_state(sums, a, b, t, lane);
  flush_bins(bins, a, b, t, lane);
  if (b.d_row_offset == nullptr) return;
#pragma unroll
  for (int h = 0; h < half_rows; ++h)
    if (lane.q == 0 && t.has(lane.row(h))) b.d_row_offset[a.at(t.row(lane, h), t.head)] += d_offset[h];
}

}  // namespace capstan::kernels::cuda::attention
