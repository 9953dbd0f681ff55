#pragma once
// A query tile and a key tile: whether any row may see a key, which ones (kernels/tile_mask.h), and where the rows have gates
// (terms::find_gates). Masks are 64-bit words of the thread's two rows, made by the four threads of a quad alike.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_arguments.cuh"
#include "kernels/attention_fragment.cuh"

namespace capstan::kernels::cuda::attention {

using Words = std::uint64_t[half_rows];

/// The lowest n of 64 bits, for any n.
__device__ inline std::uint64_t low_bits(std::int64_t n) {
  return n <= 0 ? 0 : n >= 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << n) - 1;
}

/// A query tile of one head, the same for all key tiles.
struct QueryTile {
  std::int64_t number, begin, head, group;
  int rows;
  std::int64_t first_index, last_index, first_document, last_document;

  __device__ QueryTile(const Arguments& a, std::int64_t number_in, std::int64_t head_in)
      : number(number_in), begin(number * a.tile), head(head_in), group(a.group_of(head)),
        rows(static_cast<int>(min(a.tile, a.rows - begin))), first_index(a.query_index[begin]),
        last_index(a.query_index[begin + rows - 1]), first_document(a.query_document[begin]),
        last_document(a.query_document[begin + rows - 1]) {}
  __device__ bool has(int row) const { return row < rows; }
  /// Row h of the thread in the query chunk; rows beyond the tile's end stand for its last.
  __device__ std::int64_t row(const Lane& lane, int h) const { return begin + min(lane.row(h), rows - 1); }
  /// Read again where they are wanted: kept, they would cost registers in every tile.
  __device__ std::int64_t index(const Arguments& a, const Lane& lane, int h) const {
    return a.query_index[row(lane, h)];
  }
  __device__ std::int64_t document(const Arguments& a, const Lane& lane, int h) const {
    return a.query_document[row(lane, h)];
  }
};

/// A key tile, and what the query tile's rows see of it.
struct Meeting {
  std::int64_t begin = 0, first = 0;  ///< in the chunk; index
  int keys = 0;
  bool all = false;  ///< every row of the block sees all 64 columns
  Words allowed;

  __device__ std::int64_t last() const { return first + keys - 1; }
  __device__ bool sees(int h, int column) const { return (allowed[h] >> column & 1) != 0; }
};

/// Keys of the tile in the row's document.
__device__ inline std::uint64_t same_document(const Arguments& a, const Meeting& m, std::int64_t document,
                                              std::int64_t first_document, std::int64_t last_document,
                                              const Lane& lane) {
  if (first_document == last_document) return document == first_document ? low_bits(m.keys) : 0;
  std::uint64_t word = 0;
  for (int column = 16 * lane.q; column < 16 * (lane.q + 1) && column < m.keys; ++column)
    word |= std::uint64_t(a.key_document[m.begin + column] == document) << column;
  word |= __shfl_xor_sync(all_lanes, word, 1);
  return word | __shfl_xor_sync(all_lanes, word, 2);
}

/// False if four numbers tell that no row sees a key of the tile. Else m.allowed; other tiles may still turn out to have none.
/// The same answer for the whole block.
__device__ inline bool may_meet(Meeting& m, const Arguments& a, const QueryTile& t, std::int64_t key_tile,
                                std::int64_t first_key, const Lane& lane) {
  m.begin = key_tile * a.tile;
  m.keys = static_cast<int>(min(a.tile, a.keys - m.begin));
  m.first = first_key + m.begin;
  m.all = false;
  if (m.first > t.last_index) return false;  // wholly in the future
  const std::int64_t last_document = a.key_document[m.begin + m.keys - 1];
  const bool past = m.last() < t.first_index;
  // Documents are runs: a tile that is wholly in the past shares one with the rows only if its last key does with the first.
  if (past && last_document != t.first_document) return false;
  const std::int64_t first_document = a.key_document[m.begin];
  const bool one_document = t.first_document == t.last_document && first_document == last_document;
  m.all = past && one_document && m.keys == tile_size && t.rows == tile_size;
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    m.allowed[h] = ~std::uint64_t(0);
    if (m.all) continue;
    const std::uint64_t same = same_document(a, m, t.document(a, lane, h), first_document, last_document, lane);
    m.allowed[h] = t.has(lane.row(h)) ? same & low_bits(t.index(a, lane, h) - m.first + 1) : 0;
  }
  return true;
}

