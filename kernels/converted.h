#pragma once
#include "kernels/elementwise.h"

namespace capstan::kernels {

/// A copy in another floating-point type.
inline Tensor converted(const View& x, DType type) {
  Tensor y(x.shape(), type, x.device(), Fill::none);
  convert(y, x);
  return y;
}

/// x in the type that is wide beside its own: x itself, or a copy.
class WideView {
 public:
  explicit WideView(const View& x) : x_(x) {
    if (wide(x.type()) == x.type()) return;
    copy_ = converted(x, wide(x.type()));
    x_ = copy_;
  }
  operator const View&() const { return x_; }

 private:
  Tensor copy_;
  View x_;
};

}  // namespace capstan::kernels
