#include "framework/encodings/row_table.h"

#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace capstan::framework {

void RowTable::declare(Parameters& parameters, const EncodingShape& shape, std::int64_t every) {
  const auto own = [&](const std::string& where) {
    return &parameters.declare(where + ".position." + name_, {rows_, shape.head_size}, Init::zero);
  };
  if (shared_) {
    tables_.push_back(own("model"));
    return;
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    tables_.push_back((layer + 1) % every == 0 ? own(fmt::format("model.layers.{}", layer)) : nullptr);
}

/// z = factor q e^T, one product for all heads.
Tensor RowTable::logits(int layer, const View& q) const {
  const std::int64_t tokens = q.dim(0), heads = q.dim(1), depth = q.dim(2);
  Tensor z({tokens, heads, rows_}, q.type(), q.device());
  kernels::linear_forward(z.view().reshape({tokens * heads, rows_}), q.reshape({tokens * heads, depth}),
                          of(layer).value);
  if (factor_ != 1) kernels::scale(z, factor_);
  return z;
}

/// z = factor q e^T, so dq += factor dz e and de += factor dz^T q.
void RowTable::logits_backward(int layer, const View& dq, const View& d_logits, const View& q) const {
  const std::int64_t rows = q.dim(0) * q.dim(1), depth = q.dim(2);
  const Parameter& table = of(layer);
  Tensor scaled;
  if (factor_ != 1) {
    scaled = zeros_like(d_logits);
    scaled.view().copy_from(d_logits);
    kernels::scale(scaled, factor_);
  }
  const View dz = (scaled ? scaled.view() : d_logits).reshape({rows, rows_});
  kernels::linear_backward_input(dq.reshape({rows, depth}), dz, table.value, kernels::Into::add);
  if (table.grad) kernels::linear_backward_weight(table.grad, dz, q.reshape({rows, depth}));
}

}  // namespace capstan::framework
