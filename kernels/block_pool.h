#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// One key per block of tokens, for hierarchical CoPE. Blocks are global multiples of `block`; x [T, N] are consecutive
// tokens whose first index is a multiple of it. A later row sees of a block only what its own document has there, and
// documents are runs: that is the part with the block's last token. So
//   mean_b = the mean of x_j over the tokens j of block b with document_j = document(last token of b).
// An unfinished block at the end has a row too, of the tokens that are there; no row asks for it.
// Never bf16.

/// mean [ceil(T / block), N] overwrites.
void block_mean(const View& mean, const View& x, const View& document, std::int64_t block);
/// dx [T, N] adds to: the adjoint.
void block_mean_backward(const View& dx, const View& dmean, const View& document, std::int64_t block);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::block_mean) block_mean;
decltype(kernels::block_mean_backward) block_mean_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::block_mean) block_mean;
decltype(kernels::block_mean_backward) block_mean_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::block_mean) block_mean;
decltype(kernels::block_mean_backward) block_mean_backward;
}  // namespace cuda

}  // namespace capstan::kernels
