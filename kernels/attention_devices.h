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

namespace cuda {
/// Without statistics nothing is waited for.
void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&);
void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&,
                       AttentionStats&);
void attention_backward(const AttentionGradients&, const AttentionBackwardState&, const QueryChunk&, const KeyChunk&,
                        const View& d_o, const AttentionSaved&, const AttentionSettings&);
void attention_gate_sum(const View& sum, int which, const QueryChunk&, const KeyChunk&, const AttentionSettings&);
// Host code may not touch a GPU's state, so that these have entries, too; attention_backward_begin only copies and fills.
void attention_begin(const AttentionState&, double no_key_yet);
void attention_finish(const AttentionState&);
void attention_delta(const View& delta, const View& d_o, const View& o);
}  // namespace cuda

}  // namespace capstan::kernels
