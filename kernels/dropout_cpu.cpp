#include "kernels/dropout.h"
#include "kernels/isa.h"

namespace capstan::kernels::cpu {

// x[n, c] = 0 or x[n, c] / (1 - rate)
void apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed) {
  const std::int64_t N = x.dim(0), C = x.dim(1), T = index.dim(1);
  const std::uint32_t threshold = dropout_threshold(rate);
  const float factor = float(1 / (1 - rate));
  float* const X = x.as<float>();                               // [N, C]
  const std::int64_t* const tokens = index.as<std::int64_t>();  // [N]
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t n = 0; n < N; ++n) {
      const std::uint32_t row = dropout_row(seed, std::uint64_t(n / T), std::uint64_t(tokens[n]));
      for (std::int64_t c = 0; c < C; ++c)
        X[n * C + c] = is_dropped(row, std::uint32_t(c), threshold) ? 0.0f : X[n * C + c] * factor;
    }
  });
}

}  // namespace capstan::kernels::cpu
