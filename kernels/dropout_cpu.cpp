#include "kernels/dropout.h"
#include "kernels/isa.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

// x[n, c] = 0 or x[n, c] / (1 - rate)
void apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed) {
  const std::int64_t N = x.dim(0), C = x.dim(1), T = index.dim(1);
  const std::uint32_t threshold = dropout_threshold(rate);
  const float factor = float(1 / (1 - rate));
  const std::int64_t* const tokens = index.as<std::int64_t>();  // [N]
  with_stored(x.type(), [&](auto stored) {
    using Value = decltype(stored);
    Value* const X = x.as<Value>();  // [N, C]
    parallel_rows(N, C, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t n = begin; n < end; ++n) {
          const std::uint32_t row = dropout_row(seed, std::uint64_t(n / T), std::uint64_t(tokens[n]));
          for (std::int64_t c = 0; c < C; ++c) {
            const float value = to_float(X[n * C + c]) * factor;
            X[n * C + c] = stored_as<Value>(is_dropped(row, std::uint32_t(c), threshold) ? 0.0f : value);
          }
        }
      });
    });
  });
}

}  // namespace capstan::kernels::cpu
