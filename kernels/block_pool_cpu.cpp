#include <algorithm>

#include "kernels/block_pool.h"
#include "kernels/threads.h"

// These loops wait for memory; the compiler's default instruction set is enough.

namespace capstan::kernels::cpu {

namespace {

/// Calls body(block, first token that counts, one past the last): documents are runs, so these are neighbours.
template <class Body> void for_each_block(const View& document, const View& x, std::int64_t block, const Body& body) {
  const std::int64_t* const d = document.as<std::int64_t>();
  const std::int64_t tokens = x.dim(0);
  parallel_rows((tokens + block - 1) / block, block * x.dim(1), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const std::int64_t begin = b * block, end = std::min(begin + block, tokens);
      body(b, std::find(d + begin, d + end, d[end - 1]) - d, end);
    }
  });
}

}  // namespace

// mean_b = (Σ_j x_j) / n, summed in the order of j
void block_mean(const View& mean, const View& x, const View& document, std::int64_t block) {
  const std::int64_t N = x.dim(1);
  for_each_block(document, x, block, [&](std::int64_t b, std::int64_t first, std::int64_t end) {
    float* const M = mean.as<float>() + b * N;  // [N]
    std::fill_n(M, N, 0.0f);
    for (std::int64_t t = first; t < end; ++t) {
      const float* const X = x.as<float>() + t * N;  // [N]
      for (std::int64_t n = 0; n < N; ++n) M[n] += X[n];
    }
    for (std::int64_t n = 0; n < N; ++n) M[n] /= float(end - first);
  });
}

// Of mean_b = (Σ_j x_j) / n:  dx_j += dmean_b / n
void block_mean_backward(const View& dx, const View& dmean, const View& document, std::int64_t block) {
  const std::int64_t N = dx.dim(1);
  for_each_block(document, dx, block, [&](std::int64_t b, std::int64_t first, std::int64_t end) {
    const float* const M = dmean.as<float>() + b * N;  // [N]
    for (std::int64_t t = first; t < end; ++t) {
      float* const X = dx.as<float>() + t * N;  // [N]
      for (std::int64_t n = 0; n < N; ++n) X[n] += M[n] / float(end - first);
    }
  });
}

}  // namespace capstan::kernels::cpu
