#include <cstring>

#include "kernels/embedding.h"

namespace capstan::kernels::cpu {

namespace {

/// Where row id[t] of a table [V, C] begins.
std::int64_t word(const View& table, const View& ids, std::int64_t t) {
  const std::int32_t id = ids.as<std::int32_t>()[t];
  CAPSTAN_CHECK(0 <= id && id < table.dim(0), "token id {} at {}, of {} words", id, t, table.dim(0));
  return id * table.dim(1);
}

}  // namespace

// y[t] = w[id[t]]
void embedding_forward(const View& y, const View& ids, const View& w) {
  const std::int64_t T = y.dim(0), C = y.dim(1);
  if (C == 0) return;
  for (std::int64_t t = 0; t < T; ++t)
    std::memcpy(y.as<float>() + t * C, w.as<float>() + word(w, ids, t), sizeof(float) * static_cast<std::size_t>(C));
}

// Of y[t] = w[id[t]]:  dw[id[t]] += dy[t]
void embedding_backward(const View& dw, const View& ids, const View& dy) {
  const std::int64_t T = dy.dim(0), C = dy.dim(1);
  for (std::int64_t t = 0; t < T; ++t) {
    float* const sum = dw.as<float>() + word(dw, ids, t);
    const float* const row = dy.as<float>() + t * C;
    for (std::int64_t c = 0; c < C; ++c) sum[c] += row[c];
  }
}

}  // namespace capstan::kernels::cpu
