#include "framework/linear.h"

#include "kernels/bias.h"
#include "kernels/elementwise.h"

namespace capstan::framework {

using kernels::Fill;
using kernels::Into;

Linear::Linear(const ModelConfig& config, const std::string& name, std::int64_t out, std::int64_t in, bool bias,
               Parameters& parameters)
    : weight_(parameters.declare(name + ".weight", {out, in}, Init::normal)) {
  if (bias) bias_ = &parameters.declare(name + ".bias", {out}, Init::zero);
  if (config.lora_rank == 0 || !matches_any(name, config.lora_targets)) return;
  a_ = &parameters.declare(name + ".lora_A", {config.lora_rank, in}, Init::normal);
  b_ = &parameters.declare(name + ".lora_B", {out, config.lora_rank}, Init::zero);
  scale_ = config.lora_alpha / double(config.lora_rank);
}

/// s x w^T [N, rows of w], or s x w [N, columns of w].
Tensor Linear::scaled_product(const View& x, const View& w, bool transposed) const {
  Tensor h({x.dim(0), w.dim(transposed ? 0 : 1)}, x.type(), x.device(), Fill::none);
  if (transposed) kernels::linear_forward(h, x, w);
  else kernels::linear_backward_input(h, x, w);
  kernels::scale(h, scale_);
  return h;
}

void Linear::forward(const View& y, const View& x, Into into) const {
  // The bias comes first: the product is added to it before it is rounded.
  if (bias_) kernels::bias_forward(y, bias_->value, into);
  kernels::linear_forward(y, x, weight_.value, bias_ ? Into::add : into);
  if (a_) kernels::linear_forward(y, scaled_product(x, a_->value, true), b_->value, Into::add);
}

void Linear::backward_input(const View& dx, const View& dy, Into into) const {
  kernels::linear_backward_input(dx, dy, weight_.value, into);
  if (a_) kernels::linear_backward_input(dx, scaled_product(dy, b_->value, false), a_->value, Into::add);
}

void Linear::backward_weight(const View& dy, const View& x) const {
  if (weight_.grad) kernels::linear_backward_weight(weight_.grad, dy, x);
  if (bias_ && bias_->grad) kernels::bias_backward(bias_->grad, dy);
  if (!a_) return;
  if (b_->grad) kernels::linear_backward_weight(b_->grad, dy, scaled_product(x, a_->value, true));
  if (a_->grad) kernels::linear_backward_weight(a_->grad, scaled_product(dy, b_->value, false), x);
}

std::vector<float> merged_weight(const std::vector<float>& w, const std::vector<float>& a, const std::vector<float>& b,
                                 std::int64_t rank, double scale) {
  const std::size_t r = std::size_t(rank), in = a.size() / r, out = b.size() / r;
  CAPSTAN_CHECK(w.size() == in * out, "a weight of {} elements with an adapter of [{}, {}]", w.size(), out, in);
  std::vector<float> merged(w.size());
  std::vector<double> row(in);
  for (std::size_t o = 0; o < out; ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t k = 0; k < r; ++k)
      for (std::size_t i = 0; i < in; ++i) row[i] += double(b[o * r + k]) * double(a[k * in + i]);
    for (std::size_t i = 0; i < in; ++i) merged[o * in + i] = float(double(w[o * in + i]) + scale * row[i]);
  }
  return merged;
}

}  // namespace capstan::framework
