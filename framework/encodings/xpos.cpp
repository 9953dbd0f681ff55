// xPos (Sun et al., arXiv 2212.10554, §2.2): RoPE whose channel pair f decays by zeta_f = (2f/D + 0.4) / 1.4 per xpos_scale
// tokens of distance: q times zeta^{(n - centre)/scale}, k times zeta^{-(n - centre)/scale}. The centre, half of the whole
// length, cancels in every product and halves the range of the exponents, which bounds the length (check_recipe).

#include <cmath>

#include "framework/encoding.h"
#include "framework/rotary_frequencies.h"
#include "kernels/rotary.h"

namespace capstan::framework {

namespace {

class Xpos : public Encoding {
 public:
  Xpos(const PositionConfig& position, const EncodingShape& shape) : position_(position), shape_(shape) {}

  Claims claims() const override { return {.rotation = true}; }

  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    const RotaryFrequencies f = rotary_frequencies(position_, shape_.head_size, shape_.original_length, total_length);
    const std::int64_t tokens = rows.position.elements();
    const View position = rows.position.reshape({tokens});
    for (int side = 0; side < 2; ++side) {
      std::vector<double> decay;
      for (std::int64_t pair = 0; pair < shape_.head_size / 2; ++pair) {
        const double zeta = (2.0 * double(pair) / double(shape_.head_size) + 0.4) / 1.4;
        decay.push_back((side == 0 ? 1 : -1) * std::log(zeta) / position_.xpos_scale);
      }
      phases_[side] = Tensor({tokens, 1, shape_.head_size}, type, device);
      kernels::rotary_phases(phases_[side], position, f.frequency, f.amplitude);
      kernels::rotary_decay(phases_[side], position, decay, double(total_length) / 2);
    }
  }

  void rotate(int, Side side, const View& out, const View& x, const View&) override {
    kernels::rotary_forward(out, x, phases_of(side));
  }
  /// out = x · phase, so dx = conj(phase) · dout.
  void rotate_backward(int, Side side, const View& dx, const View&, const View& x, const View&) override {
    kernels::rotary_backward(dx, View(), dx, x, phases_of(side));
  }

 private:
  const View& phases_of(Side side) const { return phases_[side == Side::queries ? 0 : 1].view(); }

  PositionConfig position_;
  EncodingShape shape_;
  std::array<Tensor, 2> phases_;  // of queries and of keys, [N, 1, D]
};

}  // namespace

std::unique_ptr<Encoding> make_xpos(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Xpos>(position, shape);
}

}  // namespace capstan::framework
