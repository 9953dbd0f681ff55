// TAPE (Zhu et al., arXiv 2501.00712). The position of a token is a complex state z per kv head and frequency; it rotates q and k,
// is averaged by the attention weights (p), and is updated at the end of each layer:
//   z_0 = exp(i position frequency)                        as RoPE, the same for every head
//   zc = z + alpha p,  z' = zc + W_d (g ∘ W_u zc),  g = silu(W_x m)          m: the MLP's output before its residual
// p of a query head is averaged over its group of H/G. alpha and W_d (or W_u, as in the released code) are zero at first: the
// model starts bit for bit as RoPE. alpha mixes heads, or is one factor per head, which is what the released code's row sums come
// to. Without the attention path zc = z; without the MLP path z' = zc.
// The last layer's state is used by nobody: it has no update, no parameters, and its z does not travel.

#include "framework/encoding.h"
#include "framework/rotary_frequencies.h"
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/position_mlp.h"
#include "kernels/rotary.h"

namespace capstan::framework {

namespace {

struct LayerParameters {
  Parameter* alpha = nullptr;   // [G, G] or [G]; attention path
  Parameter* w_up = nullptr;    // [I, G]; MLP path, as the others
  Parameter* w_down = nullptr;  // [G, I]
  Parameter* w_gate = nullptr;  // [I, C]
};

/// What of z' = zc + W_d (g ∘ W_u zc), zc = z + alpha p, there is; a path that is off has zero matrices of one channel.
struct Matrices {
  Tensor alpha, w_up, w_down;  // where the parameter is not the matrix itself
};

class Tape : public Encoding {
 public:
  Tape(const PositionConfig& position, const EncodingShape& shape)
      : position_(position), shape_(shape), width_(position.tape_width ? position.tape_width : 4 * shape.kv_heads) {}

  Claims claims() const override { return {.rotation = true, .state = true}; }

  void declare(Parameters& parameters) override {
    const bool up_is_zero = position_.tape_zero == "up";
    const std::int64_t g = shape_.kv_heads;
    for (std::int64_t layer = 0; layer + 1 < shape_.layers; ++layer) {
      const auto own = [&](const char* name, Shape extents, Init init) {
        return &parameters.declare(fmt::format("model.layers.{}.position.{}", layer, name), extents, init);
      };
      LayerParameters p;
      if (has_attention_path()) p.alpha = own("alpha", mixes_heads() ? Shape{g, g} : Shape{g}, Init::zero);
      if (has_mlp_path()) {
        p.w_up = own("up", {width_, g}, up_is_zero ? Init::zero : Init::normal);
        p.w_down = own("down", {g, width_}, up_is_zero ? Init::normal : Init::zero);
        p.w_gate = own("gate", {width_, shape_.width}, Init::normal);
      }
      layers_.push_back(p);
    }
  }

  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    frequencies_ = rotary_frequencies(position_, shape_.head_size, shape_.original_length, total_length);
    const std::int64_t tokens = rows.position.elements();
    first_ = Tensor({tokens, shape_.kv_heads, shape_.head_size}, type, device);
    make_first_state(first_, rows.position.reshape({tokens}));
  }

  bool travels(int layer) const override { return layer + 1 < shape_.layers; }
  Tensor first_state() override { return std::move(first_); }
  void make_first_state(const View& z, const View& position) override {
    const Tensor phases({z.dim(0), 1, shape_.head_size}, z.type(), z.device());
    kernels::rotary_phases(phases, position, frequencies_.frequency, frequencies_.amplitude);
    kernels::group_spread(z, phases, 1);
  }

  /// Attention over the states, H·D columns more; alpha, W_u and W_d over the D numbers of a state, W_x over m.
  Arithmetic arithmetic(int layer) const override {
    if (!travels(layer)) return {};
    const double g = double(shape_.kv_heads), d = double(shape_.head_size), i = double(width_);
    Arithmetic flops{0, 2 * double(shape_.heads) * d};
    if (has_attention_path()) flops.per_token += 2 * d * (mixes_heads() ? g * g : g);
    if (has_mlp_path()) flops.per_token += 2 * d * 2 * g * i + 2 * double(shape_.width) * i;
    return flops;
  }

  void rotate(int, Side, const View& out, const View& x, const View& z) override { kernels::rotary_forward(out, x, z); }
  /// out = x · z, so dx = conj(z) · dout and dz += conj(x) · dout.
  void rotate_backward(int, Side, const View& dx, const View& dz, const View& x, const View& z) override {
    const Tensor d_out = copy(dx);
    kernels::rotary_backward(dx, dz, d_out, x, z);
  }

