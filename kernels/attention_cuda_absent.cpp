// The attention tile of `cuda` in a build without it.

#include "kernels/attention_devices.h"
#include "kernels/cuda_absent.h"

namespace capstan::kernels::cuda {

void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&) {
  no_cuda();
}

void attention_forward(const AttentionState&, const QueryChunk&, const KeyChunk&, const AttentionSettings&,
                       AttentionStats&) {
  no_cuda();
}

void attention_backward(const AttentionGradients&, const AttentionBackwardState&, const QueryChunk&, const KeyChunk&,
                        const View&, const AttentionSaved&, const AttentionSettings&) {
  no_cuda();
}

void attention_gate_sum(const View&, int, const QueryChunk&, const KeyChunk&, const AttentionSettings&) { no_cuda(); }

}  // namespace capstan::kernels::cuda
