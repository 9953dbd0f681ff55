// Sinusoidal positions (Vaswani et al., arXiv 1706.03762, §3.5), added to the token embedding:
//   x[2c] += sin(position / theta^(2c/C)),  x[2c + 1] += cos(position / theta^(2c/C))

#include <cmath>

#include "framework/encoding.h"

namespace capstan::framework {

namespace {

class Sinusoidal : public Encoding {
 public:
  Sinusoidal(const PositionConfig& position, const EncodingShape& shape) : width_(shape.width) {
    for (std::int64_t c = 0; c < width_; c += 2) scale_.push_back(std::pow(position.theta, double(c) / double(width_)));
  }

  void begin(const TokenRows& rows, std::int64_t, Device, DType) override { position_ = rows.position; }

  void embed(const View& x) override {
    const auto* position = position_.as<std::int64_t>();
    kernels::with_real(x.type(), [&](auto real) {
      using Real = decltype(real);
      for (std::int64_t n = 0; n < x.dim(0); ++n)
        for (std::int64_t c = 0; c < width_; ++c) {
          const double angle = double(position[n]) / scale_[std::size_t(c / 2)];
          x.as<Real>()[n * width_ + c] += Real(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
        }
    });
  }

 private:
  std::int64_t width_;
  std::vector<double> scale_;  // per pair of channels
  View position_;              // [B, T]
};

}  // namespace

std::unique_ptr<Encoding> make_sinusoidal(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Sinusoidal>(position, shape);
}

}  // namespace capstan::framework
