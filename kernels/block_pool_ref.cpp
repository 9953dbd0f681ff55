#include "kernels/block_pool.h"

#include <algorithm>

#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_block(std::string_view operation, const View& mean, const View& x, const View& document,
                 std::int64_t block) {
  const Operands operands(operation, x);
  const std::int64_t T = x.dim(0), N = x.dim(1);
  CAPSTAN_CHECK(block >= 1, "{}: block {}", operation, block);
  operands.check_wide("x", x, {T, N});
  operands.check("mean", mean, {(T + block - 1) / block, N});
  operands.check("document", document, {T}, DType::i64);
}

}  // namespace

void block_mean(const View& mean, const View& x, const View& document, std::int64_t block) {
  check_block("block_mean", mean, x, document, block);
  pick(x, ref::block_mean, cpu::block_mean, cuda::block_mean)(mean, x, document, block);
}

void block_mean_backward(const View& dx, const View& dmean, const View& document, std::int64_t block) {
  check_block("block_mean_backward", dmean, dx, document, block);
  pick(dx, ref::block_mean_backward, cpu::block_mean_backward, cuda::block_mean_backward)(dx, dmean, document, block);
}

namespace ref {

namespace {

/// Calls body(block, token, tokens that count) for each token that counts: those of the document of the block's last
/// token.
template <class Body>
void for_each_counted(const View& document, std::int64_t tokens, std::int64_t block, const Body& body) {
  const std::int64_t* d = document.as<std::int64_t>();
  for (std::int64_t begin = 0; begin < tokens; begin += block) {
    const std::int64_t last = std::min(begin + block, tokens) - 1;
    const auto counted = std::count(d + begin, d + last + 1, d[last]);
    for (std::int64_t t = begin; t <= last; ++t)
      if (d[t] == d[last]) body(begin / block, t, counted);
  }
}

}  // namespace

// mean_b = Σ_j x_j / n over the n tokens that count
void block_mean(const View& mean, const View& x, const View& document, std::int64_t block) {
  mean.fill_zero();
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t N = x.dim(1);
    for_each_counted(document, x.dim(0), block, [&](std::int64_t b, std::int64_t t, std::int64_t counted) {
      for (std::int64_t n = 0; n < N; ++n) mean.as<Real>()[b * N + n] += x.as<Real>()[t * N + n] / Real(counted);
    });
  });
}

// Of mean_b = Σ_j x_j / n:  dx_j += dmean_b / n
void block_mean_backward(const View& dx, const View& dmean, const View& document, std::int64_t block) {
  with_real(dx.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t N = dx.dim(1);
    for_each_counted(document, dx.dim(0), block, [&](std::int64_t b, std::int64_t t, std::int64_t counted) {
      for (std::int64_t n = 0; n < N; ++n) dx.as<Real>()[t * N + n] += dmean.as<Real>()[b * N + n] / Real(counted);
    });
  });
}

}  // namespace ref

}  // namespace capstan::kernels
