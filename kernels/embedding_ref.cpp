#include "kernels/embedding.h"
#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_embedding(std::string_view operation, const View& y, const View& ids, const View& w) {
  const Operands operands(operation, y);
  const std::int64_t T = y.dim(0), C = y.dim(-1);
  operands.check("y or dy", y, {T, C});
  operands.check("ids", ids, {T}, DType::i32);
  operands.check("w or dw", w, {w.dim(0), C});
}

}  // namespace

void embedding_forward(const View& y, const View& ids, const View& w) {
  check_embedding("embedding_forward", y, ids, w);
  pick(y, ref::embedding_forward, cpu::embedding_forward)(y, ids, w);
}

void embedding_backward(const View& dw, const View& ids, const View& dy) {
  check_embedding("embedding_backward", dy, ids, dw);
  pick(dy, ref::embedding_backward, cpu::embedding_backward)(dw, ids, dy);
}

namespace ref {

// y[t, c] = w[id[t], c]
void embedding_forward(const View& y, const View& ids, const View& w) {
  with_real(y.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t C = y.dim(1), V = w.dim(0);
    for (std::int64_t t = 0; t < y.dim(0); ++t) {
      const std::int32_t id = ids.as<std::int32_t>()[t];
      CAPSTAN_CHECK(0 <= id && id < V, "token id {} at {}, of {} words", id, t, V);
      for (std::int64_t c = 0; c < C; ++c) y.as<Real>()[t * C + c] = w.as<Real>()[id * C + c];
    }
  });
}

// Of y[t, c] = w[id[t], c]:  dw[id[t], c] += dy[t, c]
void embedding_backward(const View& dw, const View& ids, const View& dy) {
  with_real(dy.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t C = dy.dim(1), V = dw.dim(0);
    for (std::int64_t t = 0; t < dy.dim(0); ++t) {
      const std::int32_t id = ids.as<std::int32_t>()[t];
      CAPSTAN_CHECK(0 <= id && id < V, "token id {} at {}, of {} words", id, t, V);
      for (std::int64_t c = 0; c < C; ++c) dw.as<Real>()[id * C + c] += dy.as<Real>()[t * C + c];
    }
  });
}

}  // namespace ref

}  // namespace capstan::kernels
