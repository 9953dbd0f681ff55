#include "framework/encodings/head_logits.h"

#include <algorithm>

#include "kernels/host_view.h"
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

namespace {

/// [N, 1]: the input whose weight is the bias.
Tensor ones(const View& xn) {
  Tensor made({xn.dim(0), 1}, xn.type(), kernels::filled_on(xn.device()), kernels::Fill::none);
  kernels::with_real(xn.type(),
                     [&](auto real) { std::fill_n(made.as<decltype(real)>(), xn.dim(0), decltype(real)(1)); });
  return kernels::moved_to(std::move(made), xn.device());
}

}  // namespace

Tensor HeadLogits::logits(int layer, const View& xn) const {
  const View &weight = weights_[std::size_t(layer)]->value, &bias = biases_[std::size_t(layer)]->value;
  const std::int64_t heads = bias.dim(0);
  Tensor u({xn.dim(0), heads}, xn.type(), xn.device());
  kernels::linear_forward(u, xn, weight);
  kernels::linear_forward(u, ones(xn), bias.reshape({heads, 1}), kernels::Into::add);
  return u;
}

/// u = W xn + b, so d_xn += W^T du, dW += du^T xn, db += Σ du.
void HeadLogits::backward(int layer, const View& d_xn, const View& d_logits, const View& xn) const {
  const Parameter &weight = *weights_[std::size_t(layer)], &bias = *biases_[std::size_t(layer)];
  kernels::linear_backward_input(d_xn, d_logits, weight.value, kernels::Into::add);
  if (weight.grad) kernels::linear_backward_weight(weight.grad, d_logits, xn);
  if (!bias.grad) return;
  kernels::linear_backward_weight(bias.grad.reshape({bias.shape[0], 1}), d_logits, ones(xn));
}

}  // namespace capstan::framework
