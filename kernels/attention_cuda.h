#pragma once
// The GPU's entries behind attention_tile.h: arguments are checked there. All arrays lie in device memory; work is queued on the
// thread's stream (kernels/stream_cuda.h). Head sizes are multiples of 8 up to 128, q in f32 or bf16.

#include "kernels/attention_tile.h"

namespace capstan::kernels::cuda {

/// Statistics are read back at the end, 32 bytes: the call waits for its stream.
void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&,
                       AttentionStats&);
/// The same for callers that want no statistics: nothing is counted, nothing is waited for.
void attention_forward_uncounted(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&);
void attention_backward(const AttentionGradients&, const AttentionBackwardState&, const QueryChunk&, const KeyChunk&,
                        const View& d_o, const AttentionSaved&, const AttentionSettings&);
void attention_gate_sum(const View& sum, int which, const QueryChunk&, const KeyChunk&, const AttentionSettings&);

}  // namespace capstan::kernels::cuda
