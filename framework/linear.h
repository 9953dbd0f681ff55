#pragma once
// A linear layer y = x W^T + b, as declared by blocks, and its low-rank adapter: LoRA (Hu et al., arXiv 2106.09685, §4.1)
//   y = x W^T + b + s (x A^T) B^T,   s = alpha / rank;  A random, B zero at first, so that the model starts as it was.
// `name`.weight [out, in]; `name`.bias [out], zero at first, where there is one; with an adapter `name`.lora_A [rank, in] and
// `name`.lora_B [out, rank]. Weight and bias are the base that an adapter leaves as it is.

#include <string>

#include "framework/config.h"
#include "framework/parameters.h"
#include "kernels/linear.h"

namespace capstan::framework {

class Linear {
 public:
  /// Adapted if model.lora_rank > 0 and one of model.lora_targets matches `name`.
  Linear(const ModelConfig& config, const std::string& name, std::int64_t out, std::int64_t in, bool bias,
         Parameters& parameters);

  std::int64_t outputs() const { return weight_.shape[0]; }
  kernels::DType type() const { return weight_.value.type(); }
  bool is_trained() const { return weight_.grad || (bias_ && bias_->grad) || (a_ && (a_->grad || b_->grad)); }

  /// y [N, out] from x [N, in].
  void forward(const View& y, const View& x, kernels::Into into = kernels::Into::overwrite) const;
  /// dx [N, in] = dy W + s (dy B) A.
  void backward_input(const View& dx, const View& dy, kernels::Into into = kernels::Into::overwrite) const;
  /// Gradients of what is trained, add to: dW = dy^T x;  db = Σ dy;  dB = s dy^T (x A^T);  dA = s (dy B)^T x.
  void backward_weight(const View& dy, const View& x) const;

 private:
  Tensor scaled_product(const View& x, const View& w, bool transposed) const;

  Parameter& weight_;
  Parameter* bias_ = nullptr;              // if there is one
  Parameter *a_ = nullptr, *b_ = nullptr;  // the adapter, if there is one
  double scale_ = 0;
};

/// W + s B A of a weight with an adapter, in double: what an exported or merged model has in its place. w [out, in], a, b: the
/// values, row major.
std::vector<float> merged_weight(const std::vector<float>& w, const std::vector<float>& a, const std::vector<float>& b,
                                 std::int64_t rank, double scale);

}  // namespace capstan::framework
