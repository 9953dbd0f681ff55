#pragma once
// The device entries behind attention_tile.h: arguments are checked there.

#include "kernels/attention_tile.h"

namespace capstan::kernels {

namespace ref {
void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&,
                       AttentionStats&);
void attention_backward(const AttentionGradients&, const AttentionBackwardState&, const QueryChunk&, const KeyChunk&,
                        const View& d_o, const AttentionSaved&, const AttentionSettings&);
void attention_gate_sum(const View& sum, int which, const QueryChunk&, const KeyChunk&, const AttentionSettings&);
}  // namespace ref

namespace cpu {
void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&,
                       AttentionStats&);
void attention_backward(const AttentionGradients&, const AttentionBackwardState&, const QueryChunk&, const KeyChunk&,
                        const View& d_o, const AttentionSaved&, const AttentionSettings&);
void attention_gate_sum(const View& sum, int which, const QueryChunk&, const KeyChunk&, const AttentionSettings&);
}  // namespace cpu

}  // namespace capstan::kernels
