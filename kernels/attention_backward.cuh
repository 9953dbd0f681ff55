#pragma once
// Backward of attention_tile.h, in two kinds of kernels that compute the same tile alike and write different things; nobody adds to
// what another block adds to. With A = exp(logit - lse):
//
//   dP = dO Uᵀ;  dlogit = A (kept dP - delta);  dS = dlogit + Σ du of gates that are made of q and k
//   rows     (kernels/attention_backward_rows.cuh)     a block per query tile and head walks the key tiles far → near: dq += s dS K
//   columns  (kernels/attention_backward_columns.cuh)  a block per key tile and kv head: dk += s dSᵀ Q, dU += (kept A)ᵀ dO
//
// Each launch makes one product of a tile's matrix, a *job*: dq, or a gate_q's gradient; dv, dz, dk, or a gate_k's. The tile is
// computed again for each; for plain attention that is 8 products of 64 x 64 x D per tile where 7 would do, and it leaves one
// sum of 64 x D in registers, whatever the job.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_dropout.cuh"
#include "kernels/attention_scores.cuh"

namespace capstan::kernels::cuda::attention {

/// What a launch of a backward kernel adds up. gate: of the sum `which`.
enum class Job : std::uint8_t { dq, dk, dv, dz, gate };

/// On entry of a tile from its far side: min(carry, P) as forward had it, and X.
struct BandEntry {
  float carry, gate_grad;
};

struct BackwardArguments {
  const void* d_o;                                                    ///< [T, H, E]
  const float *lse, *delta;                                           ///< [T, H]
  const std::int64_t *horizon[gated_sums], *final_carry[gated_sums];  ///< [query tiles, H], [T, H]
  std::int64_t* carry[gated_sums];                                    ///< [T, H]: the state
  float* gate_grad[gated_sums];                                       ///< [T, H]
  BandEntry* band[gated_sums];        ///< [tiles of the launch, H, T]; written from the horizon on, towards the rows
  std::int64_t first_tile, end_tile;  ///< key tiles of the launch
  Job job;
  int which;
  float* target;  ///< what the job adds to
  // With dq: gradients of the rows and partial sums of shared weights; with dk: of the keys. Null: not wanted.
  float *d_table[gated_sums], *d_row_offset, *d_offset_table, *d_relative, *d_key_offset;
  float *distance_partial, *fire_partial;  ///< [query tiles, H, warps, N], [query tiles, H, warps, 3 R + 3]
};

template <class Products> struct BackwardShared {
  typename Products::Tile q, d_o, k, u;
  Common common;
  float key_sum[block_threads / warp_lanes][tile_size];
};

/// lse and delta of the thread's rows.
struct SavedRows {
  float lse[half_rows], delta[half_rows];
  __device__ SavedRows(const Arguments& a, const BackwardArguments& b, const QueryTile& t, const Lane& lane) {
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      lse[h] = b.lse[a.at(t.row(lane, h), t.head)];
      delta[h] = b.delta[a.at(t.row(lane, h), t.head)];
    }
  }
};

/// A query tile's sums in backward.
struct BackwardSums {
  Carry carry[gated_sums];
  float gate_grad[gated_sums][half_rows] = {};
  Path path[gated_sums];
  std::int64_t horizon[gated_sums] = {-1, -1};

  __device__ BackwardSums(const Arguments& a, const BackwardArguments& b, const QueryTile& t) {
#pragma unroll
    for (int w = 0; w < gated_sums; ++w)
      if (a.sum[w].gates != Gates::none) horizon[w] = b.horizon[w][a.at(t.number, t.head)];
  }
  /// A bit per sum for block_or: some row has a gate.
  __device__ unsigned find(const Arguments& a, const QueryTile& t, const Meeting& m, const Lane& lane) {
    unsigned bits = 0;
#pragma unroll
    for (int w = 0; w < gated_sums; ++w)
      if (a.sum[w].gates != Gates::none) bits |= find_path(path[w], a, a.sum[w], m, t, lane) << w;
    return bits;
  }
  /// Whether the tile is not beyond the farthest one whose gates were summed.
  __device__ bool live(int w, const Meeting& m) const { return horizon[w] >= 0 && m.first >= horizon[w]; }
  __device__ void choose(const Arguments& a, const Meeting& m, unsigned votes) {
#pragma unroll
    for (int w = 0; w < gated_sums; ++w)
      if (a.sum[w].gates != Gates::none) choose_path(path[w], a, a.sum[w], m, (votes >> w & 1) != 0 && live(w, m));
  }
};

