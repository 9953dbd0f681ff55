#pragma once
// Attention of one new token over the cached keys of a sequence whose chunks lie on the ranks of a ring.
//
//   2 ranks, tile 64      rank 0               rank 1
//   prompt of 130         chunk 0 [0, 128)     chunk 1 [128, 130)     here SequenceLayout::contiguous; any will do
//   62 new tokens later                        chunk 1 [128, 192)     filled up on its owner
//   400 later             chunk 2 [192, 448)   chunk 3 [448, 592)     256 tokens each, to the ranks in turn
//
// One step, on every rank alike: the owner of the newest chunk appends the new row's keys, each rank walks its own
// chunks near → far with one softmax state, and the states (m, l, O) are all-gathered and folded. CoPE's gate sum on
// entry of a chunk is the sum over all nearer chunks, whoever owns them: the ranks all-gather their chunks' gate sums
// first. All ranks get the same bits.

#include <vector>

#include "parallel/ring_attention.h"

namespace capstan::parallel {

/// The chunks of a sequence that grows by one token at a time: the same on every rank.
class GrowingLayout {
 public:
  /// Chunks that generation adds have this many tokens, rounded up to the prompt's unit (lcm(tile, block)).
  static constexpr std::int64_t added_chunk = 256;

  explicit GrowingLayout(const SequenceLayout& prompt);

  /// Makes room for one more token.
  void append();
  /// Adds a chunk per rank for `tokens` more, dealt out as SequenceLayout::contiguous does; returns the first one's number.
  /// The last chunk must be full.
  int append_segment(std::int64_t tokens);

  std::int64_t length() const { return chunks_.empty() ? 0 : chunks_.back().end; }
  int ranks() const { return ranks_; }
  std::int64_t unit() const { return unit_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }  ///< sequence order, none empty
  std::int64_t limit() const { return limit_; }                 ///< where the last chunk is full
  SequenceLayout layout() const { return SequenceLayout::of_chunks(chunks_, ranks_, unit_); }

 private:
  std::vector<Chunk> chunks_;
  std::int64_t unit_, limit_ = 0;
  int ranks_;
};

/// This rank's keys of one layer: what belongs to keys in RingInputs, in one growing buffer each. B = 1; tokens in local
/// order, which is the order in which they come.
class KeyCache {
 public:
  /// The rank's shard of a prompt, of a segment of it, or a new token's row at its owner.
  void append(const RingInputs& rows);
  /// All that was appended, as the keys of RingInputs.
  RingInputs keys() const;
  std::int64_t tokens() const { return tokens_; }

 private:
  struct Buffer {
    Tensor memory;  // [1, capacity, …]
    void append(const View& rows, std::int64_t at);
    View filled(std::int64_t tokens) const;
  };
  Buffer k_, v_, z_, index_, position_, document_, gate0_, gate1_, offset_source_;
  OffsetSettings offset_;
  bool gates_on_values_ = false;
  std::int64_t tokens_ = 0;
};

/// o [1, 1, H, E] and lse [1, 1, H] of the new token's row: in.q and in.terms are the same on all ranks, its keys are
/// already in the cache. Called by all ranks of the ring, also by those that hold no chunk. No horizon:
/// there is no backward.
RingSaved decode_attention(Communicator& ring, const GrowingLayout& layout, const KeyCache& cache, const RingInputs& in,
                           const AttentionSettings& settings, AttentionStats* stats);

/// Folds finished parts of one softmax: states holds `parts` times (o [H, E] before normalisation, m [H], l [H]), near
/// → far as `order` lists them. The only place where partial states meet. A part that saw no key has l = 0. Overwrites
/// o [H, E] and lse [H].
void fold_states(const View& o, const View& lse, const View& states, const std::vector<int>& order);

}  // namespace capstan::parallel
