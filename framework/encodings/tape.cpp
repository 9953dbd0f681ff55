// TAPE (Zhu et al., arXiv 2501.00712). The position of a token is a complex state z per kv head and frequency; it rotates q and k,
// is averaged by the attention weights (p), and is updated at the end of each layer:
//   z_0 = exp(i position frequency)                        as RoPE, the same for every head
//   zc = z + alpha p,  z' = zc + W_d (g ∘ W_u zc),  g = silu(W_x m)          m: the MLP's output before its residual
// p of a query head is averaged over its group of H/G. alpha and W_d are zero at first: the model starts bit for bit as RoPE.
// The last layer's state is used by nobody: it has no update, no parameters, and its z does not travel.

#include "framework/encoding.h"
#include "framework/rotary_frequencies.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/position_mlp.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"

namespace capstan::framework {

namespace {

struct LayerParameters {
  Parameter* alpha;   // [G, G]
  Parameter* w_up;    // [I, G]
  Parameter* w_down;  // [G, I]
  Parameter* w_gate;  // [I, C]
};

class Tape : public Encoding {
 public:
  Tape(const PositionConfig& position, const EncodingShape& shape)
      : position_(position), shape_(shape), width_(position.tape_width ? position.tape_width : 4 * shape.kv_heads) {}

  void declare(Parameters& parameters) override {
    for (std::int64_t layer = 0; layer + 1 < shape_.layers; ++layer) {
      const auto own = [&](const char* name, Shape extents, Init init) {
        return &parameters.declare(fmt::format("model.layers.{}.position.{}", layer, name), extents, init);
      };
      layers_.push_back({own("alpha", {shape_.kv_heads, shape_.kv_heads}, Init::zero),
                         own("up", {width_, shape_.kv_heads}, Init::normal),
                         own("down", {shape_.kv_heads, width_}, Init::zero),
                         own("gate", {width_, shape_.width}, Init::normal)});
    }
  }

  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    frequencies_ = rotary_frequencies(position_, shape_.head_size, shape_.original_length, total_length);
    const std::int64_t tokens = rows.position.elements();
    first_ = Tensor({tokens, shape_.kv_heads, shape_.head_size}, type, device);
    make_first_state(first_, rows.position.reshape({tokens}));
  }

  bool has_state() const override { return true; }
  bool travels(int layer) const override { return layer + 1 < shape_.layers; }
  Tensor first_state() override { return std::move(first_); }
  void make_first_state(const View& z, const View& position) override {
    const Tensor phases({z.dim(0), 1, shape_.head_size}, z.type(), z.device());
    kernels::rotary_phases(phases, position, frequencies_.frequency, frequencies_.amplitude);
    kernels::group_spread(z, phases, 1);
  }

  bool rotates() const override { return true; }
  void rotate(int, const View& q_out, const View& k_out, const View& q, const View& k, const View& z) override {
    kernels::rotary_forward(q_out, q, z);
    kernels::rotary_forward(k_out, k, z);
  }
  /// q_out = q · z, so dq = conj(z) · dq_out and dz += conj(q) · dq_out; the same for k.
  void rotate_backward(int, const View& dq, const View& dk, const View& dz, const View& q, const View& k,
                       const View& z) override {
    const Tensor dq_out = copy(dq), dk_out = copy(dk);
    kernels::rotary_backward(dq, dz, dq_out, q, z);
    kernels::rotary_backward(dk, dz, dk_out, k, z);
  }

  Tensor update(int layer, const View& z, const View& p, const View& m) override {
    if (!travels(layer)) return {};
    const LayerParameters& own = layers_[layer];
    const Gate gate = gate_of(own, m);
    const Tensor p_group = mean_over_group(p);
    Tensor z_next = zeros_like(z);
    kernels::position_mlp_forward(z_next, z, p_group, gate.g, own.alpha->value, own.w_up->value, own.w_down->value);
    return z_next;
  }
  /// The gate and p's mean are computed again; then backward of position_mlp, of g = silu(W_x m), and of the mean.
  void update_backward(int layer, const View& dz, const View& dp, const View& dm, const View& dz_next, const View& z,
                       const View& p, const View& m) override {
    const LayerParameters& own = layers_[layer];
    const Gate gate = gate_of(own, m);
    const Tensor p_group = mean_over_group(p), dp_group = zeros_like(p_group), dgate = zeros_like(gate.g);
    kernels::position_mlp_backward({dz, dp_group, dgate, own.alpha->grad, own.w_up->grad, own.w_down->grad}, dz_next, z,
                                   p_group, gate.g, own.alpha->value, own.w_up->value, own.w_down->value);
    kernels::silu_backward(dgate, dgate, gate.a);
    kernels::linear_backward_input(dm, dgate, own.w_gate->value, kernels::Into::add);
    if (own.w_gate->grad) kernels::linear_backward_weight(own.w_gate->grad, dgate, m);
    kernels::group_spread(dp, dp_group, 1.0 / double(shape_.heads / shape_.kv_heads));
  }

 private:
  struct Gate {
    Tensor a, g;  // [N, I]: W_x m and its silu
  };

  Gate gate_of(const LayerParameters& own, const View& m) const {
    Gate gate{Tensor({m.dim(0), width_}, m.type(), m.device()), Tensor({m.dim(0), width_}, m.type(), m.device())};
    kernels::linear_forward(gate.a, m, own.w_gate->value);
    kernels::silu_forward(gate.g, gate.a);
    return gate;
  }

  Tensor mean_over_group(const View& p) const {
    Tensor mean({p.dim(0), shape_.kv_heads, shape_.head_size}, p.type(), p.device());
    kernels::group_sum(mean, p, 1.0 / double(shape_.heads / shape_.kv_heads));
    return mean;
  }

  static Tensor copy(const View& x) {
    Tensor out = zeros_like(x);
    out.view().copy_from(x);
    return out;
  }

  PositionConfig position_;
  EncodingShape shape_;
  std::int64_t width_;                   // I
  std::vector<LayerParameters> layers_;  // all but the last layer
  RotaryFrequencies frequencies_;
  Tensor first_;  // [N, G, D]
};

}  // namespace

std::unique_ptr<Encoding> make_tape(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Tape>(position, shape);
}

}  // namespace capstan::framework
