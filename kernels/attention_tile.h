#pragma once
// Attention of one query chunk over one key chunk, in tiles, with the softmax state carried in and out.
//
// For query row i of head h (kv head g = h / (H/G)), key j, s = 1/sqrt(D):
//   allowed(i, j)  =  index_j <= index_i  and  document_j == document_i      (a document is a run of tokens)
//   logit_ij       =  s q_i·k_j + bias_ij
//   O_i            =  Σ_j softmax_j(logit_ij) U_j,   U_j = [v_j] or, with TAPE, [v_j ; z_j]: E = D or 2D columns
//
// Keys are walked near → far in tiles that lie at global multiples of `tile`, also across calls: a chunk's keys are
// consecutive tokens that begin at a multiple of `tile`. Per tile the running state of a row is updated:
//   m' = max(m, max_j logit), l' = l e^{m-m'} + Σ_j e^{logit-m'}, O' = O e^{m-m'} + Σ_j e^{logit-m'} U_j.
// Row results therefore do not depend on how the keys were cut into chunks, bit for bit.
//
// A tile is skipped if no row has an allowed key in it.
//
// Contextual bias (CoPE, arXiv 2405.18719 §4; kernels/terms/cope.h). With gates g_ik = σ(s q_i·k_k) (0 where not
// allowed) and position p_ij = min(P, Σ_{k=j..i} g_ik), the bias interpolates the row's table between floor(p) and
// ceil(p). The sum over nearer tiles is the row's `carry`, an exact int64 in units of 2^-32 (f32) or 2^-44 (f64); one
// integer add per tile, so it is the same for any ranks and can be walked back. A tile is *saturated* if every row with
// an allowed key in it entered with carry >= P: its bias is table[P] for all keys, no gates are needed, and the general
// path would give the same bits.

#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::kernels {

/// What a tile adds to the logits besides q·k. `cope`: reads the row table.
enum class TermKind : std::uint8_t { none, cope };

/// The largest tile; allowed keys of a row in a tile fit in 64 bits.
constexpr std::int64_t largest_tile = 64;

/// Fixed-point unit of gate sums: 2^-32 for f32, 2^-44 for f64 (sequences below 2^19 tokens there; longer ones are
/// refused).
constexpr int gate_fraction_bits(DType type) { return type == DType::f64 ? 44 : 32; }
constexpr std::int64_t longest_f64_sequence = std::int64_t(1) << 19;

/// Keys and what travels with them: T consecutive tokens of one sequence.
struct KeyChunk {
  View k;         ///< [T, G, D]
  View v;         ///< [T, G, D]
  View z;         ///< [T, G, D] position states as further value columns (TAPE), or absent
  View index;     ///< [T] i64, global, strictly increasing, begins at a multiple of tile
  View document;  ///< [T] i64
};

/// Queries that stay at home, with the term's row data.
struct QueryChunk {
  View q;         ///< [T, H, D]
  View table;     ///< [T, H, P + 1] (cope), or absent
  View index;     ///< [T] i64, strictly increasing, begins at a multiple of tile (one generated row may begin anywhere)
  View document;  ///< [T] i64
};

/// The state that one call hands to the next. attention_finish turns o into the output and m into LSE.
struct AttentionState {
  View o;              ///< [T, H, E]
  View m, l;           ///< [T, H] running maximum and sum; m doubles as lse after attention_finish
  View carry;          ///< [T, H] i64 gate sum of all nearer tiles (cope), or absent
  View horizon;        ///< [query tiles, H] i64 first key of the farthest tile that a row entered unsaturated; -1: none
  View horizon_carry;  ///< [T, H] i64 carry on entry of that tile
};

/// Running totals for the log; add to.
struct AttentionStats {
  double gate_sum = 0;
  std::int64_t gates = 0;            ///< gates summed (allowed pairs of general tiles)
  std::int64_t tiles = 0;            ///< (head, query tile, key tile) triples computed
  std::int64_t saturated_tiles = 0;  ///< of these
};

struct AttentionSettings {
  TermKind term = TermKind::none;
  std::int64_t tile = 64;
  bool saturation = true;  ///< false: always the general path (tests: same bits)
};

/// m = -inf, l = 0, o = 0, carry = 0, horizon = -1.
void attention_begin(const AttentionState& state);
/// One step, near → far: adds the key chunk to the state. stats may be null.
void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats* stats);
/// o /= l, m = lse = m + ln l. A row that saw no key gets o = 0 and lse = +inf, so that its weights are 0 in backward.
void attention_finish(const AttentionState& state);

/// Only the gate sums of a chunk (sharded decode): sum [T, H] i64 overwrites.
void attention_gate_sum(const View& sum, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings);

/// What backward needs of the finished forward.
struct AttentionSaved {
  View lse;                     ///< [T, H]
  View delta;                   ///< [T, H]  delta_i = dO_i · O_i over all E columns
  View horizon, horizon_carry;  ///< as left by forward (cope), or absent
};

/// Gradients; all add to.
struct AttentionGradients {
  View dq;      ///< [T, H, D]
  View dtable;  ///< [T, H, P + 1] (cope), or absent
  View dk, dv;  ///< [T, G, D] of the key chunk
  View dz;      ///< [T, G, D] of the key chunk, or absent (no z, or a z without gradient)
};

/// The carried state of backward, far → near. Before the first call: backward_begin.
struct AttentionBackwardState {
  View carry;      ///< [T, H] i64: on entry of the tile nearer than the last one done
  View gate_grad;  ///< [T, H]  X_i = Σ of d position over all farther keys
};

/// delta [T, H] = Σ_E do · o. Overwrites.
void attention_delta(const View& delta, const View& d_o, const View& o);
/// carry = horizon_carry (cope), gate_grad = 0.
void attention_backward_begin(const AttentionBackwardState& state, const AttentionSaved& saved);
/// One step, far → near: quotes attention_forward in reverse, tile by tile. With A = exp(logit - lse):
///   dU_j += A dO;  dlogit = A (dO·U_j - delta);  dq_i += s dlogit k_j;  dk_j += s dlogit q_i;
///   cope, general tiles: dp = dlogit slope, X_k = Σ_{j<=k} dp (far → near); du_k = g(1-g) X_k joins dlogit in dq, dk;
///   dtable at floor and ceil; saturated tiles: all of dlogit goes to dtable[P].
void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings);

}  // namespace capstan::kernels
