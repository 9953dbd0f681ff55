#include "kernels/global_norm.h"

#include <algorithm>

#include "kernels/operands.h"

namespace capstan::kernels {

double sum_of_squares(const View& x) {
  Operands("sum_of_squares", x).check_wide("x", x, x.shape());
  return pick(x, ref::sum_of_squares, cpu::sum_of_squares, cuda::sum_of_squares)(x);
}

double ref::sum_of_squares(const View& x) {
  constexpr std::int64_t block = 1024;
  double sum = 0;
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t begin = 0; begin < x.elements(); begin += block) {
      double of_block = 0;
      for (std::int64_t i = begin; i < std::min(begin + block, x.elements()); ++i)
        of_block += static_cast<double>(x.as<Real>()[i]) * static_cast<double>(x.as<Real>()[i]);
      sum += of_block;
    }
  });
  return sum;
}

}  // namespace capstan::kernels
