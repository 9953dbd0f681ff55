#pragma once
// Attention of one query chunk over one key chunk, in tiles, with the softmax state carried in and out.
//
// For query row i of head h (kv head g = h / (H/G)), key j, s = 1/sqrt(D):
//   allowed(i, j)  =  index_j <= index_i  and  document_j == document_i      (a document is a run of tokens)
//   logit_ij       =  s q_i·k_j + the terms of kernels/score_terms.h
//   O_i            =  Σ_j softmax_j(logit_ij) U_j,   U_j = [v_j] or, with TAPE, [v_j ; z_j]: E = D or 2D columns
//
// Keys are walked near → far in tiles that lie at global multiples of `tile`, also across calls: a chunk's keys are
// consecutive tokens that begin at a multiple of `tile`. Per tile the running state of a row is updated:
//   m' = max(m, max_j logit), l' = l e^{m-m'} + Σ_j e^{logit-m'}, O' = O e^{m-m'} + Σ_j e^{logit-m'} U_j.
// Row results therefore do not depend on how the keys were cut into chunks, bit for bit.
//
// A tile is skipped if no row has an allowed key in it.
//
// A gated sum over nearer tiles is the row's `carry`, an exact int64 in units of 2^-32 (f32) or 2^-44 (f64); one integer
// add per tile, so it is the same for any ranks and can be walked back. A tile is *flat* for a gated sum if its position
// is the same for all keys of the tile, whatever the row: no gates are then needed per key and the bias is a row constant.
// So it is
//   saturated      every row with an allowed key in it entered with carry >= P: the position is P;
//   out of reach   a window keeps all its keys without gates: the position is the carry;
//   in one block   block_ends: the tile lies in one block, whose gate, if the block ends in the tile, is all it adds.
// The general path would give the same bits. A saturated tile leaves the carry alone.
//
// Types: a call computes in the type of q, or, with q in bf16 (`cpu` only), in f32. Then
//   bf16          q, k, v, d_o (and both of attention_delta's o and d_o);
//   bf16 or f32   each gate_q and gate_k by itself;
//   f32           everything else that is real: z, tables and weights of terms, the state, lse, delta, all gradients.
// Views of shape [T, …] below that name no type are of q's type; *wide* ones are f32 beside bf16.
//
// Dropout of attention weights (settings.dropout) multiplies e^{logit-m'} in O', not in l', by 0 or 1 / (1 - rate); which
// is a pure function of (seed, head, index_i, index_j): kernels/dropout.h.

#include <cstdint>

#include "kernels/score_terms.h"
#include "kernels/tensor.h"

namespace capstan::kernels {

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
  View z;         ///< [T, G, D] wide: position states as further value columns (TAPE), or absent
  View index;     ///< [T] i64, global, strictly increasing, begins at a multiple of tile (and block)
  View position;  ///< [T] i64: distances; may be absent without relative, distance and function terms
  View document;  ///< [T] i64
  KeyTerms terms = {};
};

/// Queries that stay at home, with the terms' row data.
struct QueryChunk {
  View q;         ///< [T, H, D]
  View index;     ///< [T] i64, strictly increasing, begins at a multiple of tile (one generated row may begin anywhere)
  View position;  ///< [T] i64, as in KeyChunk
  View document;  ///< [T] i64
  RowTerms terms = {};
};

/// The state that one call hands to the next. attention_finish turns o into the output and m into LSE.
struct AttentionState {
  View o;     ///< [T, H, E] wide
  View m, l;  ///< [T, H] wide: running maximum and sum; m doubles as lse after attention_finish
  /// Per gated sum, or absent. [T, H] i64: sum of the gates of all tiles that were not saturated.
  std::array<View, gated_sums> carry;
  /// [query tiles, H] i64: first key of the farthest tile whose gates were summed; -1: none.
  std::array<View, gated_sums> horizon;
};

/// Running totals for the log; add to.
struct AttentionStats {
  double gate_sum = 0;
  std::int64_t gates = 0;            ///< gates of sum 0 that were summed
  std::int64_t tiles = 0;            ///< (head, query tile, key tile) triples computed
  std::int64_t saturated_tiles = 0;  ///< of these, where every gated sum was flat
};

/// Dropout of attention weights.
struct WeightDropout {
  double rate = 0;  ///< in [0, 1)
  std::uint64_t seed = 0;
  std::int64_t first_head = 0;  ///< number of head 0 among all heads of the model
};

struct AttentionSettings {
  std::int64_t tile = 64;
  std::array<GateRule, gated_sums> gates = {};
  SharedTerms shared = {};
  WeightDropout dropout = {};
  bool flat_tiles = true;  ///< false: always the general path (tests: same bits)
};

/// m = -1e30, l = 0, o = 0, carry = 0, horizon = -1.
void attention_begin(const AttentionState& state);
/// One step, near → far: adds the key chunk to the state. stats may be null.
void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats* stats);
/// o /= l, m = lse = m + ln l. A row that saw no key gets o = 0 and lse = +inf, so that its weights are 0 in backward.
void attention_finish(const AttentionState& state);

/// Only the sum of a chunk's gates (sharded decode), of gated sum `which`: sum [T, H] i64 overwrites.
void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings);

/// What backward needs of the finished forward.
struct AttentionSaved {
  View lse;                                     ///< [T, H] wide
  View delta;                                   ///< [T, H] wide: delta_i = dO_i · O_i over all E columns
  std::array<View, gated_sums> carry, horizon;  ///< as left by forward, or absent
};

/// Gradients, all wide; all add to.
struct AttentionGradients {
  View dq;  ///< [T, H, D]
  RowTerms rows;
  View dk, dv;  ///< [T, G, D] of the key chunk
  View dz;      ///< [T, G, D] of the key chunk, or absent (no z, or a z without gradient)
  KeyTerms keys;
  SharedTerms shared;  ///< any of its views may be absent (frozen)
};

/// The carried state of backward, far → near, per gated sum. Before the first call: backward_begin.
struct AttentionBackwardState {
  std::array<View, gated_sums> carry;      ///< [T, H] i64: on entry of the tile done last; at first forward's final one
  std::array<View, gated_sums> gate_grad;  ///< [T, H] wide: X_i = Σ of d position over all farther keys
};

/// delta [T, H], wide, = Σ_E do · o. Overwrites.
void attention_delta(const View& delta, const View& d_o, const View& o);
/// carry = forward's final carry, gate_grad = 0.
void attention_backward_begin(const AttentionBackwardState& state, const AttentionSaved& saved);
/// One step, far → near: quotes attention_forward in reverse, tile by tile. With A = exp(logit - lse):
///   dU_j += A dO;  dlogit = A (dO·U_j - delta);  each term's adjoint takes dlogit (kernels/terms/);
///   gated sums: dp = dlogit slope, X_k = Σ_{j<=k} dp (far → near), du_k = (1 - floor) σ' X_k, which goes to gate_q and
///   gate_k (joins dlogit where these are q and k); where a tile is flat, X takes Σ_j dlogit_j slope at once;
///   dq_i += s dlogit k_j;  dk_j += s dlogit q_i.
/// Entry carry of a tile whose gates were summed (horizon and nearer): what came in less what the tile adds, exactly.
void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings);

}  // namespace capstan::kernels
