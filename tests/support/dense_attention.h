#pragma once
// Attention of one whole sequence, written from the formulas: O(T²), no tiles, no carry, no fixed point, nothing of the
// kernels but the data that they take. In f64 it is the oracle of the tile kernels and of the ring; in f32 the naive
// implementation whose error bounds theirs.
//
//   O_i = Σ_j m_ij softmax_j(l_ij) [v_j ; z_j],  LSE_i = ln Σ_j exp(l_ij)    over j ≤ i in the same document
//   l_ij = q_i·k_j / √D
//        + Σ_w interp(table_w,i, min(P, p_w,ij)),  p_w,ij = Σ_{k=j..i} g_w,ik       gated sums w = 0, 1
//        + δ_ij or interp(offset_table_i, clamp(δ_ij, 0, P)),  δ_ij = row_i - key_j
//        + relative_i[min(d, R)] + slope_h d + distance_table_h[min(d, N - 1)]      d = position_i - position_j
//        + out_bias_h + Σ_r out_hr relu(in_r x + in_bias_r)
//   x = ln(1 + |c| d) / (ln(1 + |c| max(position_i, |L|)) + 1e-6)
//   g_w,ik = e + (1 - e) σ(u), with b(t) = floor(t / block):
//        tokens      k in blocks b(k) > b(i) - window (or no window): u = gate_q_i·gate_k_k / √D
//        block_ends  k the last token of its block, b(k) ≤ b(i) - window: u = gate_q_i·gate_k_b(k) / √D
//   m_ij = 0 or 1 / (1 - rate): dropout, as kernels/dropout.h defines it

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention_tile.h"
#include "kernels/tensor.h"

namespace capstan::tests {

/// Tensors of the score terms, or their gradients; absent ones are absent terms.
struct TermTensors {
  kernels::Tensor table_1;                                          ///< [T, H, P + 1] of gated sum 1
  std::array<kernels::Tensor, kernels::gated_sums> gate_q, gate_k;  ///< [T, H, D]; [T, G, D] or [blocks, G, D]
  kernels::Tensor row_offset, key_offset;                           ///< [T, H], real numbers
  kernels::Tensor offset_table, relative;                           ///< [T, H, P + 1], [T, H, R + 1]
  kernels::Tensor slope, distance_table;                            ///< [H], [H, N]
  kernels::Tensor fire_in, fire_in_bias, fire_out, fire_out_bias, fire_scale;  ///< [R], [R], [H, R], [H], [2]

  /// f(tensor) for each that is there.
  template <class F> TermTensors map(const F& f) const {
    const auto of = [&](const kernels::Tensor& x) { return x ? f(x) : kernels::Tensor(); };
    return {of(table_1),
            {of(gate_q[0]), of(gate_q[1])},
            {of(gate_k[0]), of(gate_k[1])},
            of(row_offset),
            of(key_offset),
            of(offset_table),
            of(relative),
            of(slope),
            of(distance_table),
            of(fire_in),
            of(fire_in_bias),
            of(fire_out),
            of(fire_out_bias),
            of(fire_scale)};
  }
  /// All with their names, always in the same order.
  std::vector<std::pair<const char*, const kernels::Tensor*>> all() const;
};

/// What to attend to; all of one type on `ref`.
struct DenseInputs {
  kernels::View q;                     ///< [T, H, D]
  kernels::View k, v;                  ///< [T, G, D]
  kernels::View z;                     ///< [T, G, D] or absent
  kernels::View table;                 ///< [T, H, P + 1] of gated sum 0, or absent
  std::vector<std::int64_t> document;  ///< [T]
  const TermTensors& terms;
  std::array<kernels::GateRule, kernels::gated_sums> gates;
  std::vector<std::int64_t> position;  ///< [T]
  kernels::WeightDropout dropout;
};

struct DenseOutputs {
  kernels::Tensor o;    ///< [T, H, E], E = D, or 2D with z
  kernels::Tensor lse;  ///< [T, H]
};

struct DenseGradients {
  kernels::Tensor dq, dk, dv, dz, dtable;  ///< as the inputs; dz and dtable absent where these are
  TermTensors terms;                       ///< the same; no slope
};

DenseOutputs dense_attention(const DenseInputs& in);
/// Gradients of Σ d_o · o.
DenseGradients dense_attention_backward(const DenseInputs& in, const kernels::View& d_o);
/// How close anything comes to a place where the output has a kink: positions and offsets at integers, relu's arguments
/// at 0.
double distance_to_kinks(const DenseInputs& in);

/// A problem to try: extents and what the numbers are like.
struct AttentionShape {
  std::int64_t tokens = 0, heads = 1, groups = 1, depth = 8;
  bool z = false;
  std::int64_t npos = 0;                     ///< P + 1 of gated sum 0; 0: no such sum
  std::vector<std::int64_t> documents = {};  ///< lengths of the first documents; the last one takes the rest
  double gate_mean = 0;                      ///< of u_ij, whose other part is about normal
  std::array<kernels::GateRule, kernels::gated_sums> gates = {};   ///< sum 0 without a rule, yet with npos: plain CoPE
  std::int64_t npos_1 = 0;                                         ///< P + 1 of gated sum 1
  std::array<bool, kernels::gated_sums> gate_q = {}, gate_k = {};  ///< own ones; block_ends have a gate_k anyway
  bool offset = false;
  std::int64_t offset_npos = 0;                        ///< P + 1 of the offset table; 0: none
  std::int64_t relative = 0, distances = 0, fire = 0;  ///< R + 1, N, R (FIRE); 0: no such term
  bool slope = false, far_positions = false;           ///< far_positions: increasing, up to 2^40 apart (RandPE)
  double dropout = 0;
};

/// Its random numbers, f64 on `ref`, exact in f32, and the gradient of the output.
struct AttentionProblem {
  kernels::Tensor q, k, v, z, table, d_o;
  std::vector<std::int64_t> document;
  TermTensors terms = {};
  std::array<kernels::GateRule, kernels::gated_sums> gates = {};
  std::vector<std::int64_t> position = {};
  kernels::WeightDropout dropout = {};
  DenseInputs inputs() const { return {q, k, v, z, table, document, terms, gates, position, dropout}; }
  /// The same in another type, on `ref`.
  AttentionProblem cast(kernels::DType type) const;
};

AttentionProblem random_attention(const AttentionShape& shape, std::uint64_t seed);

/// Index and document of tokens [begin, end) as kernels take them.
kernels::Tensor index_rows(std::int64_t begin, std::int64_t end, kernels::Device device);
kernels::Tensor document_rows(const std::vector<std::int64_t>& document, std::int64_t begin, std::int64_t end,
                              kernels::Device device);

}  // namespace capstan::tests
