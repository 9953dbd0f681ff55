#include <cstring>

#include "kernels/embedding.h"
#include "kernels/isa.h"
#include "kernels/stored_rows.h"
#include "kernels/threads.h"

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
  const std::int64_t C = y.dim(1), bytes = C * size_of(y.type());
  if (C == 0) return;
  parallel_rows(y.dim(0), C, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      std::memcpy(static_cast<char*>(y.data()) + t * bytes,
                  static_cast<const char*>(w.data()) + word(w, ids, t) * size_of(w.type()),
                  static_cast<std::size_t>(bytes));
  });
}

// Of y[t] = w[id[t]]:  dw[id[t]] += dy[t]. Threads take columns, so that each sum has one order.
void embedding_backward(const View& dw, const View& ids, const View& dy) {
  constexpr std::int64_t narrowest = 256;
  const std::int64_t T = dy.dim(0), C = dy.dim(1);
  with_stored(dy.type(), [&](auto stored) {
    parallel_rows(
        C, T,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = 0; t < T; ++t) {
            float* const sum = dw.as<float>() + word(dw, ids, t) + begin;
            const decltype(stored)* const row = dy.as<decltype(stored)>() + t * C + begin;
            on_best_isa([=]() __attribute__((always_inline)) { add_row(sum, row, end - begin); });
          }
        },
        narrowest);
  });
}

}  // namespace capstan::kernels::cpu
