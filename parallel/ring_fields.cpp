#include "parallel/ring_fields.h"

namespace capstan::parallel {

using kernels::gated_sums;

Fields key_fields(const RingInputs& in, const View& pooled, const View& key_offset) {
  const View gate0 = in.gates_on_values ? View() : in.terms.gate_k[0];
  return {{in.rows.index, Per::token, false},
          {in.rows.position, Per::token, false},
          {in.rows.document, Per::token, false},
          {key_offset},
          {in.k},
          {in.v},
          {z_travels(in) ? in.z : View()},
          {gate0},
          {pooled, Per::block}};
}

Fields key_gradient_fields(const View& dk, const View& dv, const View& dz, const View& d_gate0, const View& d_pooled,
                           const View& d_offset) {
  return {{dk}, {dv}, {dz}, {d_gate0}, {d_pooled, Per::block}, {d_offset}};
}

Fields row_fields(const RingInputs& in, const View& row_offset) {
  return {{in.rows.index, Per::token, false},
          {in.rows.position, Per::token, false},
          {in.rows.document, Per::token, false},
          {in.q},
          {in.terms.table[0]},
          {in.terms.table[1]},
          {in.terms.gate_q[0]},
          {in.terms.gate_q[1]},
          {row_offset},
          {in.terms.offset_table},
          {in.terms.relative}};
}

Fields softmax_fields(const View& o, const View& m, const View& l, const PerSum& carry, const PerSum& horizon) {
  return {{o}, {m}, {l}, {carry[0]}, {carry[1]}, {horizon[0], Per::tile}, {horizon[1], Per::tile}};
}

Fields row_gradient_fields(const View& dq, const RingTerms& d_terms, const View& d_row_offset, const PerSum& carry,
                           const PerSum& gate_grad) {
  return {{dq},           {d_terms.table[0]},     {d_terms.table[1]}, {d_terms.gate_q[0]}, {d_terms.gate_q[1]},
          {d_row_offset}, {d_terms.offset_table}, {d_terms.relative}, {carry[0]},          {carry[1]},
          {gate_grad[0]}, {gate_grad[1]}};
}

Fields joined(Fields first, const Fields& others) {
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

kernels::QueryChunk query_chunk(const Parcel& rows, std::int64_t b, std::int64_t begin, std::int64_t end) {
  const auto part = [&](int field) { return rows.at(field, b, begin, end); };
  return {part(row_q),
          part(row_index),
          part(row_position),
          part(row_document),
          {{part(row_table), part(row_table + 1)},
           {part(row_gate_q), part(row_gate_q + 1)},
           part(row_offset),
           part(row_offset_table),
           part(row_relative)}};
}

kernels::KeyChunk key_chunk(const Parcel& keys, std::int64_t b, const View& made_z, bool gates_on_values) {
  const auto part = [&](int field) { return keys.at(field, b); };
  const View v = part(key_v);
  return {part(key_k),
          v,
          made_z ? made_z : part(key_z),
          part(key_index),
          part(key_position),
          part(key_document),
          {{gates_on_values ? v : part(key_gate0), part(key_gate1)}, part(key_offset)}};
}

namespace {

/// A pair of fields: tokens or tiles of the piece.
std::array<View, gated_sums> pair(const Parcel& parcel, int field, std::int64_t b, std::int64_t begin,
                                  std::int64_t end) {
  return {parcel.at(field, b, begin, end), parcel.at(field + 1, b, begin, end)};
}

}  // namespace

kernels::AttentionState attention_state(const Parcel& state, const Piece& p) {
  const auto part = [&](int field) { return state.at(field, p.b, p.begin, p.end); };
  return {part(state_o), part(state_m), part(state_l), pair(state, state_carry, p.b, p.begin, p.end),
          pair(state, state_horizon, p.b, p.tile, p.tile_end)};
}

kernels::AttentionSaved attention_saved(const Parcel& rows, const Piece& p) {
  return {rows.at(row_lse, p.b, p.begin, p.end), rows.at(row_delta, p.b, p.begin, p.end),
          pair(rows, row_carry, p.b, p.begin, p.end), pair(rows, row_horizon, p.b, p.tile, p.tile_end)};
}

kernels::AttentionBackwardState backward_state(const Parcel& state, const Piece& p) {
  return {pair(state, back_carry, p.b, p.begin, p.end), pair(state, back_gate_grad, p.b, p.begin, p.end)};
}

kernels::RowTerms row_gradients(const Parcel& state, const Piece& p) {
  const auto part = [&](int field) { return state.at(field, p.b, p.begin, p.end); };
  return {pair(state, grad_table, p.b, p.begin, p.end), pair(state, grad_gate_q, p.b, p.begin, p.end),
          part(grad_row_offset), part(grad_offset_table), part(grad_relative)};
}

kernels::SharedTerms shared_of_group(const kernels::SharedTerms& shared, int group, int groups) {
  const auto share = [&](const View& x) {
    if (!x) return View();
    const std::int64_t heads = x.dim(0) / groups;
    return x.rows(group * heads, (group + 1) * heads);
  };
  return {
      share(shared.slope),
      share(shared.distance_table),
      {shared.fire.in, shared.fire.in_bias, share(shared.fire.out), share(shared.fire.out_bias), shared.fire.scale}};
}

AttentionSettings settings_of_group(const AttentionSettings& settings, std::int64_t heads, int group, int groups) {
  AttentionSettings own = settings;
  own.shared = shared_of_group(settings.shared, group, groups);
  own.dropout.first_head = settings.dropout.first_head + group * (heads / groups);
  return own;
}

}  // namespace capstan::parallel
