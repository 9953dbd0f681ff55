#pragma once
// Offsets δ_ij = row_i - key_j for score terms whose sums do not depend on the query: prefix sums along the sequence,
// wherever its chunks lie. They begin anew with every document, so that no document's rounding reaches another.
//
//   sum          FoX (Lin et al., arXiv 2503.02130): row_i = key_i = Σ_{l <= i} source_l, so δ_ij = Σ_{j < l <= i} source_l
//   block_gates  hierarchical CoPE with query-independent gates (H-C): ρ_b = σ(mean of source over block b), and
//                row_i = Σ_{b < b(i)} ρ_b, key_j = Σ_{b < b(j)} ρ_b, so δ_ij = Σ_{b(j) <= b < b(i)} ρ_b
//
// Sums are exact int64 (unit 2^-gate_fraction_bits, kernels/attention_tile.h): the same bits on any ranks. Each rank sums its
// chunks; one gathering of the chunks' totals, a scan over them, gives what lies before a chunk.

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/sequence_layout.h"
#include "parallel/token_rows.h"

namespace capstan::parallel {

using kernels::Tensor;

enum class OffsetRule : std::uint8_t { none, sum, block_gates };

struct OffsetSettings {
  OffsetRule rule = OffsetRule::none;
  std::int64_t block = 0;  ///< block_gates
};

/// [B, T, H] i64 of the rank's tokens.
struct Offsets {
  Tensor row, key;
};

/// Of one chunk by itself, as if nothing came before it.
struct ChunkOffsets {
  Tensor offset;  ///< [n, H] i64
  Tensor tail;    ///< [H] i64: all that is added since the last document's start
};
/// source [n, H]; index, document [n].
ChunkOffsets chunk_offsets(const View& source, const View& index, const View& document, const OffsetSettings& settings);

/// source [B, T, H]. Called by all ranks. Error (bad_data): a sum beyond 2^62 units.
Offsets make_offsets(Communicator& ring, const SequenceLayout& layout, const TokenRows& rows, const View& source,
                     const OffsetSettings& settings);
/// d_source [B, T, H] adds to, from d_row, d_key [B, T, H]. Called by all ranks.
void offsets_backward(Communicator& ring, const SequenceLayout& layout, const TokenRows& rows, const View& d_source,
                      const View& source, const View& d_row, const View& d_key, const OffsetSettings& settings);

/// One row per chunk, from its owner to all: mine [owned chunks, n] in local order, result [chunks, n].
Tensor gather_chunks(Communicator& ring, const std::vector<Chunk>& chunks, const View& mine);

}  // namespace capstan::parallel
