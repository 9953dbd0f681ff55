// T5's relative bias (Raffel et al., arXiv 1910.10683, §2.1): a learned number per head and bucket of the distance, the same
// for all layers. Causal buckets: half of them one distance each, then logarithmic up to t5_distance, the last one for all beyond.
// The tile reads a bias per distance; it is made from the buckets once per batch, and its gradient is folded back.

#include <cmath>

#include "framework/encoding.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

class T5 : public Encoding {
 public:
  T5(const PositionConfig& position, const EncodingShape& shape)
      : buckets_(position.t5_buckets), last_distance_(position.t5_distance), heads_(shape.heads) {}

  Claims claims() const override { return {.distance = true}; }

  void declare(Parameters& parameters) override {
    bias_ = &parameters.declare("model.position.buckets", {buckets_, heads_}, Init::zero);
  }

  /// table [H, distances] from the buckets.
  void begin(const TokenRows&, std::int64_t, Device device, DType type) override {
    Tensor table({heads_, last_distance_ + 1}, type, kernels::filled_on(device));
    const kernels::HostView bias(bias_->value);
    kernels::with_real(type, [&](auto real) {
      using Real = decltype(real);
      each_entry([&](std::int64_t entry, std::int64_t bucket) { table.as<Real>()[entry] = bias.as<Real>()[bucket]; });
    });
    table_ = kernels::moved_to(std::move(table), device);
    if (bias_->grad) d_table_ = zeros_like(table_);
  }
  void embed_backward(const View&) override {  // the last of all backward hooks: every layer has added to d_table
    if (!d_table_) return;
    const kernels::HostView d_table(d_table_);
    kernels::update_on_host(bias_->grad, [&](const View& grad) {
      kernels::with_real(grad.type(), [&](auto real) {
        using Real = decltype(real);
        each_entry(
            [&](std::int64_t entry, std::int64_t bucket) { grad.as<Real>()[bucket] += d_table.as<Real>()[entry]; });
      });
    });
    d_table_.view().fill_zero();
  }

  Terms terms(int) const override {
    Terms terms;
    if (table_) terms.shared.distance_table = table_;
    return terms;
  }
  kernels::SharedTerms shared_gradients(int) const override {
    kernels::SharedTerms out;
    if (d_table_) out.distance_table = d_table_;
    return out;
  }

 private:
  std::int64_t bucket_of(std::int64_t distance) const {
    const std::int64_t exact = buckets_ / 2;
    if (distance < exact) return distance;
    const double share = std::log(double(distance) / double(exact)) / std::log(double(last_distance_) / double(exact));
    return std::min(buckets_ - 1, exact + std::int64_t(share * double(buckets_ - exact)));
  }

  /// f(entry of the table, entry of the buckets) for every head and distance.
  template <class F> void each_entry(F&& f) const {
    for (std::int64_t h = 0; h < heads_; ++h)
      for (std::int64_t d = 0; d <= last_distance_; ++d) f(h * (last_distance_ + 1) + d, bucket_of(d) * heads_ + h);
  }

  std::int64_t buckets_, last_distance_, heads_;
  Parameter* bias_ = nullptr;  // [buckets, H]
  Tensor table_, d_table_;     // [H, t5_distance + 1]
};

}  // namespace

std::unique_ptr<Encoding> make_t5(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<T5>(position, shape);
}

}  // namespace capstan::framework
