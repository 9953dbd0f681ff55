#pragma once
#include "kernels/elementwise.h"

namespace capstan::kernels {

/// A copy in another floating-point type.
inline Tensor converted(const View& x, DType type) {
  Tensor y(x.shape(), type, x.device(), Fill::none);
  convert(y, x);
  return y;
}

}  // namespace capstan::kernels
