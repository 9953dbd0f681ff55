#include <algorithm>
#include <numeric>

#include "kernels/global_norm.h"
#include "kernels/isa.h"
#include "kernels/scratch.h"
#include "kernels/simd_math.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

/// Σ x[i]² over [0, n) by blocks. The square of an f32 is exact in double, so fused and separate multiply-adds agree: the same bits
/// on every instruction set.
double sum_of_blocks(const float* x, std::int64_t n) {
  constexpr std::int64_t block = 1024;
  double sum = 0;
  on_best_isa([ =, &sum ]() __attribute__((always_inline)) {
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const float* const B = x + begin;
      sum += lane_sum<double>(
          std::min(block, n - begin), [=](std::int64_t i) __attribute__((always_inline)) {
            return static_cast<double>(B[i]) * static_cast<double>(B[i]);
          });
    }
  });
  return sum;
}

}  // namespace

double sum_of_squares(const View& x) {
  constexpr std::int64_t piece = 1 << 16;
  thread_local Scratch memory;
  const std::int64_t n = x.elements(), pieces = (n + piece - 1) / piece;
  const float* const X = x.as<float>();
  double* const sum = memory.of<double>(pieces);  // [pieces]
  parallel_for(pieces, [=](std::int64_t i) { sum[i] = sum_of_blocks(X + i * piece, std::min(piece, n - i * piece)); });
  return std::accumulate(sum, sum + pieces, 0.0);
}

}  // namespace capstan::kernels::cpu
