// FoX, the forgetting transformer (Lin et al., arXiv 2503.02130): logit_ij += Σ_{j < l <= i} ln f_l, with a forget gate
// f_l = σ(w_h·x_l + b_h) per head and token. The sums are prefix sums along the sequence (parallel/offsets.h).

#include <cmath>

#include "framework/encoding.h"
#include "framework/encodings/head_logits.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

class Forget : public Encoding {
 public:
  explicit Forget(const EncodingShape& shape) : shape_(shape) {}

  Claims claims() const override { return {.offset = true}; }

  void declare(Parameters& parameters) override { gates_.declare(parameters, shape_, "forget"); }

  /// ln f = -softplus(-u), u = W xn + b.
  Prepared prepare(int layer, const Projections& in) override {
    Prepared out;
    out.offset_source = gates_.logits(layer, in.xn);
    kernels::update_on_host(out.offset_source, [](const View& source) {
      kernels::with_real(source.type(), [&](auto real) {
        using Real = decltype(real);
        Real* u = source.as<Real>();
        for (std::int64_t i = 0; i < source.elements(); ++i)
          u[i] = std::min(u[i], Real(0)) - std::log1p(std::exp(-std::abs(u[i])));
      });
    });
    return out;
  }
  /// d u = d ln f · (1 - f).
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    const Tensor du = gates_.logits(layer, in.xn);  // u until below
    const kernels::HostView d_log_f(d_prepared.offset_source);
    kernels::update_on_host(du, [&](const View& u) {
      kernels::with_real(u.type(), [&](auto real) {
        using Real = decltype(real);
        Real* at = u.as<Real>();
        const Real* from = d_log_f.as<Real>();
        for (std::int64_t i = 0; i < u.elements(); ++i) {
          const Real e = std::exp(-std::abs(at[i]));
          at[i] = from[i] * (at[i] >= 0 ? e : Real(1)) / (1 + e);
        }
      });
    });
    gates_.backward(layer, d.xn, du, in.xn);
  }

  Terms terms(int) const override {
    Terms terms;
    terms.offset.rule = parallel::OffsetRule::sum;
    return terms;
  }

  Arithmetic arithmetic(int) const override { return {2 * double(shape_.width) * double(shape_.heads), 0}; }

 private:
  EncodingShape shape_;
  HeadLogits gates_;
};

}  // namespace

std::unique_ptr<Encoding> make_forget(const PositionConfig&, const EncodingShape& shape) {
  return std::make_unique<Forget>(shape);
}

}  // namespace capstan::framework
