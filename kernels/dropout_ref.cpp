#include "kernels/dropout.h"

#include "kernels/operands.h"

namespace capstan::kernels {

void apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed) {
  const Operands operands("apply_dropout", x);
  CAPSTAN_CHECK(rate >= 0 && rate < 1, "dropout of {}", rate);
  operands.check("index", index, {index.dim(0), index.dim(1)}, DType::i64);
  operands.check("x", x, {index.elements(), x.dim(1)});
  pick(x, ref::apply_dropout, cpu::apply_dropout, cuda::apply_dropout)(x, index, rate, seed);
}

// x[n, c] = 0 or x[n, c] / (1 - rate)
void ref::apply_dropout(const View& x, const View& index, double rate, std::uint64_t seed) {
  const std::int64_t N = x.dim(0), C = x.dim(1), T = index.dim(1);
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t n = 0; n < N; ++n) {
      const auto token = std::uint64_t(index.as<std::int64_t>()[n]);
      const std::uint32_t row = dropout_row(seed, std::uint64_t(n / T), token);
      for (std::int64_t c = 0; c < C; ++c) {
        const bool dropped = is_dropped(row, std::uint32_t(c), dropout_threshold(rate));
        Real& value = x.as<Real>()[n * C + c];
        value = dropped ? Real(0) : value * Real(1 / (1 - rate));
      }
    }
  });
}

}  // namespace capstan::kernels
