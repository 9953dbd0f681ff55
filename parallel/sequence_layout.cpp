#include "parallel/sequence_layout.h"

#include <algorithm>

#include "kernels/check.h"

namespace capstan::parallel {

namespace {

/// [begin, end) in `count` parts at multiples of `unit` from begin; earlier parts get one unit more, so that with few
/// units the empty parts are the last ones.
std::vector<Chunk> cut(std::int64_t begin, std::int64_t end, int count, std::int64_t unit) {
  const std::int64_t units = (end - begin + unit - 1) / unit, each = units / count, more = units % count;
  const auto edge = [&](std::int64_t part) {
    return std::min(end, begin + (part * each + std::min(part, more)) * unit);
  };
  std::vector<Chunk> parts;
  for (int part = 0; part < count; ++part) parts.push_back(Chunk{edge(part), edge(part + 1), 0});
  return parts;
}

}  // namespace

SequenceLayout SequenceLayout::of_chunks(std::vector<Chunk> chunks, int ranks, std::int64_t unit) {
  SequenceLayout layout;
  for (const Chunk& chunk : chunks) {
    CAPSTAN_CHECK(chunk.begin == layout.length_ && chunk.end >= chunk.begin && chunk.owner < ranks,
                  "chunk [{}, {}) of rank {} after {} tokens on {} ranks", chunk.begin, chunk.end, chunk.owner,
                  layout.length_, ranks);
    layout.length_ = chunk.end;
  }
  layout.chunks_ = std::move(chunks);
  layout.ranks_ = ranks;
  layout.unit_ = unit;
  return layout;
}

SequenceLayout SequenceLayout::contiguous(std::int64_t length, int ranks, std::int64_t unit) {
  CAPSTAN_CHECK(length >= 0 && ranks >= 1 && unit >= 1, "length {}, ranks {}, unit {}", length, ranks, unit);
  std::vector<Chunk> chunks = cut(0, length, ranks, unit);
  for (int rank = 0; rank < ranks; ++rank) chunks[rank].owner = rank;
  return of_chunks(std::move(chunks), ranks, unit);
}

SequenceLayout SequenceLayout::zigzag(std::int64_t length, int ranks, std::int64_t unit) {
  CAPSTAN_CHECK(length >= 0 && ranks >= 1 && unit >= 1, "length {}, ranks {}, unit {}", length, ranks, unit);
  std::vector<Chunk> chunks = cut(0, length, 2 * ranks, unit);
  for (int chunk = 0; chunk < 2 * ranks; ++chunk) chunks[chunk].owner = std::min(chunk, 2 * ranks - 1 - chunk);
  return of_chunks(std::move(chunks), ranks, unit);
}

SequenceLayout SequenceLayout::in_pieces(const SequenceLayout& ring, int pieces) {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : ring.chunks())
    for (Chunk& piece : cut(chunk.begin, chunk.end, pieces, ring.unit())) {
      piece.owner = chunk.owner * pieces + int(chunks.size()) % pieces;
      chunks.push_back(piece);
    }
  return of_chunks(std::move(chunks), ring.ranks() * pieces, ring.unit());
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

std::int64_t SequenceLayout::local_offset(int chunk, std::int64_t step) const {
  std::int64_t offset = 0;
  for (int c = 0; c < chunk; ++c) offset += chunks_[c].owner == chunks_[chunk].owner ? chunks_[c].steps(step) : 0;
  return offset;
}

std::int64_t SequenceLayout::local_steps(int rank, std::int64_t step) const {
  std::int64_t steps = 0;
  for (const Chunk& chunk : chunks_) steps += chunk.owner == rank ? chunk.steps(step) : 0;
  return steps;
}

std::vector<std::int64_t> SequenceLayout::local_index(int rank) const {
  std::vector<std::int64_t> index;
  for (const Chunk& chunk : chunks_)
    for (std::int64_t t = chunk.begin; chunk.owner == rank && t < chunk.end; ++t) index.push_back(t);
  return index;
}

}  // namespace capstan::parallel
