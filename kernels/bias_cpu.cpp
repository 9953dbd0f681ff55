#include "kernels/bias.h"
#include "kernels/isa.h"
#include "kernels/row_sums.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

// y[t, m] = b[m]
void bias_forward(const View& y, const View& b, Into into) {
  const std::int64_t M = y.dim(1);
  with_stored(y.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const Y = y.as<T>();        // [T, M]
    const T* const B = b.as<T>();  // [M]
    parallel_rows(y.dim(0), M, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t m = 0; m < M; ++m)
            Y[t * M + m] = into == Into::add ? stored_as<T>(to_float(Y[t * M + m]) + to_float(B[m])) : B[m];
      });
    });
  });
}

// Of y[t, m] = b[m]:  db[m] += Σ_t dy[t, m]
void bias_backward(const View& db, const View& dy) {
  const std::int64_t M = dy.dim(1);
  with_stored(dy.type(), [&](auto stored) {
    using T = decltype(stored);
    const T* const dY = dy.as<T>();  // [T, M]
    sum_over_rows<1>({db}, dy.dim(0), M, [=](std::int64_t begin, std::int64_t end, const std::array<float*, 1>& sums) {
      on_best_isa([ =, sum = sums[0] ]() __attribute__((always_inline)) {
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t m = 0; m < M; ++m) sum[m] += to_float(dY[t * M + m]);
      });
    });
  });
}

}  // namespace capstan::kernels::cpu