// ---- which tiles can meet -------------------------------------------------------------------------------------------
//
// Found by searches of a few steps, so that no block walks past thousands of tiles that it has nothing to do with. may_meet
// decides on each tile in the range.

struct TileRange {
  std::int64_t first, end;
};

/// The lowest n in [first, end] that is `end` or for which f(n); f, once true, stays true.
template <class F> __device__ inline std::int64_t lowest(std::int64_t first, std::int64_t end, F&& f) {
  while (first < end) {
    const std::int64_t middle = (first + end) / 2;
    if (f(middle)) end = middle;
    else first = middle + 1;
  }
  return first;
}

/// Key tiles of the chunk for a query tile: up to its last row, and from where its first row's document begins.
__device__ inline TileRange key_tiles_of(const Arguments& a, const QueryTile& t, std::int64_t first_key) {
  if (t.last_index < first_key) return {0, 0};
  const std::int64_t end = min(a.key_tiles(), (t.last_index - first_key) / a.tile + 1),
                     past = min(a.keys, max(std::int64_t(0), t.first_index - first_key)) / a.tile;
  return {lowest(0, past, [&](std::int64_t n) { return a.key_document[(n + 1) * a.tile - 1] == t.first_document; }),
          end};
}

/// Query tiles for a key tile (`begin`, `keys` and `first` of m count): from the first that reaches it, until those that lie
/// behind it have left its last document.
__device__ inline TileRange query_tiles_of(const Arguments& a, const Meeting& m) {
  const std::int64_t tiles = a.query_tiles(), document = a.key_document[m.begin + m.keys - 1];
  const std::int64_t first =
      lowest(0, tiles, [&](std::int64_t n) { return a.query_index[min((n + 1) * a.tile, a.rows) - 1] >= m.first; });
  const std::int64_t behind =
      lowest(first, tiles, [&](std::int64_t n) { return a.query_index[n * a.tile] > m.last(); });
  return {first, lowest(behind, tiles, [&](std::int64_t n) { return a.query_document[n * a.tile] != document; })};
}

// ---- gates ----------------------------------------------------------------------------------------------------------

/// Keys of the tile at which a block ends, whatever the row.
__device__ inline std::uint64_t block_ends(const GatedArguments& g, const Meeting& m) {
  std::uint64_t word = 0;
  for (std::int64_t j = g.block - 1 - m.first % g.block; j < m.keys; j += g.block) word |= std::uint64_t(1) << j;
  return word;
}

/// Where the thread's rows have gates.
__device__ inline void find_gates(Words& has, const Arguments& a, const GatedArguments& g, const Meeting& m,
                                  const QueryTile& t, const Lane& lane) {
  const std::uint64_t ends = g.gates == Gates::block_ends ? block_ends(g, m) : 0;
#pragma unroll
  for (int h = 0; h < half_rows; ++h) {
    has[h] = m.allowed[h];
    if (g.block == 0) continue;
    const std::int64_t border =
        (t.index(a, lane, h) / g.block - g.window + 1) * g.block;  // first key of the row's window
    const std::uint64_t before = low_bits(border - m.first);
    has[h] &= g.gates == Gates::block_ends ? ends & before : ~before;
  }
}

__device__ inline bool in_one_block(const GatedArguments& g, const Meeting& m) {
  return g.gates == Gates::block_ends && m.first / g.block == m.last() / g.block;
}

}  // namespace capstan::kernels::cuda::attention
