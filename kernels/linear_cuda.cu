#include "kernels/linear.h"
#include "kernels/products_cuda.cuh"

namespace capstan::kernels::cuda {

// y = x wᵀ
void linear_forward(const View& y, const View& x, const View& w, Into into) {
  multiply(matrix(y), matrix(x), transposed(w), into);
}

// Of y = x wᵀ:  dx = dy w
void linear_backward_input(const View& dx, const View& dy, const View& w, Into into) {
  multiply(matrix(dx), matrix(dy), matrix(w), into);
}

// Of y = x wᵀ:  dw += dyᵀ x
void linear_backward_weight(const View& dw, const View& dy, const View& x) {
  multiply(matrix(dw), transposed(dy), matrix(x), Into::add);
}

}  // namespace capstan::kernels::cuda
