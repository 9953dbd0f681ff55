#pragma once
// From scores s q·k of a tile to its logits, in forward and again in backward: gates, carries, biases, masks.
//
// Gates with scores of their own are computed in f32 whatever the policy: gate_q and gate_k may be wider than q, and a gate's
// relative error matters where thousands of small ones are summed.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_products.cuh"
#include "kernels/terms/gated_sum.cuh"
#include "kernels/terms/order_free.cuh"

namespace capstan::kernels::cuda::attention {

/// Counters of one block, and of all.
struct Counts {
  double gate_sum;
  std::int64_t gates, tiles, saturated_tiles;
  __device__ void operator+=(const Counts& x) {
    gate_sum += x.gate_sum;
    gates += x.gates;
    tiles += x.tiles;
    saturated_tiles += x.saturated_tiles;
  }
};

/// What a kernel is made for beside s q·k: `gates` are gated sums of q's and k's own scores, one of them (CoPE); `all` is everything. A
/// kernel that has more in it than a call wants needs more registers.
enum class Terms : std::uint8_t { none, gates, all };

inline Terms terms_of(const Arguments& a) {
  if (!a.gated && !a.terms.any && !a.dropout.on) return Terms::none;
  const bool one = a.sum[1].gates == Gates::none && !a.sum[0].separate;
  return one && !a.terms.any && !a.dropout.on ? Terms::gates : Terms::all;
}
/// Gated sums that a kernel with gates knows.
template <Terms terms> constexpr int sums_of = terms == Terms::all ? gated_sums : 1;

/// What a block holds beside its tiles.
struct Common {
  Work work;
  Votes votes;
  Counts counts[block_threads / warp_lanes];  ///< of each warp, written by its lane 0
};

// ---- gates with scores of their own ---------------------------------------------------------------------------------

/// Row of gate_k that belongs to a key of the chunk.
__device__ inline std::int64_t gate_row(const GatedArguments& g, std::int64_t key) {
  return g.gates == Gates::block_ends ? key / g.block : key;  // chunks begin with a block
}
template <class T> __device__ inline float gate_element(const void* matrix, bool wide, std::int64_t at) {
  return wide ? static_cast<const float*>(matrix)[at] : value_of(static_cast<const T*>(matrix)[at]);
}

/// Columns [from, from + 32) of the query tile's rows of gate_q into `chunk`, in f32.
template <class T, int Stride>
__device__ inline void load_gate_queries(float (*chunk)[Stride], const Arguments& a, const GatedArguments& g,
                                         const QueryTile& t, int from) {
#pragma unroll 2  // more would take registers from all else
  for (int at = static_cast<int>(threadIdx.x); at < tile_size * chunk_columns; at += block_threads) {
    const int row = at / chunk_columns, column = at % chunk_columns;
    const bool valid = row < t.rows && from + column < a.depth;
    chunk[row][column] =
        valid ? gate_element<T>(g.gate_q, g.q_wide, a.at(t.begin + row, t.head) * a.depth + from + column) : 0.0f;
  }
}

/// The same of the key tile's rows of gate_k; zeros at keys that have no gate.
template <class T, int Stride>
__device__ inline void load_gate_keys(float (*chunk)[Stride], const Arguments& a, const GatedArguments& g,
                                      const Meeting& m, std::int64_t group, int from) {
  const std::uint64_t gates = g.gates == Gates::block_ends ? block_ends(g, m) : low_bits(m.keys);
#pragma unroll 2  // more would take registers from all else
  for (int at = static_cast<int>(threadIdx.x); at < tile_size * chunk_columns; at += block_threads) {
    const int key = at / chunk_columns, column = at % chunk_columns;
    const bool valid = (gates >> key & 1) != 0 && from + column < a.depth;
    if (!valid) {
      chunk[key][column] = 0;
      continue;
    }
    const std::int64_t row = gate_row(g, m.begin + key) * a.groups + group;
    chunk[key][column] = gate_element<T>(g.gate_k, g.k_wide, row * a.depth + from + column);
  }
}

/// u = s gate_q·gate_k of all keys. Begins and ends with a barrier.
template <class T>
__device__ inline void gate_scores(Fragment& u, Work& work, const Arguments& a, const GatedArguments& g,
                                   const QueryTile& t, const Meeting& m, const Lane& lane) {
  clear(u.at);
  for (int from = 0; from < a.depth; from += chunk_columns) {
    __syncthreads();
    load_gate_queries<T>(work.f32, a, g, t, from);
    load_gate_keys<T>(work.chunk, a, g, m, t.group, from);
    __syncthreads();
    fma_scores<chunk_columns, true>(u, work.f32, work.chunk, lane);
  }
  __syncthreads();
  for_each_element(lane, [&](int n, int i, int, int) { u.at[n][i] = __fmul_rn(u.at[n][i], a.scale); });
}

// ---- one gated sum of a tile ----------------------------------------------------------------------------------------

/// How a tile goes: see attention_tile.h. `general`: with a gate per key.
struct Path {
  Words has;
  bool summed = false, general = false, flat = true;
};

/// Of a present sum: where gates are. A bit for block_or: some row has one.
__device__ inline unsigned find_path(Path& path, const Arguments& a, const GatedArguments& g, const Meeting& m,
                                     const QueryTile& t, const Lane& lane) {
  find_gates(path.has, a, g, m, t, lane);
  return (path.has[0] | path.has[1]) != 0 ? 1 : 0;
}
__device__ inline void choose_path(Path& path, const Arguments& a, const GatedArguments& g, const Meeting& m,
                                   bool summed) {
  path.summed = summed;
  path.general = summed || !a.flat_tiles;
  path.flat = !summed || in_one_block(g, m);
}

/// The thread's rows of a row table.
struct TableRows {
  const float* at[half_rows];
  __device__ TableRows(const Arguments& a, const GatedArguments& g, const QueryTile& t, const Lane& lane) {
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      at[h] = g.table == nullptr ? nullptr : g.table + a.at(t.row(lane, h), t.head) * (g.last + 1);
  }
};

/// A row's way through the tiles.
enum class Walk : std::uint8_t { forward, backward, given };

/// A sum's carries of the thread's rows. `value`: min(carry, P) on entry of the tile.
struct Carry {
  std::int64_t sum[half_rows] = {};
  float value[half_rows] = {};

