// RoPE (Su et al., arXiv 2104.09864, §3.2) with the scalings of rotary_frequencies.h: q, k times exp(i position frequency[f]).

#include "framework/encoding.h"
#include "framework/rotary_frequencies.h"
#include "kernels/rotary.h"

namespace capstan::framework {

namespace {

class Rope : public Encoding {
 public:
  Rope(const PositionConfig& position, const EncodingShape& shape) : position_(position), shape_(shape) {}

  Claims claims() const override { return {.rotation = true}; }

  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    const RotaryFrequencies f = rotary_frequencies(position_, shape_.head_size, shape_.original_length, total_length);
    const std::int64_t tokens = rows.position.elements();
    phases_ = Tensor({tokens, 1, shape_.head_size}, type, device);
    kernels::rotary_phases(phases_, rows.position.reshape({tokens}), f.frequency, f.amplitude);
  }

  void rotate(int, Side, const View& out, const View& x, const View&) override {
    kernels::rotary_forward(out, x, phases_);
  }
  /// out = x · phase, so dx = conj(phase) · dout.
  void rotate_backward(int, Side, const View& dx, const View&, const View& x, const View&) override {
    kernels::rotary_backward(dx, View(), dx, x, phases_);
  }

 private:
  PositionConfig position_;
  EncodingShape shape_;
  Tensor phases_;  // [N, 1, D]
};

}  // namespace

std::unique_ptr<Encoding> make_rope(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Rope>(position, shape);
}

}  // namespace capstan::framework
