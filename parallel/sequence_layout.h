#pragma once
// Who owns which token. The only source of ownership: every shard, schedule and gather asks here.
//
//   contiguous, S = 10 tiles, 3 ranks:   rank 0: [0 1 2 3]   rank 1: [4 5 6]   rank 2: [7 8 9]   (one chunk a rank)
//   zigzag, S = 12 tiles, 3 ranks:       rank 0: [0 1 | 10 11]   rank 1: [2 3 | 8 9]   rank 2: [4 5 | 6 7]
//   pieces of either, 2 heads ranks:     every chunk of a ring of R ranks is cut in 2, one piece for each rank of a group
//
// A sequence is cut into chunks at multiples of `unit` = lcm(tile, block); only the last tile may be short. Ranks past
// the end own empty chunks and still join every collective. A rank's local tokens are its chunks in sequence order.

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::parallel {

struct Chunk {
  std::int64_t begin = 0, end = 0;  ///< global tokens [begin, end)
  int owner = 0;
  std::int64_t tokens() const { return end - begin; }
  /// Tiles or blocks of `step` tokens, the last one perhaps short.
  std::int64_t steps(std::int64_t step) const { return (tokens() + step - 1) / step; }
};

class SequenceLayout {
 public:
  /// One chunk per rank, in rank order; the units are dealt out as evenly as they go, lower ranks first.
  static SequenceLayout contiguous(std::int64_t length, int ranks, std::int64_t unit);
  /// Two chunks per rank, r and 2 ranks - 1 - r, so that causal work is even.
  static SequenceLayout zigzag(std::int64_t length, int ranks, std::int64_t unit);
  /// The chunks of `ring` each cut in `pieces`: piece p of a chunk of ring rank r belongs to rank r · pieces + p.
  static SequenceLayout in_pieces(const SequenceLayout& ring, int pieces);
  /// Chunks as given (a cache that grew): in sequence order, without gaps.
  static SequenceLayout of_chunks(std::vector<Chunk> chunks, int ranks, std::int64_t unit);

  std::int64_t length() const { return length_; }
  int ranks() const { return ranks_; }
  std::int64_t unit() const { return unit_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }  ///< sequence order
  std::vector<int> owned(int rank) const;                       ///< chunk numbers, sequence order
  std::int64_t local_tokens(int rank) const;
  std::int64_t largest_chunk() const;
  /// First local row of a chunk at its owner. With `step`, counted in steps (tiles, blocks): a chunk of n tokens has
  /// ceil(n / step) of them.
  std::int64_t local_offset(int chunk, std::int64_t step = 1) const;
  /// Local steps of a rank.
  std::int64_t local_steps(int rank, std::int64_t step) const;
  /// Global index of each local token of a rank.
  std::vector<std::int64_t> local_index(int rank) const;

 private:
  std::int64_t length_ = 0, unit_ = 1;
  int ranks_ = 1;
  std::vector<Chunk> chunks_;
};

}  // namespace capstan::parallel
