#pragma once
#include <cmath>

#include "kernels/adamw.h"

namespace capstan::kernels {

/// The update's constants, rounded once.
struct AdamWFactors {
  float keep1, take1;  ///< β1, 1 - β1
  float keep2, take2;  ///< β2, 1 - β2
  float rate;          ///< lr / (1 - β1ᵗ)
  float root;          ///< 1 / sqrt(1 - β2ᵗ)
  float eps;
  float decay;  ///< lr weight_decay
};

inline AdamWFactors factors_of(const AdamW& s) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  return {f32(s.beta1),
          f32(1 - s.beta1),
          f32(s.beta2),
          f32(1 - s.beta2),
          f32(s.lr / (1 - std::pow(s.beta1, s.step))),
          f32(1 / std::sqrt(1 - std::pow(s.beta2, s.step))),
          f32(s.eps),
          f32(s.lr * s.weight_decay)};
}

}  // namespace capstan::kernels
