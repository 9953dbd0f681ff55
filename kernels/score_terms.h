#pragma once
// What a position encoding may add to a logit, beside s q·k. All terms are optional and add up, in this order:
//
//   gated sum 0, 1   interp(table_i, min(P, p_ij))              CoPE; hierarchical CoPE has two. *Carried*: near → far only
//   offset           δ_ij = row_i - key_j, as it is, or through  FoX; through a row table: hierarchical CoPE, H-C
//                    interp(offset_table_i, clamp(δ_ij, 0, P))
//   relative         relative_i[min(d_ij, R)]                    Shaw's logits q_i·e[d]
//   distance         slope_h d_ij + distance_table_h[min(d_ij, N-1)]        ALiBi, T5
//   function         f_h(d_ij, position_i), a small network       FIRE
//
// with d_ij = position_i - position_j and interp(t, x) = (1 - w) t[floor x] + w t[ceil x], w = x - floor x.
// All but the gated sums are free of order: keys may come in any. Views of one row, [T, …] tokens of one sequence.
//
// A gated sum: p_ij = Σ_{k=j..i} g_ik, with g = floor + (1 - floor) σ(u) where the row has a gate at key k, else 0.
//   tokens      every allowed key whose block is one of the row's last `window` (window 0: every allowed key);
//               u_ik = s gate_q_i·gate_k_k
//   block_ends  one gate per block, met at the block's last token, for the blocks before those `window` ones;
//               u_ib = s gate_q_i·gate_k_b, gate_k_b pooled over the block (kernels/block_pool.h)
// Blocks are global multiples of `block`: key j lies in block floor(index_j / block).

#include <array>
#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::kernels {

enum class Gates : std::uint8_t { none, tokens, block_ends };

struct GateRule {
  Gates gates = Gates::none;
  double floor = 0;         ///< least gate, in [0, 1)
  std::int64_t block = 0;   ///< tokens per block; 0: no blocks
  std::int64_t window = 0;  ///< blocks, see above; 0 only without blocks
};

constexpr int gated_sums = 2;

/// What the rows bring; stays with the queries. Absent views: no such term. Tables are wide (kernels/tensor.h), gate_q has q's
/// type or is wide. In gradients the same fields, wide, which all add to; an absent gradient of a present term: not wanted.
struct RowTerms {
  std::array<View, gated_sums> table;   ///< [T, H, P + 1]
  std::array<View, gated_sums> gate_q;  ///< [T, H, D]; absent: q
  View offset;                          ///< [T, H] i64, unit 2^-gate_fraction_bits (gradient: real)
  View offset_table;                    ///< [T, H, P + 1]
  View relative;                        ///< [T, H, R + 1]

  /// f(view) on every field, as the fields of a new RowTerms.
  template <class F> RowTerms map(F&& f) const {
    return {{f(table[0]), f(table[1])}, {f(gate_q[0]), f(gate_q[1])}, f(offset), f(offset_table), f(relative)};
  }
};

/// What travels with the keys; gate_k has k's type or is wide. A gradient's gate_k may be the same memory as dk or dv.
struct KeyTerms {
  std::array<View, gated_sums> gate_k;  ///< tokens: [T, G, D], absent: k; block_ends: [ceil(T / block), G, D]
  View offset;                          ///< [T, H] i64 (gradient: real)

  template <class F> KeyTerms map(F&& f) const { return {{f(gate_k[0]), f(gate_k[1])}, f(offset)}; }
};

/// FIRE (Li et al., arXiv 2310.04418): f_h(d, i) = out_bias_h + Σ_r out_hr relu(in_r x + in_bias_r) with
/// x = ln(1 + |c| d) / (ln(1 + |c| max(i, |L|)) + 1e-6), scale = (c, L).
struct FireTerm {
  View in, in_bias;  ///< [R]
  View out;          ///< [H, R]
  View out_bias;     ///< [H]
  View scale;        ///< [2]
};

/// Weights that all rows share, wide.
struct SharedTerms {
  View slope;           ///< [H]; has no gradient
  View distance_table;  ///< [H, N]
  FireTerm fire;        ///< absent: `in` is absent
};

}  // namespace capstan::kernels
