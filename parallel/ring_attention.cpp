#include "parallel/ring_attention.h"

#include <algorithm>

#include "kernels/block_pool.h"
#include "kernels/converted.h"
#include "kernels/memory.h"
#include "parallel/ring_fields.h"
#include "parallel/ring_player.h"

namespace capstan::parallel {

using kernels::DType;
using kernels::Fill;
using kernels::gated_sums;

Tensor pool_keys(const Ring& ring, const RingInputs& in, const AttentionSettings& settings) {
  const View& tokens = in.terms.gate_k[1];
  if (!tokens) return {};
  const std::int64_t block = block_of(settings), batch = tokens.dim(0), width = tokens.dim(2) * tokens.dim(3);
  Tensor pooled({batch, ring.layout.local_steps(ring.comm.rank(), block), tokens.dim(2), tokens.dim(3)}, tokens.type(),
                tokens.device());
  for (std::int64_t b = 0; b < batch; ++b)
    for (int chunk : ring.layout.owned(ring.comm.rank())) {
      const Chunk& c = ring.layout.chunks()[chunk];
      const std::int64_t at = ring.layout.local_offset(chunk), to = ring.layout.local_offset(chunk, block);
      if (c.tokens() == 0) continue;
      kernels::block_mean(pooled.view()[b].rows(to, to + c.steps(block)).reshape({c.steps(block), width}),
                          tokens[b].rows(at, at + c.tokens()).reshape({c.tokens(), width}),
                          in.rows.document[b].rows(at, at + c.tokens()), block);
    }
  return pooled;
}

namespace {

/// d_tokens [B, T, G, D] overwrites.
void pool_keys_backward(const Ring& ring, const RingInputs& in, const View& d_tokens, const View& d_pooled,
                        std::int64_t block) {
  const std::int64_t width = d_tokens.dim(2) * d_tokens.dim(3);
  d_tokens.fill_zero();
  for (std::int64_t b = 0; b < d_tokens.dim(0); ++b)
    for (int chunk : ring.layout.owned(ring.comm.rank())) {
      const Chunk& c = ring.layout.chunks()[chunk];
      const std::int64_t at = ring.layout.local_offset(chunk), from = ring.layout.local_offset(chunk, block);
      if (c.tokens() == 0) continue;
      kernels::block_mean_backward(d_tokens[b].rows(at, at + c.tokens()).reshape({c.tokens(), width}),
                                   d_pooled[b].rows(from, from + c.steps(block)).reshape({c.steps(block), width}),
                                   in.rows.document[b].rows(at, at + c.tokens()), block);
    }
}

/// Calls body(piece) for the rows of a query chunk in each sequence.
template <class Body>
void for_each_sequence(const Ring& ring, const RingInputs& in, int chunk, std::int64_t tile, Body&& body) {
  const std::int64_t tokens = ring.layout.chunks()[chunk].tokens();
  for (std::int64_t b = 0; b < in.q.dim(0); ++b) body(Piece{b, 0, tokens, 0, (tokens + tile - 1) / tile});
}

/// What forward and backward have in common.
RingRoles common_roles(const Ring& ring, const RingInputs& in, const AttentionSettings& settings, const View& pooled,
                       const View& key_offset) {
  RingRoles roles;
  roles.keys = key_fields(in, pooled, key_offset);
  roles.row_layout = &ring.layout;
  roles.steps = {settings.tile, block_of(settings)};
  roles.make_z = in.make_z;
  roles.groups_of_z = in.k.dim(2) / ring.schedule.groups;
  roles.head_size = in.k.dim(3);
  return roles;
}

kernels::KeyChunk keys_of(const RingInputs& in, const KeysInHand& keys, std::int64_t b) {
  return key_chunk(keys.keys, b, keys.made_z.empty() ? View() : keys.made_z[std::size_t(b)], in.gates_on_values);
}

/// Settings of a piece of work.
AttentionSettings settings_of(const Ring& ring, const RingInputs& in, const AttentionSettings& settings, int group,
                              std::int64_t b) {
  AttentionSettings own = settings_of_group(settings, in.q.dim(2), group, ring.schedule.groups);
  if (own.dropout.rate > 0) own.dropout.seed = in.dropout_seeds.at(std::size_t(b));
  return own;
}

/// The last `local` tokens of an array [B, T, …] with B = 1, or all of it.
View new_rows(const Tensor& all, std::int64_t local) {
  if (!all || all.shape()[1] == local) return view_or_absent(all);
  CAPSTAN_CHECK(all.shape()[0] == 1, "a cache holds one sequence, not {}", all.shape()[0]);
  const View rows = all.view()[0].rows(all.shape()[1] - local, all.shape()[1]);
  return rows.reshape({1, local, rows.dim(1)});
}

/// All of a state's rows of sequence b as one piece.
Piece whole_of(const Parcel& state, int token_field, int tile_field, std::int64_t b) {
  const View tokens = state.at(token_field, b), tiles = state.at(tile_field, b);
  return {b, 0, tokens.dim(0), 0, tiles ? tiles.dim(0) : 0};
}

}  // namespace

namespace {

/// Rows laid out as row_layout against keys laid out as ring.layout; both have the same chunks.
RingSaved forward(const Ring& ring, const SequenceLayout& row_layout, const RingInputs& in, const RingInputs& keys_in,
                  const AttentionSettings& settings, AttentionStats* stats) {
  const std::int64_t batch = in.q.dim(0), local = in.q.dim(1), heads = in.q.dim(2), depth = in.q.dim(3);
  const int rank = ring.comm.rank();
  CAPSTAN_CHECK(local == row_layout.local_tokens(rank) && keys_in.k.dim(1) == ring.layout.local_tokens(rank),
                "{} local rows and {} keys, the layout says {} and {}", local, keys_in.k.dim(1),
                row_layout.local_tokens(rank), ring.layout.local_tokens(rank));
  const DType sums = kernels::wide(in.q.type());
  const kernels::Device device = in.q.device();
  const kernels::MemoryPurpose purpose("ring");
  RingSaved saved;
  Tensor o({batch, local, heads, in.z ? 2 * depth : depth}, sums, device, Fill::none);
  saved.lse = Tensor({batch, local, heads}, sums, device, Fill::none);
  const Tensor l({batch, local, heads}, sums, device, Fill::none);
  for (int sum = 0; sum < gated_sums; ++sum) {
    if (!has_sum(settings, sum)) continue;
    saved.carry[sum] = Tensor({batch, local, heads}, DType::i64, device);
    saved.horizon[sum] = Tensor({batch, row_layout.local_steps(rank, settings.tile), heads}, DType::i64, device);
  }
  if (in.terms.offset_source)
    saved.offsets = make_offsets(ring.comm, ring.layout, keys_in.rows, keys_in.terms.offset_source, in.offset);
  const Tensor pooled = pool_keys(ring, keys_in, settings);

  // The whole shard as one state: lse holds the running maximum until the end.
  const kernels::AttentionState all{o, saved.lse, l, views_or_absent(saved.carry), views_or_absent(saved.horizon)};
  attention_begin(all);
  RingRoles roles = common_roles(ring, keys_in, settings, view_or_absent(pooled), view_or_absent(saved.offsets.key));
  roles.row_layout = &row_layout;
  roles.rows = row_fields(in, new_rows(saved.offsets.row, local));
  roles.state = softmax_fields(o, saved.lse, l, views_or_absent(saved.carry), views_or_absent(saved.horizon));
  roles.begin = [&](const RowsInHand& rows) {
    for (std::int64_t b = 0; b < batch; ++b)
      attention_begin(attention_state(rows.state, whole_of(rows.state, state_o, state_horizon, b)));
  };
  roles.work = [&](const Work& w, const RowsInHand& rows, const KeysInHand& keys, const Parcel*) {
    for_each_sequence(ring, in, w.query_chunk, settings.tile, [&](const Piece& p) {
      attention_forward(attention_state(rows.state, p), query_chunk(rows.rows, p.b, p.begin, p.end),
                        keys_of(keys_in, keys, p.b), settings_of(ring, in, settings, w.group, p.b), stats);
    });
  };
  RingPlayer(ring, roles, ring.schedule.forward.at(std::size_t(rank))).play();
  attention_finish(all);
  saved.o = std::move(o);
  return saved;
}

}  // namespace

RingSaved ring_attention_forward(const Ring& ring, const RingInputs& in, const AttentionSettings& settings,
                                 AttentionStats* stats) {
  return forward(ring, ring.layout, in, in, settings, stats);
}

RingSaved ring_attention_prefill(const Ring& ring, int first_new_chunk, const RingInputs& rows, const RingInputs& keys,
                                 const AttentionSettings& settings, AttentionStats* stats) {
  std::vector<Chunk> chunks = ring.layout.chunks();
  for (int chunk = 0; chunk < first_new_chunk; ++chunk) chunks[chunk].owner = -1;  // nobody has rows there
  const SequenceLayout row_layout =
      SequenceLayout::of_chunks(std::move(chunks), ring.layout.ranks(), ring.layout.unit());
  return forward(ring, row_layout, rows, keys, settings, stats);
}

namespace {

/// Backward's arrays that are no results: what is carried, and gradients that go on to the source of a term.
struct BackwardArrays {
  Tensor delta;                                     // [B, T, H]
  std::array<Tensor, gated_sums> carry, gate_grad;  // [B, T, H]
  Tensor d_pooled;                                  // [B, blocks, G, D]
  Tensor d_row_offset, d_key_offset;                // [B, T, H]
};

BackwardArrays backward_arrays(const RingInputs& in, const RingSaved& saved, const View& d_o, const View& pooled) {
  BackwardArrays a;
  a.delta = zeros_like(saved.lse);
  kernels::attention_delta(a.delta, d_o, saved.o);
  for (int sum = 0; sum < gated_sums; ++sum) {
    if (!saved.carry[sum]) continue;
    a.carry[sum] = saved.carry[sum].clone();
    a.gate_grad[sum] = zeros_like(saved.lse);
  }
  if (pooled) a.d_pooled = zeros_like(pooled);
  if (in.terms.offset_source) {
    a.d_row_offset = zeros_like(saved.lse);
    a.d_key_offset = zeros_like(saved.lse);
  }
  return a;
}

void clear(const RingGradients& out) {
  for (const View& x : {out.dq, out.dk, out.dv, out.dz, out.terms.table[0], out.terms.table[1], out.terms.gate_q[0],
                        out.terms.gate_q[1], out.terms.gate_k[0], out.terms.gate_k[1], out.terms.offset_source,
                        out.terms.offset_table, out.terms.relative})
    if (x) x.fill_zero();
}

/// Gradients of one sequence's keys. Where gates are on the values, their gradient joins dv.
kernels::AttentionGradients gradients_of(const Parcel& rows, const Parcel& keys, const Piece& p, bool gates_on_values,
                                         const kernels::SharedTerms& shared) {
  const View dv = keys.at(grad_v, p.b);
  return {rows.at(grad_q, p.b, p.begin, p.end),
          row_gradients(rows, p),
          keys.at(grad_k, p.b),
          dv,
          keys.at(grad_z, p.b),
          {{gates_on_values ? dv : keys.at(grad_gate0, p.b), keys.at(grad_gate1, p.b)}, keys.at(grad_key_offset, p.b)},
          shared};
}

}  // namespace

/// The same walk far → near. A key chunk's gradients ride back the way the keys came as one sum; each rank computes its own
/// part first and then adds it to what arrives, so that no rank waits for the sum before it works.
void ring_attention_backward(const Ring& ring, const RingGradients& out, const RingInputs& in, const RingSaved& saved,
                             const View& d_o, const AttentionSettings& settings) {
  const kernels::MemoryPurpose purpose("ring");
  const Tensor pooled = pool_keys(ring, in, settings);
  // delta takes dO as the tiles do, rounded, so that the gradients of a row's logits sum to zero.
  const Tensor narrow = d_o.type() == in.q.type() ? Tensor() : kernels::converted(d_o, in.q.type()),
               rounded = narrow ? kernels::converted(narrow, d_o.type()) : Tensor();
  const BackwardArrays arrays = backward_arrays(in, saved, rounded ? rounded.view() : d_o, view_or_absent(pooled));
  clear(out);
  RingRoles roles = common_roles(ring, in, settings, view_or_absent(pooled), view_or_absent(saved.offsets.key));
  roles.rows = joined(row_fields(in, view_or_absent(saved.offsets.row)),
                      softmax_fields(narrow ? narrow.view() : d_o, saved.lse, arrays.delta,
                                     views_or_absent(saved.carry), views_or_absent(saved.horizon)));
  roles.state = row_gradient_fields(out.dq, out.terms, view_or_absent(arrays.d_row_offset),
                                    views_or_absent(arrays.carry), views_or_absent(arrays.gate_grad));
  roles.key_gradients = key_gradient_fields(out.dk, out.dv, z_travels(in) ? out.dz : View(),
                                            in.gates_on_values ? View() : out.terms.gate_k[0],
                                            view_or_absent(arrays.d_pooled), view_or_absent(arrays.d_key_offset));
  roles.begin = [&](const RowsInHand& rows) {
    for (int sum = 0; sum < gated_sums; ++sum)
      if (saved.carry[sum]) rows.state.all(back_carry + sum).copy_from(rows.rows.all(row_carry + sum));
  };
  roles.work = [&](const Work& w, const RowsInHand& rows, const KeysInHand& keys, const Parcel* gradients) {
    const kernels::SharedTerms shared = shared_of_group(out.shared, w.group, ring.schedule.groups);
    for_each_sequence(ring, in, w.query_chunk, settings.tile, [&](const Piece& p) {
      attention_backward(gradients_of(rows.state, *gradients, p, in.gates_on_values, shared),
                         backward_state(rows.state, p), query_chunk(rows.rows, p.b, p.begin, p.end),
                         keys_of(in, keys, p.b), rows.rows.at(row_d_o, p.b, p.begin, p.end),
                         attention_saved(rows.rows, p), settings_of(ring, in, settings, w.group, p.b));
    });
  };
  RingPlayer(ring, roles, ring.schedule.backward.at(std::size_t(ring.comm.rank()))).play();
  if (out.terms.gate_k[1]) pool_keys_backward(ring, in, out.terms.gate_k[1], arrays.d_pooled, block_of(settings));
  if (in.terms.offset_source)
    offsets_backward(ring.comm, ring.layout, in.rows, out.terms.offset_source, in.terms.offset_source,
                     arrays.d_row_offset, arrays.d_key_offset, in.offset);
}

}  // namespace capstan::parallel
