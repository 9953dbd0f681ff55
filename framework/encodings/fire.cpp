// FIRE (Li et al., arXiv 2310.04418, eq. 2): a network of one hidden layer maps the logarithmic, progressively normalised
// distance to a bias per head (kernels/score_terms.h: FireTerm). Each layer has its own network, c and threshold L. The
// network's output bias is left out: it would add one number to all logits of a row, which softmax takes away.

#include "framework/encoding.h"

namespace capstan::framework {

namespace {

struct LayerParameters {
  Parameter *in, *in_bias;  // [R]
  Parameter* out;           // [H, R]
  Parameter* scale;         // [2]: c, L
};

class Fire : public Encoding {
 public:
  Fire(const PositionConfig& position, const EncodingShape& shape)
      : width_(position.fire_width), length_(position.fire_length), shape_(shape) {}

  Claims claims() const override { return {.function = true}; }

  void declare(Parameters& parameters) override {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const auto own = [&](const char* name, Shape extents, Init init) -> Parameter* {
        return &parameters.declare(fmt::format("model.layers.{}.position.{}", layer, name), extents, init);
      };
      layers_.push_back({own("fire_in", {width_}, Init::normal), own("fire_in_bias", {width_}, Init::normal),
                         own("fire_out", {shape_.heads, width_}, Init::normal), own("fire_scale", {2}, Init::given)});
      layers_.back().scale->given = {0.1, double(length_)};
    }
  }

  void begin(const TokenRows&, std::int64_t, Device device, DType type) override {
    no_bias_ = Tensor({shape_.heads}, type, device);
  }

  Terms terms(int layer) const override {
    Terms terms;
    if (layer >= std::ssize(layers_)) return terms;
    terms.shared.fire = of(layer, &Parameter::value);
    if (no_bias_) terms.shared.fire.out_bias = no_bias_;
    return terms;
  }
  kernels::SharedTerms shared_gradients(int layer) const override {
    kernels::SharedTerms out;
    out.fire = of(layer, &Parameter::grad);
    return out;
  }

  /// One number in, width inside, a bias per head out; for each pair.
  Arithmetic arithmetic(int) const override { return {0, 2 * double(width_) * double(1 + shape_.heads)}; }

 private:
  kernels::FireTerm of(int layer, View Parameter::*view) const {
    const LayerParameters& p = layers_[std::size_t(layer)];
    return {p.in->*view, p.in_bias->*view, p.out->*view, View(), p.scale->*view};
  }

  std::int64_t width_, length_;
  EncodingShape shape_;
  std::vector<LayerParameters> layers_;
  Tensor no_bias_;  // [H] zeros
};

}  // namespace

std::unique_ptr<Encoding> make_fire(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Fire>(position, shape);
}

}  // namespace capstan::framework
