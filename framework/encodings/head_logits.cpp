#include "framework/encodings/head_logits.h"

#include "kernels/linear.h"

namespace capstan::framework {

void HeadLogits::declare(Parameters& parameters, const EncodingShape& shape, const std::string& name,
                         std::int64_t every) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const bool has = (layer + 1) % every == 0;
    const std::string own = fmt::format("model.layers.{}.position.{}", layer, name);
    weights_.push_back(has ? &parameters.declare(own, {shape.heads, shape.width}, Init::normal) : nullptr);
    biases_.push_back(has ? &parameters.declare(own + "_bias", {shape.heads}, Init::zero) : nullptr);
  }
}

Tensor HeadLogits::logits(int layer, const View& xn) const {
  const View &weight = weights_[std::size_t(layer)]->value, &bias = biases_[std::size_t(layer)]->value;
  const std::int64_t heads = bias.dim(0);
  Tensor u({xn.dim(0), heads}, xn.type(), xn.device());
  kernels::linear_forward(u, xn, weight);
  kernels::with_real(xn.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < u.view().elements(); ++i) u.as<Real>()[i] += bias.as<Real>()[i % heads];
  });
  return u;
}

/// u = W xn + b, so d_xn += W^T du, dW += du^T xn, db += Σ du.
void HeadLogits::backward(int layer, const View& d_xn, const View& d_logits, const View& xn) const {
  const Parameter &weight = *weights_[std::size_t(layer)], &bias = *biases_[std::size_t(layer)];
  kernels::linear_backward_input(d_xn, d_logits, weight.value, kernels::Into::add);
  if (weight.grad) kernels::linear_backward_weight(weight.grad, d_logits, xn);
  if (!bias.grad) return;
  const std::int64_t heads = bias.shape[0];
  kernels::with_real(xn.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < d_logits.elements(); ++i) bias.grad.as<Real>()[i % heads] += d_logits.as<Real>()[i];
  });
}

}  // namespace capstan::framework
