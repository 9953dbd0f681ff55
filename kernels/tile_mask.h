#pragma once
// Which keys of a tile each query row may see: one 64-bit word per row, shared by all heads and by both devices.

#include <algorithm>
#include <array>
#include <cstdint>

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
  std::uint64_t same_document = 0;
  std::int64_t past = 0;  // keys that lie at or before the row
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i == 0 || query_document[i] != query_document[i - 1]) {
      same_document = 0;
      for (std::int64_t j = 0; j < keys; ++j) same_document |= std::uint64_t(key_document[j] == query_document[i]) << j;
    }
    while (past < keys && key_index[past] <= query_index[i]) ++past;
    const std::uint64_t bits = past == 64 ? same_document : same_document & ((std::uint64_t(1) << past) - 1);
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

/// Whether some row of the query tile at `query_begin` may see a key of the key tile at `key_begin`; then `pair` says which.
inline bool meet(TilePair& pair, const QueryChunk& queries, const KeyChunk& keys, std::int64_t tile,
                 std::int64_t query_begin, std::int64_t key_begin) {
  const auto *query_index = queries.index.as<std::int64_t>() + query_begin,
             *query_document = queries.document.as<std::int64_t>() + query_begin;
  const auto *key_index = keys.index.as<std::int64_t>() + key_begin,
             *key_document = keys.document.as<std::int64_t>() + key_begin;
  const std::int64_t rows = std::min(tile, queries.index.dim(0) - query_begin),
                     count = std::min(tile, keys.index.dim(0) - key_begin);
  if (key_index[0] > query_index[rows - 1]) return false;  // wholly in the future
  // Documents are runs: a tile that is wholly in the past shares one with the rows only if its last key does with the
  // first.
  if (key_index[count - 1] < query_index[0] && key_document[count - 1] != query_document[0]) return false;
  pair = {query_begin, rows, key_begin, count,
          mask_tile(query_index, query_document, rows, key_index, key_document, count)};
  return pair.mask.any;
}

enum class Walk : std::uint8_t { near_to_far, far_to_near };

/// Calls body(key_begin) for the key tiles of a chunk, which begins at a multiple of `tile`, in the order of the walk.
template <class Body>
[[gnu::always_inline]] inline void for_each_key_tile(const KeyChunk& keys, std::int64_t tile, Walk walk,
                                                     const Body& body) {
  const std::int64_t tiles = (keys.index.dim(0) + tile - 1) / tile;
  for (std::int64_t step = 0; step < tiles; ++step) body((walk == Walk::far_to_near ? step : tiles - 1 - step) * tile);
}

}  // namespace capstan::kernels