  __device__ void find_value(const GatedArguments& g) {
#pragma unroll
    for (int h = 0; h < half_rows; ++h) value[h] = carry_value(sum[h], g.last);
  }
};

/// The warp's gates: threads' sums in the order of a butterfly.
__device__ inline void count_gates(Counts& of_warp, const Fragment& gate, const Words& has, const Lane& lane) {
  float of_thread = 0;
  for_each_element(lane, [&](int n, int i, int, int) { of_thread += gate.at[n][i]; });
  double sum = static_cast<double>(of_thread);
  int gates = lane.q == 0 ? __popcll(has[0]) + __popcll(has[1]) : 0;
  for (int step = 1; step < warp_lanes; step *= 2) {
    sum += __shfl_xor_sync(all_lanes, sum, step);
    gates += __shfl_xor_sync(all_lanes, gates, step);
  }
  if (lane.lane != 0) return;
  of_warp.gate_sum += sum;
  of_warp.gates += gates;
}

/// What backward wants again.
struct Gated {
  Fragment gate, place;
};

/// s q·k of the tiles in shared memory.
template <class Products>
__device__ inline void scaled_scores(Fragment& s, const typename Products::Tile& q, const typename Products::Tile& k,
                                     float scale, const Lane& lane) {
  clear(s.at);
  Products::scores(s, q, k, lane);
  for_each_element(lane, [&](int n, int i, int, int) { s.at[n][i] = __fmul_rn(s.at[n][i], scale); });
}

/// Gate logits → gates. Gates of q and k take the scores: of the first sum `logit`, which holds nothing else yet; a second sum has
/// them computed again, which spares registers where there is none.
template <class Products, Terms terms>
__device__ inline void find_gated(Fragment& gate, const Fragment& logit, bool first, Common& common,
                                  const typename Products::Tile& q, const typename Products::Tile& k,
                                  const Arguments& a, const GatedArguments& g, const QueryTile& t, const Meeting& m,
                                  const Path& path, const Lane& lane) {
  if (terms == Terms::all && g.separate) gate_scores<typename Products::Element>(gate, common.work, a, g, t, m, lane);
  else if (terms == Terms::gates || first) gate = logit;
  else scaled_scores<Products>(gate, q, k, a.scale, lane);
  find_gate_values(gate, gate, path.has, g.floor, lane);
}

/// Logits of one gated sum: logit += its bias. `first`: logit are scores s q·k. The carry goes on by the tile's gates, exactly: on
/// entry of the tile it is what comes in (forward), or that less what the tile adds (backward), or carry.value (given).
template <class Products, Terms terms, Walk walk>
__device__ inline void add_gated(Fragment& logit, Gated& gated, Carry& carry, bool first, bool counted, Common& common,
                                 const typename Products::Tile& q, const typename Products::Tile& k, const Arguments& a,
                                 const GatedArguments& g, const QueryTile& t, const Meeting& m, const Path& path,
                                 const Lane& lane) {
  const TableRows table(a, g, t, lane);
  if (!path.general) {
    if (walk != Walk::given) carry.find_value(g);
    return add_row_bias(logit, carry.value, table.at, lane);
  }
  find_gated<Products, terms>(gated.gate, logit, first, common, q, k, a, g, t, m, path, lane);
  if (counted) count_gates(common.counts[lane.warp], gated.gate, path.has, lane);
  std::int64_t added[half_rows] = {};
  if (walk != Walk::given && path.summed)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) added[h] = fixed_sum(gated.gate, h);
  if (walk == Walk::backward)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) carry.sum[h] -= added[h];
  if (walk != Walk::given) carry.find_value(g);
  gated.place = gated.gate;
  find_places(gated.place, carry.value, static_cast<float>(g.last), lane);
  add_bias(logit, gated.place, table.at);
  if (walk == Walk::forward)
#pragma unroll
    for (int h = 0; h < half_rows; ++h) carry.sum[h] += added[h];
}

// ---- the rest -------------------------------------------------------------------------------------------------------

/// Logits of keys that a row does not see become -inf.
__device__ inline void apply_mask(Fragment& logit, const Meeting& m, const Lane& lane) {
  if (m.all) return;
  for_each_element(lane, [&](int n, int i, int h, int column) {
    if (!m.sees(h, column)) logit.at[n][i] = -INFINITY;
  });
}

}  // namespace capstan::kernels::cuda::attention
