// Learned absolute positions (Gehring et al., arXiv 1705.03122): x += e[position], one row for each position up to the longest
// length that the model is trained at. There is nothing beyond it: a longer sequence is refused.

#include "framework/encoding.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

class Learned : public Encoding {
 public:
  explicit Learned(const EncodingShape& shape) : shape_(shape) {}

  void declare(Parameters& parameters) override {
    rows_ = &parameters.declare("model.position.embedding", {shape_.max_length, shape_.width}, Init::normal);
  }

  void begin(const TokenRows& rows, std::int64_t, Device device, DType) override {
    const std::int64_t tokens = rows.position.elements();
    Tensor ids({tokens}, DType::i32, kernels::filled_on(device));
    const kernels::HostView positions(rows.position);
    for (std::int64_t n = 0; n < tokens; ++n) {
      const std::int64_t position = positions.as<std::int64_t>()[n];
      if (position >= shape_.max_length)
        fail(ExitCode::config,
             "position {} has no row: position.kind = learned knows {} positions (model.max_length); choose shorter "
             "sequences, or an encoding that extends",
             position, shape_.max_length);
      ids.as<std::int32_t>()[n] = std::int32_t(position);
    }
    ids_ = kernels::moved_to(std::move(ids), device);
  }

  void embed(const View& x) override {
    Tensor rows = zeros_like(x);
    kernels::embedding_forward(rows, ids_, rows_->value);
    kernels::add(x, rows);
  }
  void embed_backward(const View& dx) override {
    if (rows_->grad) kernels::embedding_backward(rows_->grad, ids_, dx);
  }

 private:
  EncodingShape shape_;
  Parameter* rows_ = nullptr;  // [max_length, C]
  Tensor ids_;                 // [N] i32
};

}  // namespace

std::unique_ptr<Encoding> make_learned(const PositionConfig&, const EncodingShape& shape) {
  return std::make_unique<Learned>(shape);
}

}  // namespace capstan::framework
