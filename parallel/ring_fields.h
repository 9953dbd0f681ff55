#pragma once
// The arrays of ring attention as parcels name them (parcel.h): which there are, in which order, and the kernels' structs
// made of a parcel's part.

#include "kernels/attention_tile.h"
#include "parallel/parcel.h"
#include "parallel/ring_attention.h"

namespace capstan::parallel {

/// Keys: what travels with K and V.
enum KeyField : int { key_index, key_position, key_document, key_offset, key_k, key_v, key_z, key_gate0, key_gate1 };
/// Gradients of keys, all of the compute type: one vector.
enum KeyGradient : int { grad_k, grad_v, grad_z, grad_gate0, grad_gate1, grad_key_offset };
/// Rows: what stays, or goes to where it is worked on. From row_d_o on only in backward.
enum RowField : int {
  row_index,
  row_position,
  row_document,
  row_q,
  row_table,  // two each, one per gated sum
  row_gate_q = row_table + 2,
  row_offset = row_gate_q + 2,
  row_offset_table,
  row_relative,
  row_d_o,
  row_lse,
  row_delta,
  row_carry,
  row_horizon = row_carry + 2
};
/// Forward's state of rows.
enum StateField : int { state_o, state_m, state_l, state_carry, state_horizon = state_carry + 2 };
/// Backward's state of rows: their gradients and what is carried.
enum RowGradient : int {
  grad_q,
  grad_table,
  grad_gate_q = grad_table + 2,
  grad_row_offset = grad_gate_q + 2,
  grad_offset_table,
  grad_relative,
  back_carry,
  back_gate_grad = back_carry + 2
};

/// True if z moves with the keys, not made on arrival.
inline bool z_travels(const RingInputs& in) { return in.z && !in.make_z; }

inline View view_or_absent(const Tensor& tensor) { return tensor ? tensor.view() : View(); }
inline std::array<View, kernels::gated_sums> views_or_absent(const std::array<Tensor, kernels::gated_sums>& tensors) {
  return {view_or_absent(tensors[0]), view_or_absent(tensors[1])};
}

inline bool has_sum(const AttentionSettings& settings, int sum) {
  return settings.gates[std::size_t(sum)].gates != kernels::Gates::none;
}

/// The block of gated sum 1, whose gate keys are pooled; 1 where there is none.
inline std::int64_t block_of(const AttentionSettings& settings) {
  return settings.gates[1].gates == kernels::Gates::block_ends ? settings.gates[1].block : 1;
}

/// Sum 1's gate keys as they travel: one per block, chunk by chunk [B, blocks, G, D]. Empty without such.
Tensor pool_keys(const Ring& ring, const RingInputs& in, const AttentionSettings& settings);
/// pooled: sum 1's gate keys per block [B, blocks, G, D], or absent.
Fields key_fields(const RingInputs& in, const View& pooled, const View& key_offset);
/// dk … in the shapes of the keys. d_pooled, d_offset: absent where the keys' are.
Fields key_gradient_fields(const View& dk, const View& dv, const View& dz, const View& d_gate0, const View& d_pooled,
                           const View& d_offset);
Fields row_fields(const RingInputs& in, const View& row_offset);

using PerSum = std::array<View, kernels::gated_sums>;
/// Forward's state of rows: o [B, T, H, E], m and l [B, T, H]. Backward's rows end with fields of the same shapes: d_o, lse
/// and delta.
Fields softmax_fields(const View& o, const View& m, const View& l, const PerSum& carry, const PerSum& horizon);
/// Backward's state of rows. d_terms: as the inputs' terms; of these only what belongs to rows.
Fields row_gradient_fields(const View& dq, const RingTerms& d_terms, const View& d_row_offset, const PerSum& carry,
                           const PerSum& gate_grad);
/// The first fields, then the others.
Fields joined(Fields first, const Fields& others);

kernels::QueryChunk query_chunk(const Parcel& rows, std::int64_t b, std::int64_t begin, std::int64_t end);
/// z: made on arrival, or absent (then the parcel's).
kernels::KeyChunk key_chunk(const Parcel& keys, std::int64_t b, const View& made_z, bool gates_on_values);

/// Tokens [begin, end) of a chunk, which begin with its tile number `tile`.
struct Piece {
  std::int64_t b, begin, end, tile, tile_end;
};
kernels::AttentionState attention_state(const Parcel& state, const Piece& piece);
kernels::AttentionSaved attention_saved(const Parcel& rows, const Piece& piece);
kernels::AttentionBackwardState backward_state(const Parcel& state, const Piece& piece);
kernels::RowTerms row_gradients(const Parcel& state, const Piece& piece);

/// Settings for head group `group` of `groups`: its share of what is per head.
AttentionSettings settings_of_group(const AttentionSettings& settings, std::int64_t heads, int group, int groups);
kernels::SharedTerms shared_of_group(const kernels::SharedTerms& shared, int group, int groups);

}  // namespace capstan::parallel
