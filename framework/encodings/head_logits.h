#pragma once
// One number per head and token from the normed hidden state: u = W xn + b, which FoX's forget gates and the block gates of
// hierarchical CoPE (H-C) share. Per layer W [H, C] and b [H].

#include <string>
#include <vector>

#include "framework/encoding.h"

namespace capstan::framework {

class HeadLogits {
 public:
  /// `name` and `name`_bias. In layers every - 1, 2 every - 1, …
  void declare(Parameters& parameters, const EncodingShape& shape, const std::string& name, std::int64_t every = 1);
  /// [N, H] from xn [N, C].
  Tensor logits(int layer, const View& xn) const;
  /// d_xn and the gradients of W and b add to. d_logits [N, H].
  void backward(int layer, const View& d_xn, const View& d_logits, const View& xn) const;

 private:
  std::vector<Parameter*> weights_, biases_;  // null where a layer has none
};

}  // namespace capstan::framework
