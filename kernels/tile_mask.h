#pragma once
// Which keys of a tile each query row may see: one 64-bit word per row, shared by all heads and by both devices.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/attention_tile.h"

namespace capstan::kernels {

struct TileMask {
  std::array<std::uint64_t, largest_tile> allowed{};  ///< bit j: key j of the tile
  bool any = false;                                   ///< some row has an allowed key
  bool all = true;                                    ///< every row may see every key
};

/// rows × keys, both at most largest_tile. `index` and `document` point at the tile's first entries; documents are
/// runs.
inline TileMask mask_tile(const std::int64_t* query_index, const std::int64_t* query_document, std::int64_t rows,
                          const std::int64_t* key_index, const std::int64_t* key_document, std::int64_t keys) {
  TileMask mask;
  const std::uint64_t full = keys == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << keys) - 1;
  const bool one_document = query_document[0] == query_document[rows - 1] &&
                            key_document[0] == key_document[keys - 1] && query_document[0] == key_document[0];
  if (one_document && key_index[keys - 1] <= query_index[0]) {
    std::fill_n(mask.allowed.begin(), rows, full);
    mask.any = true;
    return mask;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::uint64_t bits = 0;
    for (std::int64_t j = 0; j < keys; ++j)
      bits |= std::uint64_t(key_index[j] <= query_index[i] && key_document[j] == query_document[i]) << j;
    mask.allowed[i] = bits;
    mask.any = mask.any || bits != 0;
    mask.all = mask.all && bits == full;
  }
  return mask;
}

/// A query and a key tile of which some row has an allowed key.
struct TilePair {
  std::int64_t query_begin, rows;  ///< rows of the query chunk
  std::int64_t key_begin, keys;    ///< rows of the key chunk
  TileMask mask;
};

enum class Walk : std::uint8_t { near_to_far, far_to_near };

/// Calls body(query_begin, pairs) for each query tile of the chunk, in order, with the key tiles that it sees in the
/// order of the walk. The only walk over tiles there is. Chunks begin at multiples of `tile`.
template <class Body>
void for_each_query_tile(const QueryChunk& queries, const KeyChunk& keys, std::int64_t tile, Walk walk, Body&& body) {
  const std::int64_t query_tokens = queries.index.dim(0), key_tokens = keys.index.dim(0);
  const auto *query_index = queries.index.as<std::int64_t>(), *query_document = queries.document.as<std::int64_t>();
  const auto *key_index = keys.index.as<std::int64_t>(), *key_document = keys.document.as<std::int64_t>();
  const std::int64_t key_tiles = (key_tokens + tile - 1) / tile;
  std::vector<TilePair> pairs;
  for (std::int64_t qb = 0; qb < query_tokens; qb += tile) {
    const std::int64_t rows = std::min(tile, query_tokens - qb);
    pairs.clear();
    for (std::int64_t step = 0; step < key_tiles; ++step) {
      const std::int64_t kb = (walk == Walk::far_to_near ? step : key_tiles - 1 - step) * tile;
      if (key_index[kb] > query_index[qb + rows - 1]) continue;  // wholly in the future
      const std::int64_t count = std::min(tile, key_tokens - kb), key_end = kb + count - 1;
      // Documents are runs: a tile that is wholly in the past shares one with the rows only if its last key does with
      // the first.
      if (key_index[key_end] < query_index[qb] && key_document[key_end] != query_document[qb]) continue;
      const TileMask mask =
          mask_tile(query_index + qb, query_document + qb, rows, key_index + kb, key_document + kb, count);
      if (mask.any) pairs.push_back(TilePair{qb, rows, kb, count, mask});
    }
    if (!pairs.empty()) body(qb, pairs);
  }
}

}  // namespace capstan::kernels
