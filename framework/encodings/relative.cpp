// Relative logits (Shaw et al., arXiv 1803.02155, eq. 5, keys only; the "rel" of CoPE's paper): logit += q_i · e[min(d, R)],
// one table per layer or one for all, shared by the heads. q is taken before any rotation.

#include "framework/encoding.h"
#include "framework/encodings/row_table.h"

namespace capstan::framework {

namespace {

class Relative : public Encoding {
 public:
  Relative(const PositionConfig& position, const EncodingShape& shape)
      : rows_(position.relative_positions), table_("relative", rows_, 1, position.relative_shared), shape_(shape) {}

  Claims claims() const override { return {.relative = true}; }
  void declare(Parameters& parameters) override { table_.declare(parameters, shape_); }

  Prepared prepare(int layer, const Projections& in) override {
    Prepared out;
    out.relative = table_.logits(layer, in.q);
    return out;
  }
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    table_.logits_backward(layer, d.q, d_prepared.relative, in.q);
  }

  Arithmetic arithmetic(int) const override {
    return {2 * double(shape_.heads) * double(shape_.head_size) * double(rows_), 0};
  }

 private:
  std::int64_t rows_;
  RowTable table_;
  EncodingShape shape_;
};

}  // namespace

std::unique_ptr<Encoding> make_relative(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Relative>(position, shape);
}

}  // namespace capstan::framework
