#include "framework/norm.h"

#include "kernels/rmsnorm.h"

namespace capstan::framework {

Tensor Norm::forward(const View& x) const {
  Tensor y = empty_like(x);
  kernels::rmsnorm_forward(y, x, weight_.value, eps_);
  return y;
}

void Norm::backward(const View& dx, const View& dy, const View& x, kernels::Into into) const {
  kernels::rmsnorm_backward(dx, weight_.grad, dy, x, weight_.value, eps_, into);
}

}  // namespace capstan::framework
