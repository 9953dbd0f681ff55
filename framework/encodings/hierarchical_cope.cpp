// Hierarchical CoPE: token gates in the row's own block of B tokens (and w - 1 before it), one gate per block beyond, each
// with a table of its own; nothing per pair in the far field. Blocks are global multiples of B, cut at document starts too.
//   H-B  block gates σ(s q·k̄_b), k̄_b the mean of W_b xn over the block; q is unrotated, since a mean of rotated keys would
//        have no position of its own. It equals plain CoPE where the window covers the sequence, and CoPE over the strict past
//        at B = 1 (tests assert both).
//   H-C  block gates σ(mean over the block of w_h·xn + b_h): they do not depend on the query, so that block positions are
//        differences of prefix sums and come in any order (parallel/offsets.h).

#include <cmath>

#include "framework/encodings/cope.h"
#include "kernels/linear.h"

namespace capstan::framework {

namespace {

class HierarchicalCope : public Cope {
 public:
  HierarchicalCope(const PositionConfig& position, const EncodingShape& shape)
      : Cope(position, shape), by_query_(position.block_gates == "query"),
        block_table_("block_table", position.block_positions, factor(), position.cope_shared) {}

  Claims claims() const override { return {.gates = true, .offset = !by_query_}; }

  void declare(Parameters& parameters) override {
    Cope::declare(parameters);
    block_table_.declare(parameters, shape_, position_.cope_every);
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.position.", layer);
      if (!is_on(int(layer))) {
        weights_.push_back(nullptr);
        biases_.push_back(nullptr);
      } else if (by_query_) {
        biases_.push_back(nullptr);
        weights_.push_back(&parameters.declare(prefix + "block_keys",
                                               {shape_.kv_heads * shape_.head_size, shape_.width}, Init::normal));
      } else {
        weights_.push_back(&parameters.declare(prefix + "block_gate", {shape_.heads, shape_.width}, Init::normal));
        biases_.push_back(&parameters.declare(prefix + "block_gate_bias", {shape_.heads}, Init::zero));
      }
    }
  }

  Prepared prepare(int layer, const Projections& in) override {
    Prepared out = Cope::prepare(layer, in);
    if (!is_on(layer)) return out;
    const std::int64_t tokens = in.xn.dim(0);
    const View& weight = weights_[std::size_t(layer)]->value;
    if (by_query_) {
      out.table[1] = block_table_.logits(layer, in.q);
      out.gate_k[1] = zeros_like(in.k);
      kernels::linear_forward(out.gate_k[1].view().reshape({tokens, weight.dim(0)}), in.xn, weight);
      return out;
    }
    out.offset_table = block_table_.logits(layer, in.q);
    out.offset_source = Tensor({tokens, shape_.heads}, in.xn.type(), in.xn.device());
    kernels::linear_forward(out.offset_source, in.xn, weight);
    kernels::with_real(in.xn.type(), [&](auto real) {
      using Real = decltype(real);
      const Real* bias = biases_[std::size_t(layer)]->value.template as<Real>();
      Real* a = out.offset_source.as<Real>();
      for (std::int64_t i = 0; i < tokens * shape_.heads; ++i) a[i] += bias[i % shape_.heads];
    });
    return out;
  }
  /// Two products in reverse: the block table's, and the block keys' or block gates'.
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    Cope::prepare_backward(layer, d, d_prepared, in);
    if (!is_on(layer)) return;
    const Parameter& weight = *weights_[std::size_t(layer)];
    const std::int64_t tokens = in.xn.dim(0);
    block_table_.logits_backward(layer, d.q, by_query_ ? d_prepared.table[1] : d_prepared.offset_table, in.q);
    const View d_out = by_query_ ? d_prepared.gate_k[1].reshape({tokens, weight.shape[0]}) : d_prepared.offset_source;
    kernels::linear_backward_input(d.xn, d_out, weight.value, kernels::Into::add);
    if (weight.grad) kernels::linear_backward_weight(weight.grad, d_out, in.xn);
    if (by_query_ || !biases_[std::size_t(layer)]->grad) return;
    kernels::with_real(in.xn.type(), [&](auto real) {
      using Real = decltype(real);
      Real* bias = biases_[std::size_t(layer)]->grad.template as<Real>();
      for (std::int64_t i = 0; i < tokens * shape_.heads; ++i) bias[i % shape_.heads] += d_out.as<Real>()[i];
    });
  }

  Terms terms(int layer) const override {
    Terms terms = Cope::terms(layer);
    if (!is_on(layer)) return terms;
    terms.gates[0].block = block();
    terms.gates[0].window = position_.block_window;
    if (by_query_) terms.gates[1] = {kernels::Gates::block_ends, position_.cope_floor, block(), position_.block_window};
    else terms.offset = {parallel::OffsetRule::block_gates, block()};
    return terms;
  }
  std::int64_t block() const override { return position_.block_size; }

 private:
  bool by_query_;  // H-B, else H-C
  RowTable block_table_;
  std::vector<Parameter*> weights_, biases_;  // per layer: [G D, C]; or [H, C] and [H]; null without CoPE
};

}  // namespace

std::unique_ptr<Encoding> make_hierarchical_cope(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<HierarchicalCope>(position, shape);
}

}  // namespace capstan::framework
