#include "parallel/sequence_layout.h"

#include <algorithm>

#include "kernels/check.h"

namespace capstan::parallel {

SequenceLayout SequenceLayout::contiguous(std::int64_t length, int ranks, std::int64_t unit) {
  CAPSTAN_CHECK(length >= 0 && ranks >= 1 && unit >= 1, "length {}, ranks {}, unit {}", length, ranks, unit);
  SequenceLayout layout;
  layout.length_ = length;
  layout.ranks_ = ranks;
  layout.unit_ = unit;
  // The first units % ranks ranks get one unit more, so that with few units the empty ranks are the last ones.
  const std::int64_t units = (length + unit - 1) / unit, each = units / ranks, more = units % ranks;
  const auto edge = [&](std::int64_t rank) { return std::min(length, (rank * each + std::min(rank, more)) * unit); };
  for (int rank = 0; rank < ranks; ++rank) layout.chunks_.push_back(Chunk{edge(rank), edge(rank + 1), rank});
  return layout;
}

std::vector<int> SequenceLayout::owned(int rank) const {
  std::vector<int> mine;
  for (std::size_t c = 0; c < chunks_.size(); ++c)
    if (chunks_[c].owner == rank) mine.push_back(int(c));
  return mine;
}

std::int64_t SequenceLayout::local_tokens(int rank) const {
  std::int64_t tokens = 0;
  for (const Chunk& chunk : chunks_) tokens += chunk.owner == rank ? chunk.tokens() : 0;
  return tokens;
}

std::int64_t SequenceLayout::largest_chunk() const {
  std::int64_t most = 0;
  for (const Chunk& chunk : chunks_) most = std::max(most, chunk.tokens());
  return most;
}

std::int64_t SequenceLayout::local_offset(int chunk) const {
  std::int64_t offset = 0;
  for (int c = 0; c < chunk; ++c) offset += chunks_[c].owner == chunks_[chunk].owner ? chunks_[c].tokens() : 0;
  return offset;
}

std::vector<std::int64_t> SequenceLayout::local_index(int rank) const {
  std::vector<std::int64_t> index;
  for (const Chunk& chunk : chunks_)
    for (std::int64_t t = chunk.begin; chunk.owner == rank && t < chunk.end; ++t) index.push_back(t);
  return index;
}

}  // namespace capstan::parallel
