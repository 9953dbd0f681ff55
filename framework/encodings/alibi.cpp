// ALiBi (Press et al., arXiv 2108.12409, §3): logit -= slope_h · distance, with fixed slopes.

#include "framework/encoding.h"

#include "framework/alibi_slopes.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

class Alibi : public Encoding {
 public:
  explicit Alibi(const EncodingShape& shape) : heads_(shape.heads) {}

  Claims claims() const override { return {.distance = true}; }

  void begin(const TokenRows&, std::int64_t, Device device, DType type) override {
    Tensor made({heads_}, type, kernels::filled_on(device));
    const std::vector<double> slopes = alibi_slopes(heads_);
    kernels::with_real(type, [&](auto real) {
      using Real = decltype(real);
      for (std::int64_t h = 0; h < heads_; ++h) made.as<Real>()[h] = Real(-slopes[std::size_t(h)]);
    });
    slope_ = kernels::moved_to(std::move(made), device);
  }

  Terms terms(int) const override {
    Terms terms;
    if (slope_) terms.shared.slope = slope_;
    return terms;
  }

 private:
  std::int64_t heads_;
  Tensor slope_;  // [H]
};

}  // namespace

std::unique_ptr<Encoding> make_alibi(const PositionConfig&, const EncodingShape& shape) {
  return std::make_unique<Alibi>(shape);
}

}  // namespace capstan::framework
