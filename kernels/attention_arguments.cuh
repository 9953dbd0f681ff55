#pragma once
// What the attention kernels are given: the call's views as pointers and extents, by value. Addresses are of the device; what
// lies there (indices, documents) is read by the kernels only.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention_tile.h"
#include "kernels/check.h"
#include "kernels/dropout.h"
#include "kernels/values.cuh"

namespace capstan::kernels::cuda::attention {

/// A gated sum (kernels/terms/gated_sum.h).
struct GatedArguments {
  Gates gates = Gates::none;
  bool separate = false;                ///< gates have scores of their own, else those of q and k
  bool q_wide = false, k_wide = false;  ///< gate_q, gate_k in f32 whatever q's type
  float floor = 0;
  std::int64_t block = 0, window = 0;
  std::int64_t last = 0;         ///< P
  const float* table = nullptr;  ///< [T, H, P + 1]
  const void* gate_q = nullptr;  ///< [T, H, D]; q itself if it has no other
  const void* gate_k = nullptr;  ///< [T or blocks, G, D]; likewise
};

/// Terms without order; null: absent.
struct OrderFreeArguments {
  const std::int64_t *row_offset = nullptr, *key_offset = nullptr;  ///< [T, H] each
  const float *offset_table = nullptr, *relative = nullptr;         ///< [T, H, last + 1]
  const float *slope = nullptr, *distance_table = nullptr;          ///< [H], [H, last + 1]
  std::int64_t offset_last = 0, relative_last = 0, distance_last = 0;
  const float *fire_in = nullptr, *fire_in_bias = nullptr;                           ///< [R]
  const float *fire_out = nullptr, *fire_out_bias = nullptr, *fire_scale = nullptr;  ///< [H, R], [H], [2]
  int fire_width = 0;
  bool any = false, by_distance = false;  ///< any term at all; one that wants positions
};

struct DropoutArguments {
  bool on = false;
  std::uint32_t threshold = 0;
  float factor = 1;  ///< 1 / (1 - rate)
  std::uint64_t seed = 0;
  std::int64_t first_head = 0;
};

struct Arguments {
  std::int64_t rows = 0, keys = 0;  ///< T of the queries, T of the key chunk
  std::int64_t heads = 0, groups = 0, depth = 0, tile = 0;
  float scale = 0;
  const void *q = nullptr, *k = nullptr, *v = nullptr;  ///< [T, H, D], [T, G, D] twice
  const float* z = nullptr;                             ///< [T, G, D] or null
  const std::int64_t *query_index = nullptr, *query_position = nullptr, *query_document = nullptr;
  const std::int64_t *key_index = nullptr, *key_position = nullptr, *key_document = nullptr;
  GatedArguments sum[gated_sums];
  OrderFreeArguments terms;
  DropoutArguments dropout;
  bool flat_tiles = true, gated = false;

  /// Columns of o and d_o.
  __host__ __device__ std::int64_t columns() const { return z != nullptr ? 2 * depth : depth; }
  __host__ __device__ std::int64_t query_tiles() const { return (rows + tile - 1) / tile; }
  __host__ __device__ std::int64_t key_tiles() const { return (keys + tile - 1) / tile; }
  __host__ __device__ std::int64_t group_of(std::int64_t head) const { return head / (heads / groups); }
  /// Entry [row, head] of a tensor [T, H].
  __host__ __device__ std::int64_t at(std::int64_t row, std::int64_t head) const { return row * heads + head; }
};

/// The view's elements, or null.
template <class T> T* pointer_or_null(const View& view) { return view ? device_data<T>(view) : nullptr; }

inline GatedArguments gated_arguments(int which, const QueryChunk& queries, const KeyChunk& keys,
                                      const GateRule& rule) {
  GatedArguments g;
  if (rule.gates == Gates::none) return g;
  const View &gate_q = queries.terms.gate_q[which], &gate_k = keys.terms.gate_k[which];
  const View &of_q = gate_q ? gate_q : queries.q, &of_k = gate_k ? gate_k : keys.k;
  g.gates = rule.gates;
  g.separate = gate_q || gate_k;
  g.q_wide = of_q.type() == DType::f32;
  g.k_wide = of_k.type() == DType::f32;
  g.floor = static_cast<float>(rule.floor);
  g.block = rule.block;
  g.window = rule.window;
  g.last = queries.terms.table[which].dim(2) - 1;
  g.table = device_data<float>(queries.terms.table[which]);
  g.gate_q = of_q.data();
  g.gate_k = of_k.data();
  return g;
}

inline OrderFreeArguments order_free_arguments(const QueryChunk& queries, const KeyChunk& keys,
                                               const SharedTerms& shared) {
  OrderFreeArguments t;
  const RowTerms& rows = queries.terms;
  t.row_offset = pointer_or_null<std::int64_t>(rows.offset);
  t.key_offset = pointer_or_null<std::int64_t>(keys.terms.offset);
  t.offset_table = pointer_or_null<float>(rows.offset_table);
  t.relative = pointer_or_null<float>(rows.relative);
  t.slope = pointer_or_null<float>(shared.slope);
  t.distance_table = pointer_or_null<float>(shared.distance_table);
  if (rows.offset_table) t.offset_last = rows.offset_table.dim(2) - 1;
  if (rows.relative) t.relative_last = rows.relative.dim(2) - 1;
  if (shared.distance_table) t.distance_last = shared.distance_table.dim(1) - 1;
  if (shared.fire.in) {
    t.fire_in = device_data<float>(shared.fire.in);
    t.fire_in_bias = device_data<float>(shared.fire.in_bias);
    t.fire_out = device_data<float>(shared.fire.out);
    t.fire_out_bias = device_data<float>(shared.fire.out_bias);
    t.fire_scale = device_data<float>(shared.fire.scale);
    t.fire_width = static_cast<int>(shared.fire.in.dim(0));
  }
  t.by_distance = t.relative || t.slope || t.distance_table || t.fire_width > 0;
  t.any = t.row_offset || t.by_distance;
  return t;
}

inline Arguments arguments_of(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings) {
  Arguments a;
  a.rows = queries.q.dim(0);
  a.keys = keys.k.dim(0);
  a.heads = queries.q.dim(1);
  a.groups = keys.k.dim(1);
  a.depth = queries.q.dim(2);
  a.tile = settings.tile;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.depth)));
  a.q = queries.q.data();
  a.k = keys.k.data();
  a.v = keys.v.data();
  a.z = pointer_or_null<float>(keys.z);
  a.query_index = device_data<std::int64_t>(queries.index);
  a.query_position = pointer_or_null<std::int64_t>(queries.position);
  a.query_document = device_data<std::int64_t>(queries.document);
  a.key_index = device_data<std::int64_t>(keys.index);
  a.key_position = pointer_or_null<std::int64_t>(keys.position);
  a.key_document = device_data<std::int64_t>(keys.document);
  for (int which = 0; which < gated_sums; ++which)
    a.sum[which] = gated_arguments(which, queries, keys, settings.gates[which]);
  a.terms = order_free_arguments(queries, keys, settings.shared);
  const WeightDropout& dropout = settings.dropout;
  if (dropout.rate > 0)
    a.dropout = {true, dropout_threshold(dropout.rate), static_cast<float>(1 / (1 - dropout.rate)), dropout.seed,
                 dropout.first_head};
  a.flat_tiles = settings.flat_tiles;
  a.gated = a.sum[0].gates != Gates::none || a.sum[1].gates != Gates::none;
  return a;
}

}  // namespace capstan::kernels::cuda::attention
