// CoPE (Golovneva et al., arXiv 2405.18719, §4). A position is the sum of gates σ(q·k) from the key to the query; the table logit
// z_i[n] = q_i · e[n] (eq. 5) is interpolated there (kernels/terms/cope.h). One table per layer, shared by the heads, zero at
// first: with rope+cope the model starts bit for bit as the RoPE model. q is taken before any rotation: a rotated q would make
// z depend on the absolute position. Gates use the attention keys, rotated when composed with rope.

#include "framework/encoding.h"
#include "kernels/linear.h"

namespace capstan::framework {

namespace {

class Cope : public Encoding {
 public:
  Cope(const PositionConfig& position, const EncodingShape& shape) : rows_(position.cope_positions), shape_(shape) {}

  void declare(Parameters& parameters) override {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
      tables_.push_back(&parameters.declare(fmt::format("model.layers.{}.position.table", layer),
                                            {rows_, shape_.head_size}, Init::zero));
  }

  kernels::TermKind term() const override { return kernels::TermKind::cope; }

  /// z [N, H, P + 1] = q e^T, one product for all heads.
  Tensor prepare(int layer, const View& q) override {
    const std::int64_t tokens = q.dim(0), heads = q.dim(1);
    Tensor z({tokens, heads, rows_}, q.type(), q.device());
    kernels::linear_forward(z.view().reshape({tokens * heads, rows_}), q.reshape({tokens * heads, shape_.head_size}),
                            tables_[layer]->value);
    return z;
  }
  /// z = q e^T, so dq += dz e and de += dz^T q.
  void prepare_backward(int layer, const View& dq, const View& dtable, const View& q) override {
    const std::int64_t rows = q.dim(0) * q.dim(1);
    const View dz = dtable.reshape({rows, rows_}), q_rows = q.reshape({rows, shape_.head_size});
    kernels::linear_backward_input(dq.reshape({rows, shape_.head_size}), dz, tables_[layer]->value, kernels::Into::add);
    if (tables_[layer]->grad) kernels::linear_backward_weight(tables_[layer]->grad, dz, q_rows);
  }

 private:
  std::int64_t rows_;  // npos = P + 1
  EncodingShape shape_;
  std::vector<Parameter*> tables_;  // per layer, [npos, D]
};

}  // namespace

std::unique_ptr<Encoding> make_cope(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Cope>(position, shape);
}

}  // namespace capstan::framework