/// scores → logits, with what the adjoints of gated sums want.
template <class Products, Walk walk>
__device__ inline void add_terms_again(Fragment& logit, Gated (&gated)[gated_sums], BackwardSums& sums,
                                       BackwardShared<Products>& shared, const Arguments& a, const QueryTile& t,
                                       const Meeting& m, const Lane& lane) {
#pragma unroll
  for (int w = 0; w < gated_sums; ++w) {
    if (a.sum[w].gates == Gates::none) continue;
    const bool first = w == 0 || a.sum[0].gates == Gates::none;
    add_gated<Products, Terms::all, walk>(logit, gated[w], sums.carry[w], first, false, shared.common, shared.q,
                                          shared.k, a, a.sum[w], t, m, sums.path[w], lane);
  }
  if (a.terms.any) add_order_free(logit, shared.common.work, a, t, m, lane);
}

/// logit → A.
__device__ inline void find_weights(Fragment& logit, const SavedRows& saved, const Meeting& m, const Lane& lane) {
  apply_mask(logit, m, lane);
  for_each_element(lane, [&](int n, int i, int h, int) {
    logit.at[n][i] = ptx::exp2_approx((logit.at[n][i] - saved.lse[h]) * log2_e);
  });
}

/// dP → dlogit.
__device__ inline void find_d_logit(Fragment& d, const Fragment& weight, const SavedRows& saved, const Arguments& a,
                                    const QueryTile& t, const Meeting& m, const Lane& lane) {
  const DropoutRows dropout(a, t, lane);
  for_each_element(lane, [&](int n, int i, int h, int column) {
    const float kept = a.dropout.on ? dropout.kept(a.dropout, m, h, column) : 1.0f;
    d.at[n][i] = weight.at[n][i] * (kept * d.at[n][i] - saved.delta[h]);
  });
}

/// dP = dO Uᵀ. d_o and u hold the columns of v; those of z take their place then. Begins where they have arrived, may end with them
/// gone.
template <class Products>
__device__ inline void value_scores(Fragment& d, BackwardShared<Products>& shared, const Arguments& a,
                                    const BackwardArguments& b, const QueryTile& t, const Meeting& m,
                                    const Lane& lane) {
  using T = typename Products::Element;
  clear(d.at);
  Products::scores(d, shared.d_o, shared.u, lane);
  if (a.z == nullptr) return;
  __syncthreads();
  Products::load(shared.d_o, rows_of<T>(b.d_o, t.begin, t.rows, a.heads, t.head, a.columns(), a.depth, a.depth));
  Products::load_wide(shared.u, rows_of<float>(a.z, m.begin, m.keys, a.groups, t.group, a.depth, 0, a.depth));
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();
  Products::scores(d, shared.d_o, shared.u, lane);
}

/// One gated sum: X goes on, and d_u. Returns whether there is one (gates are summed in the tile).
__device__ inline bool gated_backward(Fragment& d_u, float (&gate_grad)[half_rows], const Fragment& d_logit,
                                      const Gated& gated, const Carry& carry, const Path& path, const Arguments& a,
                                      const GatedArguments& g, const QueryTile& t, const Lane& lane) {
  const TableRows table(a, g, t, lane);
  if (path.summed) {
    positions_backward(d_u, gate_grad, d_logit, gated.gate, gated.place, path.has, g.floor, table.at, lane);
    return true;
  }
#pragma unroll
  for (int h = 0; h < half_rows; ++h) gate_grad[h] += row_sum(d_logit, h) * Place(carry.value[h]).slope(table.at[h]);
  return false;
}

/// The matrix that the job multiplies with, from dlogit: dlogit itself and the du of gates that q and k make, or one sum's du.
/// Returns whether there is one. X of all sums goes on.
__device__ inline bool find_d_scores(Fragment& d_score, const Fragment& d_logit, BackwardSums& sums,
                                     const Gated (&gated)[gated_sums], const Arguments& a, const BackwardArguments& b,
                                     const QueryTile& t, const Lane& lane) {
  bool any = b.job != Job::gate;
  if (any) d_score = d_logit;
#pragma unroll
  for (int w = 0; w < gated_sums; ++w) {
    const GatedArguments& g = a.sum[w];
    if (g.gates == Gates::none) continue;
    Fragment d_u;
    if (!gated_backward(d_u, sums.gate_grad[w], d_logit, gated[w], sums.carry[w], sums.path[w], a, g, t, lane))
      continue;
    if (b.job == Job::gate && b.which == w) {
      d_score = d_u;
      any = true;
    } else if (b.job != Job::gate && !g.separate) {
      for_each_element(lane, [&](int n, int i, int, int) { d_score.at[n][i] += d_u.at[n][i]; });
    }
  }
  return any;
}

}  // namespace capstan::kernels::cuda::attention
