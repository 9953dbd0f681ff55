// Hierarchical CoPE: token gates in the row's own block of B tokens (and w - 1 before it), one gate per block beyond, each
// with a table of its own; nothing per pair in the far field. Blocks are global multiples of B, cut at document starts too.
//   H-B  block gates σ(s q·k̄_b), k̄_b the mean of W_b xn over the block; q is unrotated, since a mean of rotated keys would
//        have no position of its own. It equals plain CoPE where the window covers the sequence, and CoPE over the strict past
//        at B = 1 (tests assert both).
//   H-C  block gates σ(mean over the block of w_h·xn + b_h): they do not depend on the query, so that block positions are
//        differences of prefix sums and come in any order (parallel/offsets.h).

#include "framework/encodings/cope.h"
#include "framework/encodings/head_logits.h"
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
    if (!by_query_) return gates_.declare(parameters, shape_, "block_gate", position_.cope_every);
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
      keys_.push_back(is_on(int(layer))
                          ? &parameters.declare(fmt::format("model.layers.{}.position.block_keys", layer),
                                                {shape_.kv_heads * shape_.head_size, shape_.width}, Init::normal)
                          : nullptr);
  }

  Prepared prepare(int layer, const Projections& in) override {
    Prepared out = Cope::prepare(layer, in);
    if (!is_on(layer)) return out;
    if (by_query_) {
      const View& weight = keys_[std::size_t(layer)]->value;
      out.table[1] = block_table_.logits(layer, in.q);
      out.gate_k[1] = zeros_like(in.k);
      kernels::linear_forward(out.gate_k[1].view().reshape({in.xn.dim(0), weight.dim(0)}), in.xn, weight);
    } else {
      out.offset_table = block_table_.logits(layer, in.q);
      out.offset_source = gates_.logits(layer, in.xn);
    }
    return out;
  }
  /// Two products in reverse: the block table's, and the block keys' or block gates'.
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    Cope::prepare_backward(layer, d, d_prepared, in);
    if (!is_on(layer)) return;
    block_table_.logits_backward(layer, d.q, by_query_ ? d_prepared.table[1] : d_prepared.offset_table, in.q);
    if (!by_query_) return gates_.backward(layer, d.xn, d_prepared.offset_source, in.xn);
    const Parameter& weight = *keys_[std::size_t(layer)];
    const View d_keys = d_prepared.gate_k[1].reshape({in.xn.dim(0), weight.shape[0]});
    kernels::linear_backward_input(d.xn, d_keys, weight.value, kernels::Into::add);
    if (weight.grad) kernels::linear_backward_weight(weight.grad, d_keys, in.xn);
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
  /// CoPE's, the block table's logits, and the projection to block keys or block gates.
  Arithmetic arithmetic(int layer) const override {
    Arithmetic flops = Cope::arithmetic(layer);
    if (!is_on(layer)) return flops;
    const double heads = double(shape_.heads), width = double(shape_.head_size);
    flops.per_token += 2 * heads * width * double(position_.block_positions);
    flops.per_token += 2 * double(shape_.width) * (by_query_ ? double(shape_.kv_heads) * width : heads);
    return flops;
  }

 private:
  bool by_query_;  // H-B, else H-C
  RowTable block_table_;
  std::vector<Parameter*> keys_;  // H-B: per layer [G D, C], null without CoPE
  HeadLogits gates_;              // H-C
};

}  // namespace

std::unique_ptr<Encoding> make_hierarchical_cope(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<HierarchicalCope>(position, shape);
}

}  // namespace capstan::framework
