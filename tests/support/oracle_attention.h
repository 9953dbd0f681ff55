#pragma once
// Attention of one sequence in one layer of the oracle, every row against every earlier token. With d = pos_i - pos_j:
//
//   rope (arXiv 2104.09864)  z = amplitude exp(i pos freq_f) for the pair (f, f + D/2):  q' = q z, k' = k z
//   xpos (2212.10554)        also q' ζ_f^((pos - centre) / scale), k' ζ_f^-(the same), ζ_f = (2f/D + 0.4) / 1.4
//   tape (2501.00712)        q' = q z_i^g, k' = k z_j^g with the state z of the layer
//   relative (1803.02155)    bias += q_i·e[min(d, R)]
//   alibi (2108.12409)       bias -= m_h d
//   t5 (1910.10683)          bias += buckets[bucket(d)][h]
//   fire (2310.04418)        bias += o_h + Σ_r out_hr relu(in_r x + b_r),
//                            x = ln(1 + |c| d) / (ln(1 + |c| max(pos_i, |L|)) + 1e-6)
//   forget (2503.02130)      bias += Σ_(l = j+1..i) ln σ(w_h·xn_l + b_h)
//   cope (2405.18719)        bias += Z_i(min(P, Σ_(k = j..i) g_ik)),  g_ik = e + (1 - e) σ(s gq_i·κ_k),
//                            Z_i[n] = λ q_i·e[n], Z_i(p) between two entries linear
//   hierarchical_cope        as cope, but only keys k with b(k) > b(i) - w have gates; the other ones count by blocks:
//                            bias += Zb_i(min(P_b, Σ_(b = b(j)..b(i)-w) Γ_ib)),  Zb_i[n] = λ q_i·eb[n],
//                            Γ_ib = e + (1 - e) σ(s q_i·mean_j(W_b xn_j))  or  Γ_bh = σ(mean_j(w_h·xn_j) + b_h),
//                            means over those of the block's B tokens j that are in the document of its last token
//
// q, k, gq, κ without a dash: not rotated; gq, κ: also rotated, if so set.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/support/oracle_model.h"
#include "tests/support/oracle_tape.h"

namespace capstan::tests {

/// What all layers of one sequence share.
template <class Real> struct OracleContext {
  using Id = typename OracleTape<Real>::Id;
  using Ids = std::span<const Id>;
  using Row = std::vector<Id>;
  using Rows = std::vector<Row>;  ///< [tokens] of numbers on the tape

  const OracleModel& model;
  const OraclePosition& position;
  const OracleSequence& sequence;
  OracleTape<Real> tape;
  std::map<std::string, Row> parameters = {};
  std::vector<Real> frequencies = {};  ///< [D/2] of the rotations

  std::int64_t tokens() const { return std::int64_t(sequence.tokens.size()); }
  Ids parameter(const std::string& name) const { return parameters.at(name); }
  /// model.layers.N.name
  Ids parameter(std::int64_t layer, const std::string& name) const {
    return parameters.at("model.layers." + std::to_string(layer) + "." + name);
  }
  /// x as an implementation in bf16 stores it; x itself on an ordinary tape.
  Rows stored(Rows x) {
    for (Row& row : x)
      for (Id& each : row) each = tape.stored(each);
    return x;
  }
  /// y_t = W x_t, W [rows, |x|]
  Rows times(Ids matrix, const Rows& x) {
    Rows y(x.size());
    for (std::size_t t = 0; t < x.size(); ++t) {
      y[t].reserve(matrix.size() / x[t].size());
      for (std::size_t at = 0; at < matrix.size(); at += x[t].size())
        y[t].push_back(tape.dot(matrix.subspan(at, x[t].size()), x[t]));
    }
    return y;
  }
  /// W x + b of the layer's linear layer `name`; b where the model has one
  Rows linear(std::int64_t layer, const std::string& name, const Rows& x) {
    Rows y = times(parameter(layer, name + ".weight"), x);
    const auto bias = parameters.find("model.layers." + std::to_string(layer) + "." + name + ".bias");
    if (bias == parameters.end()) return y;
    for (Row& row : y)
      for (std::size_t n = 0; n < row.size(); ++n) row[n] = tape.add(row[n], bias->second[n]);
    return y;
  }
  /// rms(x; weight)
  Rows normed(Ids weight, const Rows& x) {
    Rows y(x.size());
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Id r = tape.inverse_rms(x[t], Real(model.norm_eps));
      for (std::size_t c = 0; c < weight.size(); ++c) y[t].push_back(tape.product(x[t][c], r, weight[c]));
    }
    return y;
  }
};

template <class Real> class OracleAttention {
 public:
  using Context = OracleContext<Real>;
  using Id = typename Context::Id;
  using Ids = typename Context::Ids;
  using Row = typename Context::Row;
  using Rows = typename Context::Rows;

  /// xn [C], and with tape z [G D], of each token.
  OracleAttention(Context& context, std::int64_t layer, const Rows& xn, const Rows& z);
  void run();
  Rows mean_values;  ///< [H D]: Σ_j A_ij v_j
  Rows mean_states;  ///< [G D]: with tape, Σ_j A_ij z_j, averaged over the group's heads

 private:
  /// One row of one head.
  struct At {
    std::int64_t i, h, g, first;  ///< query, its head, the key head, the first token that it sees
  };

  Ids own(const std::string& name) const { return context_.parameter(layer_, "position." + name); }
  Ids part(const Rows& x, std::int64_t t, std::int64_t head) const { return Ids(x[t]).subspan(head * depth_, depth_); }
  std::int64_t distance(std::int64_t i, std::int64_t j) const { return sequence_.position[i] - sequence_.position[j]; }
  std::int64_t block(std::int64_t j) const { return j / position_.block_size; }
  void add(Row& logit, const At& at, std::int64_t j, Id bias) {
    logit[j - at.first] = tape_.add(logit[j - at.first], bias);
  }

  Rows rotated(const Rows& x, bool query);
  void choose_biases();
  void prepare_cope();
  void prepare_blocks();
  void attend(const At& at);
  void add_relative(const At& at, Row& logit);
  void add_alibi(const At& at, Row& logit);
  void add_t5(const At& at, Row& logit);
  void add_fire(const At& at, Row& logit);
  void add_forget(const At& at, Row& logit);
  void add_cope(const At& at, Row& logit);
  void add_blocks(const At& at, Row& logit);
  void make_fire_features(const At& at);
  Id cope_gate(Id logit);
  Id block_gate(const At& at, std::int64_t b);
  Id cope_entry(const At& at, std::int64_t n);
  template <class Entry> Id between(Row& made, Id p, const Entry& entry);

  Context& context_;
  OracleTape<Real>& tape_;
  const OracleModel& model_;
  const OraclePosition& position_;
  const OracleSequence& sequence_;
  const std::int64_t layer_, depth_;
  const Real scale_;
  const Rows &xn_, &z_;
  bool cope_ = false, blocks_ = false;                              ///< in this layer
  std::vector<void (OracleAttention::*)(const At&, Row&)> biases_;  ///< those that the encoding has in this layer

  Rows q_, k_, v_, turned_q_, turned_k_;
  Rows keys_;  ///< κ
  const Rows* gate_queries_ = nullptr;
  Rows fire_features_;  ///< [first..i][width]
  Rows forget_;         ///< ln σ(...), [tokens][H]
  Rows block_means_;    ///< of each whole block: [G D] keys, or [H] gates
  std::vector<double> slopes_;
};

extern template class OracleAttention<float>;
extern template class OracleAttention<double>;
extern template class OracleAttention<long double>;

}  // namespace capstan::tests
