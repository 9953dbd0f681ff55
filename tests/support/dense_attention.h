#pragma once
// Attention of one whole sequence, written from the formulas: O(T²), no tiles, no carry, no fixed point, nothing of the
// kernels. In f64 it is the oracle of the tile kernels and of the ring; in f32 the naive implementation whose error
// bounds theirs.
//
//   u_ij = q_i·k_j / √D          for j ≤ i in the same document
//   p_ij = min(P, Σ_{k=j..i} σ(u_ik)),  bias_ij = table_i interpolated at p_ij   (CoPE, arXiv 2405.18719 §4; else 0)
//   O_i  = Σ_j softmax_j(u_ij + bias_ij) [v_j ; z_j],   LSE_i = ln Σ_j exp(u_ij + bias_ij)

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::tests {

/// What to attend to; all of one type on `ref`.
struct DenseInputs {
  kernels::View q;                     ///< [T, H, D]
  kernels::View k, v;                  ///< [T, G, D]
  kernels::View z;                     ///< [T, G, D] or absent
  kernels::View table;                 ///< [T, H, P + 1] (CoPE) or absent
  std::vector<std::int64_t> document;  ///< [T]
};

struct DenseOutputs {
  kernels::Tensor o;    ///< [T, H, E], E = D, or 2D with z
  kernels::Tensor lse;  ///< [T, H]
};

struct DenseGradients {
  kernels::Tensor dq, dk, dv, dz, dtable;  ///< as the inputs; dz and dtable absent where these are
};

DenseOutputs dense_attention(const DenseInputs& in);
/// Gradients of Σ d_o · o.
DenseGradients dense_attention_backward(const DenseInputs& in, const kernels::View& d_o);

/// A problem to try: extents and what the numbers are like.
struct AttentionShape {
  std::int64_t tokens = 0, heads = 1, groups = 1, depth = 8;
  bool z = false;
  std::int64_t npos = 0;                     ///< P + 1; 0: no CoPE
  std::vector<std::int64_t> documents = {};  ///< lengths of the first documents; the last one takes the rest
  double gate_mean = 0;                      ///< of u_ij, whose other part is about normal
};

/// Its random numbers, f64 on `ref`, exact in f32, and the gradient of the output.
struct AttentionProblem {
  kernels::Tensor q, k, v, z, table, d_o;
  std::vector<std::int64_t> document;
  DenseInputs inputs() const { return {q, k, v, z, table, document}; }
};

AttentionProblem random_attention(const AttentionShape& shape, std::uint64_t seed);

/// Index and document of tokens [begin, end) as kernels take them.
kernels::Tensor index_rows(std::int64_t begin, std::int64_t end, kernels::Device device);
kernels::Tensor document_rows(const std::vector<std::int64_t>& document, std::int64_t begin, std::int64_t end,
                              kernels::Device device);

}  // namespace capstan::tests
