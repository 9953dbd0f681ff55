#pragma once
// Exact attention over a sequence that is sharded over a ring of ranks. Plays a ring_schedule with double buffering:
// the next exchange is posted before the block in hand is computed on.

#include <functional>
#include <map>
#include <memory>

#include "kernels/attention_tile.h"
#include "parallel/communicator.h"
#include "parallel/ring_schedule.h"
#include "parallel/sequence_layout.h"

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

/// The three arrays that travel with the keys, for the rank's local tokens. All [B, T] i64.
struct TokenRows {
  View index;     ///< global, strictly increasing: causality and tiles
  View position;  ///< phases and distances: restarts per document
  View document;  ///< keys are seen only by queries of the same document (a run of tokens)
};

/// Local shard of one layer's attention. T = layout.local_tokens(rank).
struct RingInputs {
  View q;      ///< [B, T, H, D]
  View k, v;   ///< [B, T, G, D]
  View z;      ///< [B, T, G, D] TAPE's states, or absent
  View table;  ///< [B, T, H, P + 1] CoPE's row table, or absent
  TokenRows rows;
  /// Set where z follows from the positions alone (TAPE's first layer): z does not travel but is made where it is needed,
  /// z [n, G, D] overwrites from position [n]; and it has no gradient.
  std::function<void(const View& z, const View& position)> make_z = {};
};

/// Result and what backward needs. Query tiles are counted per chunk, chunks in local order.
struct RingSaved {
  Tensor o;              ///< [B, T, H, E]
  Tensor lse;            ///< [B, T, H]
  Tensor horizon;        ///< [B, tiles, H] i64 (cope)
  Tensor horizon_carry;  ///< [B, T, H] i64 (cope)
};

/// All overwritten.
struct RingGradients {
  View dq;      ///< [B, T, H, D]
  View dk, dv;  ///< [B, T, G, D]
  View dz;      ///< [B, T, G, D] or absent
  View dtable;  ///< [B, T, H, P + 1] or absent
};

RingSaved ring_attention_forward(const Ring& ring, const RingInputs& in, const AttentionSettings& settings,
                                 AttentionStats* stats);
void ring_attention_backward(const Ring& ring, const RingGradients& out, const RingInputs& in, const RingSaved& saved,
                             const View& d_o, const AttentionSettings& settings);

/// Bytes of one chunk's message: k, v, z and the three arrays; and of its gradients. For `plan`.
struct ChunkBytes {
  std::int64_t keys, gradients;
};
ChunkBytes chunk_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t groups, std::int64_t head_size,
                       bool with_z, kernels::DType type);

}  // namespace capstan::parallel
