#pragma once
// Reverse-mode differentiation of scalars. A node is a value and what its gradient passes on to its inputs:
//   terms (input, ∂value/∂input), stored as numbers, or, for long sums of products,
//   pairs (a, b) of value = scale Σ a b, whose derivatives are the values of the other factors.
// Real: double, float for a plain implementation in it, or long double for finite differences that do not drown in rounding.
// A narrow tape rounds what is `stored`, and the gradients that come back to it, to bfloat16: the same formulas as a
// plain implementation would store them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace capstan::tests {

template <class Real> class OracleTape {
 public:
  using Id = std::uint32_t;
  using Ids = std::span<const Id>;

  /// Without `recorded`, values only: no backward.
  explicit OracleTape(bool recorded = true, bool narrow = false) : recorded_(recorded), narrow_(narrow) {}

  Real value(Id x) const { return values_[x]; }
  std::size_t size() const { return values_.size(); }

  Id leaf(Real value) { return close(value); }

  Id dot(Ids a, Ids b, Real scale = 1);                     ///< scale Σ a b
  Id products(Id a, Id b, Id c, Id d, Real sign);           ///< a b + sign c d
  Id product(Id a, Id b) { return dot({&a, 1}, {&b, 1}); }  ///< a b
  Id product(Id a, Id b, Id c);                             ///< a b c
  Id quotient(Id a, Id b);                                  ///< a / b
  Id stored(Id x);                                          ///< x, on a narrow tape rounded to bfloat16
  Id linear(Id a, Real u, Id b, Real v);                    ///< u a + v b
  Id linear(Id a, Real u, Real constant = 0);               ///< u a + constant
  Id add(Id a, Id b) { return linear(a, 1, b, 1); }
  Id sum(Ids x, Real scale = 1);  ///< scale Σ x

  Id sigmoid(Id x);                  ///< 1 / (1 + e^-x)
  Id log_sigmoid(Id x);              ///< ln σ(x)
  Id silu(Id x);                     ///< x σ(x)
  Id gelu(Id x);                     ///< x Φ(x), Φ the normal distribution
  Id relu(Id x);                     ///< max(0, x)
  Id capped(Id x, Real cap);         ///< min(cap, x); gradient only below the cap
  Id exp_difference(Id a, Id b);     ///< e^(a - b)
  Id log_sum_exp(Ids x);             ///< ln Σ e^x
  Id inverse_rms(Ids x, Real eps);   ///< 1 / √(mean x² + eps)
  Id mix(Id p, Id below, Id above);  ///< (1 - w) below + w above, w = p - ⌊p⌋: derivatives w.r.t. p, below, above
  Id log_distance(Id c, Real d);     ///< ln(1 + |c| d)
  Id log_range(Id c, Id l, Real d, Real offset);  ///< ln(1 + |c| max(d, |l|)) + offset; to l only where |l| > d

  /// ∂output/∂x of every node x, from here on in adjoint().
  void backward(Id output);
  Real adjoint(Id x) const { return adjoints_[x]; }

 private:
  struct Node {
    Real scale;
    std::size_t terms, pairs;  ///< ends of its ranges; they begin where the node before ends
    bool stored = false;
  };
  struct Term {
    Id input;
    Real partial;
  };
  struct Pair {
    Id a, b;
  };

  void term(Id input, Real partial) {
    if (recorded_) terms_.push_back({input, partial});
  }
  Id close(Real value, Real scale = 0);  ///< the terms and pairs since the last node become those of a new node

  const bool recorded_, narrow_;
  std::vector<Real> values_;
  std::vector<Node> nodes_;
  std::vector<Term> terms_;
  std::vector<Pair> pairs_;
  std::vector<Real> adjoints_;
};

extern template class OracleTape<float>;
extern template class OracleTape<double>;
extern template class OracleTape<long double>;

}  // namespace capstan::tests
