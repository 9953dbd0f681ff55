// FoX, the forgetting transformer (Lin et al., arXiv 2503.02130): logit_ij += Σ_{j < l <= i} ln f_l, with a forget gate
// f_l = σ(w_h·x_l + b_h) per head and token. The sums are prefix sums along the sequence (parallel/offsets.h).

#include <cmath>

#include "framework/encoding.h"
#include "kernels/linear.h"

namespace capstan::framework {

namespace {

class Forget : public Encoding {
 public:
  explicit Forget(const EncodingShape& shape) : shape_(shape) {}

  Claims claims() const override { return {.offset = true}; }

  void declare(Parameters& parameters) override {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.position.", layer);
      weights_.push_back(&parameters.declare(prefix + "forget", {shape_.heads, shape_.width}, Init::normal));
      biases_.push_back(&parameters.declare(prefix + "forget_bias", {shape_.heads}, Init::zero));
    }
  }

  /// ln f = -softplus(-u), u = W xn + b.
  Prepared prepare(int layer, const Projections& in) override {
    Prepared out;
    out.offset_source = logits(layer, in.xn);
    kernels::with_real(in.xn.type(), [&](auto real) {
      using Real = decltype(real);
      Real* u = out.offset_source.as<Real>();
      for (std::int64_t i = 0; i < out.offset_source.view().elements(); ++i)
        u[i] = std::min(u[i], Real(0)) - std::log1p(std::exp(-std::abs(u[i])));
    });
    return out;
  }
  /// d u = d ln f · (1 - f).
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    const Tensor u = logits(layer, in.xn), du = zeros_like(u);
    kernels::with_real(in.xn.type(), [&](auto real) {
      using Real = decltype(real);
      const Real* from = d_prepared.offset_source.template as<Real>();
      const Real* at = u.as<Real>();
      Real* to = du.as<Real>();
      const std::int64_t heads = shape_.heads;
      for (std::int64_t i = 0; i < u.view().elements(); ++i) {
        const Real e = std::exp(-std::abs(at[i]));
        to[i] = from[i] * (at[i] >= 0 ? e : Real(1)) / (1 + e);
        if (biases_[std::size_t(layer)]->grad)
          biases_[std::size_t(layer)]->grad.template as<Real>()[i % heads] += to[i];
      }
    });
    const Parameter& weight = *weights_[std::size_t(layer)];
    kernels::linear_backward_input(d.xn, du, weight.value, kernels::Into::add);
    if (weight.grad) kernels::linear_backward_weight(weight.grad, du, in.xn);
  }

  Terms terms(int) const override {
    Terms terms;
    terms.offset.rule = parallel::OffsetRule::sum;
    return terms;
  }

 private:
  Tensor logits(int layer, const View& xn) const {
    Tensor u({xn.dim(0), shape_.heads}, xn.type(), xn.device());
    kernels::linear_forward(u, xn, weights_[std::size_t(layer)]->value);
    kernels::with_real(xn.type(), [&](auto real) {
      using Real = decltype(real);
      const Real* bias = biases_[std::size_t(layer)]->value.template as<Real>();
      for (std::int64_t i = 0; i < u.view().elements(); ++i) u.as<Real>()[i] += bias[i % shape_.heads];
    });
    return u;
  }

  EncodingShape shape_;
  std::vector<Parameter*> weights_, biases_;  // per layer [H, C], [H]
};

}  // namespace

std::unique_ptr<Encoding> make_forget(const PositionConfig&, const EncodingShape& shape) {
  return std::make_unique<Forget>(shape);
}

}  // namespace capstan::framework
