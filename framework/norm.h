#pragma once
// RMSNorm with its weight, as declared by attention, block and model.

#include <string>

#include "framework/config.h"
#include "framework/parameters.h"

namespace capstan::framework {

class Norm {
 public:
  /// `name`.weight [C].
  Norm(const ModelConfig& config, const std::string& name, Parameters& parameters)
      : eps_(config.norm_eps), weight_(parameters.declare(name + ".weight", {config.hidden_size}, Init::one)) {}

  /// norm(x) of rows x [N, C].
  Tensor forward(const View& x) const;
  /// dx [N, C] overwrites or adds to, from dy [N, C] of that type or wide; the weight's gradient adds to, if it is trained.
  void backward(const View& dx, const View& dy, const View& x, kernels::Into into) const;

 private:
  double eps_;
  Parameter& weight_;
};

}  // namespace capstan::framework
