#pragma once
// Who owns which token. The only source of ownership: every shard, schedule and gather asks here.
//
//   contiguous, S = 10 tiles, 3 ranks:   rank 0: [0 1 2 3]   rank 1: [4 5 6]   rank 2: [7 8 9]   (one chunk a rank)
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
};

class SequenceLayout {
 public:
  /// One chunk per rank, in rank order; the units are dealt out as evenly as they go, lower ranks first.
  static SequenceLayout contiguous(std::int64_t length, int ranks, std::int64_t unit);

  std::int64_t length() const { return length_; }
  int ranks() const { return ranks_; }
  std::int64_t unit() const { return unit_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }  ///< sequence order
  std::vector<int> owned(int rank) const;                       ///< chunk numbers, sequence order
  std::int64_t local_tokens(int rank) const;
  std::int64_t largest_chunk() const;
  /// First local row of a chunk at its owner.
  std::int64_t local_offset(int chunk) const;
  /// Global index of each local token of a rank.
  std::vector<std::int64_t> local_index(int rank) const;

 private:
  std::int64_t length_ = 0, unit_ = 1;
  int ranks_ = 1;
  std::vector<Chunk> chunks_;
};

}  // namespace capstan::parallel
