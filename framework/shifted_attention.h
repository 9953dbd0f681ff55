#pragma once
// Shifted sparse attention for training (LongLoRA, Chen et al., arXiv 2309.12307, §3.2): a sequence of S tokens is cut into groups of
// G = ceil(S / groups) tokens, and attention stays within a group; for the second half of the heads the cuts are shifted by half a
// group. Without wrapping: their first and last groups are half ones. It is only a mask, two runs of segments instead of the
// documents, so that every schedule of the ring plays it: once for each half of the heads.
//
//   tokens       0 … … … G … … … 2G … …      groups of the first half    |0 0 0 0|1 1 1 1|2 2 2 2|
//                                            of the second               |0 0|1 1 1 1|2 2 2 2|3 3|

#include <array>

#include "parallel/ring_attention.h"

namespace capstan::framework {

/// The segments of both halves, [B, T] i64, in place of the documents: equal where the document and the group are.
using ShiftedSegments = std::array<kernels::Tensor, 2>;

/// length: S, of the whole sequence.
ShiftedSegments shifted_segments(const parallel::TokenRows& rows, std::int64_t length, std::int64_t groups);

/// The kv heads that a schedule may split: those of a half.
inline int heads_of_ring(std::int64_t kv_heads, bool shifted) { return int(shifted ? kv_heads / 2 : kv_heads); }

/// As ring_attention_forward and ring_attention_backward of all heads. Heads and kv heads are even, and there are no score terms
/// and no states: what is per head would have to be cut, too.
parallel::RingSaved shifted_attention_forward(const parallel::Ring& ring, const ShiftedSegments& segments,
                                              const parallel::RingInputs& in,
                                              const kernels::AttentionSettings& settings,
                                              kernels::AttentionStats* stats);
void shifted_attention_backward(const parallel::Ring& ring, const ShiftedSegments& segments,
                                const parallel::RingGradients& out, const parallel::RingInputs& in,
                                const parallel::RingSaved& saved, const kernels::View& d_o,
                                const kernels::AttentionSettings& settings);

}  // namespace capstan::framework
