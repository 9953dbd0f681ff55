// Sinusoidal positions (Vaswani et al., arXiv 1706.03762, §3.5), added to the token embedding:
//   x[2c] += sin(position / theta^(2c/C)),  x[2c + 1] += cos(position / theta^(2c/C))

#include <cmath>

#include "framework/encoding.h"
#include "kernels/elementwise.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

class Sinusoidal : public Encoding {
 public:
  Sinusoidal(const PositionConfig& position, const EncodingShape& shape) : width_(shape.width) {
    for (std::int64_t c = 0; c < width_; c += 2) scale_.push_back(std::pow(position.theta, double(c) / double(width_)));
  }

  void begin(const TokenRows& rows, std::int64_t, Device device, DType type) override {
    Tensor waves({rows.position.elements(), width_}, type, kernels::filled_on(device), kernels::Fill::none);
    const kernels::HostView position(rows.position);
    kernels::with_real(type, [&](auto real) {
      using Real = decltype(real);
      for (std::int64_t n = 0; n < waves.shape()[0]; ++n)
        for (std::int64_t c = 0; c < width_; ++c) {
          const double angle = double(position.as<std::int64_t>()[n]) / scale_[std::size_t(c / 2)];
          waves.as<Real>()[n * width_ + c] = Real(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
        }
    });
    waves_ = kernels::moved_to(std::move(waves), device);
  }

  void embed(const View& x) override {
    kernels::add(x, waves_);
    waves_ = {};
  }

 private:
  std::int64_t width_;
  std::vector<double> scale_;  // per pair of channels
  Tensor waves_;               // [N, C], from begin to embed
};

}  // namespace

std::unique_ptr<Encoding> make_sinusoidal(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Sinusoidal>(position, shape);
}

}  // namespace capstan::framework
