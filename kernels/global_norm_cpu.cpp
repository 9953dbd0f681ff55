#include <algorithm>

#include "kernels/global_norm.h"
#include "kernels/isa.h"
#include "kernels/simd_math.h"

namespace capstan::kernels::cpu {

// The square of an f32 is exact in double, so fused and separate multiply-adds agree: the same bits on every instruction set.
double sum_of_squares(const View& x) {
  constexpr std::int64_t block = 1024;
  const std::int64_t n = x.elements();
  const float* const X = x.as<float>();
  double sum = 0;
  on_best_isa([ =, &sum ]() __attribute__((always_inline)) {
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const float* const B = X + begin;
      sum += lane_sum<double>(
          std::min(block, n - begin), [=](std::int64_t i) __attribute__((always_inline)) {
            return static_cast<double>(B[i]) * static_cast<double>(B[i]);
          });
    }
  });
  return sum;
}

}  // namespace capstan::kernels::cpu
