#pragma once
// Exact attention over a sequence that is sharded over a ring of ranks. Plays a ring_schedule (ring_player.h) with double
// buffering: the next exchange is posted before the block in hand is computed on.

#include <functional>

#include "kernels/attention_tile.h"
#include "parallel/communicator.h"
#include "parallel/offsets.h"
#include "parallel/ring_schedule.h"
#include "parallel/sequence_layout.h"
#include "parallel/token_rows.h"

namespace capstan::parallel {

using kernels::AttentionSettings;
using kernels::AttentionStats;
using kernels::Tensor;

/// What a ring of ranks agrees on for one sequence length.
struct Ring {
  Communicator& comm;
  SequenceLayout layout;
  RingSchedule schedule;
};

/// What an encoding adds to the scores, for the rank's local tokens (kernels/score_terms.h). All may be absent.
struct RingTerms {
  std::array<View, kernels::gated_sums> table;   ///< [B, T, H, P + 1]
  std::array<View, kernels::gated_sums> gate_q;  ///< [B, T, H, D]; absent: q
  std::array<View, kernels::gated_sums>
      gate_k;          ///< [B, T, G, D] per token; pooled over blocks here where gates are per block; absent: k
  View offset_source;  ///< [B, T, H] (parallel/offsets.h)
  View offset_table;   ///< [B, T, H, P + 1]
  View relative;       ///< [B, T, H, R + 1]
};

/// Local shard of one layer's attention. T = layout.local_tokens(rank). q, k, v (and gate queries and keys, if they like)
/// have the type of the model's values, all else and every gradient has what is wide beside it (kernels::wide).
struct RingInputs {
  View q;     ///< [B, T, H, D]
  View k, v;  ///< [B, T, G, D]
  View z;     ///< [B, T, G, D] TAPE's states, or absent
  TokenRows rows;
  RingTerms terms = {};
  bool gates_on_values = false;  ///< gated sum 0 takes v as its gate keys; nothing more travels
  OffsetSettings offset = {};
  std::vector<std::uint64_t> dropout_seeds = {};  ///< [B], of the weights' dropout; where settings ask for it
  /// Set where z follows from the positions alone (TAPE's first layer): z does not travel but is made where it is needed,
  /// z [n, G', D] overwrites from position [n] for any number of heads G'; and it has no gradient.
  std::function<void(const View& z, const View& position)> make_z = {};
};

/// Result and what backward needs. Query tiles are counted per chunk, chunks in local order.
struct RingSaved {
  Tensor o;    ///< [B, T, H, E], wide: backward's delta needs what rounding would take
  Tensor lse;  ///< [B, T, H]
  std::array<Tensor, kernels::gated_sums> carry;    ///< [B, T, H] i64
  std::array<Tensor, kernels::gated_sums> horizon;  ///< [B, tiles, H] i64
  Offsets offsets;                                  ///< [B, T, H] i64
};

/// Overwritten, but `shared`, which adds to. Absent where the input is, or where nobody asks.
struct RingGradients {
  View dq;      ///< [B, T, H, D]
  View dk, dv;  ///< [B, T, G, D]
  View dz;      ///< [B, T, G, D] or absent
  RingTerms terms;
  kernels::SharedTerms shared;
};

RingSaved ring_attention_forward(const Ring& ring, const RingInputs& in, const AttentionSettings& settings,
                                 AttentionStats* stats);
/// The rows of new chunks against all chunks (a cache that grew, chunked prefill). `rows`: the shard of the new chunks;
/// `keys`: of all, new ones included, of which only what belongs to keys is read. Forward only.
RingSaved ring_attention_prefill(const Ring& ring, int first_new_chunk, const RingInputs& rows, const RingInputs& keys,
                                 const AttentionSettings& settings, AttentionStats* stats);
/// d_o: as saved.o.
void ring_attention_backward(const Ring& ring, const RingGradients& out, const RingInputs& in, const RingSaved& saved,
                             const View& d_o, const AttentionSettings& settings);

/// Bytes that a rank sends for one layer and micro-batch, forward and backward, from the table. For `plan`.
struct RingBytes {
  std::int64_t forward = 0, backward = 0;
  std::int64_t keys = 0, gradients = 0;  ///< of the largest chunk's message
};
/// `in`, `settings`: as for the layer; only shapes are read. Offsets and states are counted as they are there.
RingBytes bytes_sent(const SequenceLayout& layout, const RingSchedule& schedule, int rank, const RingInputs& in,
                     const AttentionSettings& settings);

}  // namespace capstan::parallel
