#pragma once
// Attention of one head over a very long sequence, and what is known of it by the global index alone: every input is a
// pure function of it, so that a rank makes its own rows and an oracle any row it wants.
//
//   cope           gates[0] = tokens; σ(u) is about a half, so that a row saturates (P = 63) after some 130 keys
//   hierarchical   gates[0] = tokens of the own block, gates[1] = block ends, with gate keys of their own; about 130
//                  blocks
//
// The tables are of rows: table_i[n] = q_i·e[n]. Where a position comes within `kink` of an integer, its derivative
// jumps and rounding alone decides what f32 gets: such rows have d_o = 0.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/ring_attention.h"

namespace capstan::tests {

enum class LongEncoding : std::uint8_t { cope, hierarchical };
std::string name_of(LongEncoding encoding);

struct LongProblem {
  static constexpr std::int64_t depth = 16, positions = 64, block = 256;
  static constexpr double kink = 3e-5;  ///< positions up to 63 in f32 are off by 1e-5 at most (notes/cope.md §4.3)
  LongEncoding encoding = LongEncoding::cope;
  std::int64_t tokens = 0;

  int sums() const { return encoding == LongEncoding::hierarchical ? 2 : 1; }
  kernels::AttentionSettings settings() const;
};

/// Keys of the whole sequence, for oracles.
struct LongKeys {
  std::vector<float> k, v;            ///< [T, D]
  std::vector<double> pooled;         ///< [blocks, D] means of gate_k
  std::vector<float> pooled_naively;  ///< the same in f32
  explicit LongKeys(const LongProblem& problem);
};

/// One rank's rows.
struct LongShard {
  kernels::Tensor q, k, v, d_o, gate_k;  ///< [1, T, 1, D]
  std::array<kernels::Tensor, 2> table;  ///< [1, T, 1, P + 1]
  kernels::Tensor index, document;       ///< [1, T]
  LongShard(const LongProblem& problem, const std::vector<std::int64_t>& own);
  std::int64_t tokens() const { return index.shape()[1]; }
  parallel::RingInputs inputs() const;
};

/// interp(table, x) = (1 - w) table[⌊x⌋] + w table[⌈x⌉] and its derivatives.
template <class Real> struct LongPlace {
  std::int64_t below, above;
  Real w;
  explicit LongPlace(Real x)
      : below(std::int64_t(std::floor(x))), above(std::int64_t(std::ceil(x))), w(x - std::floor(x)) {}
  Real value(const float* table) const { return (1 - w) * Real(table[below]) + w * Real(table[above]); }
  Real slope(const float* table) const { return Real(table[above]) - Real(table[below]); }
  void add_to(Real* d_table, Real d) const {
    d_table[below] += (1 - w) * d;
    d_table[above] += w * d;
  }
};

/// In four parts, so that the compiler can use SIMD.
template <class Real, class A, class B> Real long_dot(const A* a, const B* b) {
  Real sum[4] = {};
  for (std::int64_t d = 0; d < LongProblem::depth; d += 4)
    for (int n = 0; n < 4; ++n) sum[n] += Real(a[d + n]) * Real(b[d + n]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// One query row, from the formulas: gates are summed near → far until the position is P.
template <class Real> class LongRow {
 public:
  static constexpr std::int64_t last = LongProblem::positions - 1;
  std::int64_t i;
  const float* q;
  std::array<const float*, 2> table = {};
  /// Gated sum 0: entry n belongs to key i - n. Sum 1: to block b(i) - 1 - n. Farther keys are all at `far`.
  std::array<std::vector<Real>, 2> gate, sum;
  std::array<Real, 2> far = {};

  LongRow(const LongProblem& problem, const LongKeys& keys, std::int64_t i_in, const float* q_in)
      : i(i_in), q(q_in), problem_(problem), keys_(keys) {
    const std::int64_t first = problem.sums() == 1 ? 0 : i / LongProblem::block * LongProblem::block;
    for (std::int64_t j = i; j >= first && add_gate(0, key(j));) --j;
    if (problem.sums() == 1) return;
    for (std::int64_t b = i / LongProblem::block - 1; b >= 0 && add_gate(1, block_key(b));) --b;
  }

  const float* key(std::int64_t j) const { return keys_.k.data() + j * LongProblem::depth; }
  const float* value(std::int64_t j) const { return keys_.v.data() + j * LongProblem::depth; }
  const Real* block_key(std::int64_t b) const {
    if constexpr (std::is_same_v<Real, float>) return keys_.pooled_naively.data() + b * LongProblem::depth;
    else return keys_.pooled.data() + b * LongProblem::depth;
  }
  int sums() const { return problem_.sums(); }
  static Real scale() { return 1 / std::sqrt(Real(LongProblem::depth)); }

  /// Which gate of a sum is the first one between the row and key j: negative, none; at the end of `gate` or beyond,
  /// not summed.
  std::int64_t entry(int which, std::int64_t j) const {
    return which == 0 ? i - j : i / LongProblem::block - 1 - j / LongProblem::block;
  }
  bool has_gate(int which, std::int64_t entry) const { return entry >= 0 && entry < std::ssize(gate[which]); }
  Real position(int which, std::int64_t j) const {
    const std::int64_t n = entry(which, j);
    return n < 0 ? 0 : n < std::ssize(sum[which]) ? std::min(Real(last), sum[which][n]) : far[which];
  }
  /// First key of the farthest ones that are not yet at P.
  std::int64_t first_unsaturated(int which) const {
    if (far[which] < Real(last)) return 0;
    const std::int64_t n = std::ssize(gate[which]) - 1;
    return which == 0 ? i - n : (i / LongProblem::block - 1 - n) * LongProblem::block;
  }
  Real logit(std::int64_t j) const {
    Real out = long_dot<Real>(q, key(j)) * scale();
    for (int which = 0; which < sums(); ++which) out += LongPlace<Real>(position(which, j)).value(table[which]);
    return out;
  }
  bool near_kink() const {
    for (const std::vector<Real>& one : sum)
      for (Real x : one)
        if (std::abs(x - std::round(x)) < Real(LongProblem::kink)) return true;
    return false;
  }

 private:
  /// False once the sum is at P.
  template <class K> bool add_gate(int which, const K* gate_key) {
    const Real g = 1 / (1 + std::exp(-long_dot<Real>(q, gate_key) * scale()));
    const Real before = sum[which].empty() ? 0 : sum[which].back();
    gate[which].push_back(g);
    sum[which].push_back(before + g);
    far[which] = std::min(Real(last), before + g);
    return far[which] < Real(last);
  }

  const LongProblem& problem_;
  const LongKeys& keys_;
};

}  // namespace capstan::tests