  Tensor update(int layer, const View& z, const View& p, const View& m) override {
    if (!travels(layer)) return {};
    const LayerParameters& own = layers_[std::size_t(layer)];
    const Gate gate = gate_of(own, m);
    const Tensor p_group = mean_over_group(p);
    Tensor z_next = zeros_like(z);
    const Matrices made = matrices(own, z);
    kernels::position_mlp_forward(z_next, z, p_group, gate.g, of(own.alpha, made.alpha), of(own.w_up, made.w_up),
                                  of(own.w_down, made.w_down));
    return z_next;
  }
  /// The gate and p's mean are computed again; then backward of position_mlp, of g = silu(W_x m), and of the mean.
  void update_backward(int layer, const View& dz, const View& dp, const View& dm, const View& dz_next, const View& z,
                       const View& p, const View& m) override {
    const LayerParameters& own = layers_[std::size_t(layer)];
    const Gate gate = gate_of(own, m);
    const Tensor p_group = mean_over_group(p), dp_group = zeros_like(p_group), dgate = zeros_like(gate.g);
    const Matrices made = matrices(own, z);
    const Tensor d_alpha = made.alpha ? zeros_like(made.alpha) : Tensor();
    const auto grad = [](const Parameter* parameter) { return parameter ? parameter->grad : View(); };
    kernels::position_mlp_backward(
        {dz, dp_group, dgate, d_alpha ? d_alpha.view() : grad(own.alpha), grad(own.w_up), grad(own.w_down)}, dz_next, z,
        p_group, gate.g, of(own.alpha, made.alpha), of(own.w_up, made.w_up), of(own.w_down, made.w_down));
    if (own.alpha && d_alpha && own.alpha->grad) add_diagonal(own.alpha->grad, d_alpha);
    if (own.w_gate) {
      kernels::activation_backward(dgate, dgate, gate.a, kernels::Activation::silu);
      kernels::linear_backward_input(dm, dgate, own.w_gate->value, kernels::Into::add);
      if (own.w_gate->grad) kernels::linear_backward_weight(own.w_gate->grad, dgate, m);
    }
    kernels::group_spread(dp, dp_group, 1.0 / double(shape_.heads / shape_.kv_heads));
  }

 private:
  struct Gate {
    Tensor a, g;  // [N, I]: W_x m and its silu
  };

  bool has_attention_path() const { return position_.tape_paths == "both" || position_.tape_paths == "attention"; }
  bool has_mlp_path() const { return position_.tape_paths == "both" || position_.tape_paths == "mlp"; }
  bool mixes_heads() const { return position_.tape_mix == "full"; }

  Gate gate_of(const LayerParameters& own, const View& m) const {
    const std::int64_t width = own.w_gate ? width_ : 1;
    Gate gate{Tensor({m.dim(0), width}, m.type(), m.device()), Tensor({m.dim(0), width}, m.type(), m.device())};
    if (!own.w_gate) return gate;
    kernels::linear_forward(gate.a, m, own.w_gate->value);
    kernels::activation_forward(gate.g, gate.a, kernels::Activation::silu);
    return gate;
  }

  /// A diagonal alpha as a matrix, and zeros for what is off.
  Matrices matrices(const LayerParameters& own, const View& z) const {
    const std::int64_t g = shape_.kv_heads;
    Matrices made;
    if (!own.alpha || !mixes_heads()) made.alpha = Tensor({g, g}, z.type(), z.device());
    if (!own.w_up) {
      made.w_up = Tensor({1, g}, z.type(), z.device());
      made.w_down = Tensor({g, 1}, z.type(), z.device());
    }
    if (own.alpha && made.alpha) {  // the diagonal is the first column of rows of g + 1
      const std::int64_t entry = kernels::size_of(z.type());
      kernels::copy_rows(z.device(), made.alpha.view().data(), (g + 1) * entry, own.alpha->value.data(), entry, entry,
                         g);
    }
    return made;
  }

  static const View& of(const Parameter* parameter, const Tensor& made) {
    return made ? made.view() : parameter->value;
  }

  /// The adjoint of a diagonal alpha.
  void add_diagonal(const View& grad, const View& d_alpha) const {
    const std::int64_t g = shape_.kv_heads, entry = kernels::size_of(grad.type());
    const Tensor diagonal({g}, grad.type(), grad.device(), kernels::Fill::none);
    kernels::copy_rows(grad.device(), diagonal.view().data(), entry, d_alpha.data(), (g + 1) * entry, entry, g);
    kernels::add(grad, diagonal);
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
