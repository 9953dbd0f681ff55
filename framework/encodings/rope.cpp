// RoPE (Su et al., arXiv 2104.09864, §3.2) with the scalings of rotary_frequencies.h: q, k times exp(i position frequency[f]).

#include "framework/encoding.h"
#include "framework/rotary_frequencies.h"
#include "kernels/rotary.h"

namespace capstan::framework {

namespace {

class Rope : public Encoding {
 public:
  Rope(const PositionConfig& position, const EncodingShape& shape) : position_(position), shape_(shape) {}

  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    const RotaryFrequencies f = rotary_frequencies(position_, shape_.head_size, shape_.original_length, total_length);
    const std::int64_t tokens = rows.position.elements();
    phases_ = Tensor({tokens, 1, shape_.head_size}, type, device);
    kernels::rotary_phases(phases_, rows.position.reshape({tokens}), f.frequency, f.amplitude);
  }

  bool rotates() const override { return true; }
  void rotate(int, const View& q_out, const View& k_out, const View& q, const View& k, const View&) override {
    kernels::rotary_forward(q_out, q, phases_);
    kernels::rotary_forward(k_out, k, phases_);
  }
  /// q_out = q · phase, so dq = conj(phase) · dq_out.
  void rotate_backward(int, const View& dq, const View& dk, const View&, const View& q, const View& k,
                       const View&) override {
    kernels::rotary_backward(dq, View(), dq, q, phases_);
    kernels::rotary_backward(dk, View(), dk, k, phases_);
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
