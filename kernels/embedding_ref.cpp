#include "kernels/embedding.h"
#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_embedding(const Operands& operands, const View& y, const View& ids) {
  operands.check("y or dy", y, {y.dim(0), y.dim(-1)});
  operands.check("ids", ids, {y.dim(0)}, DType::i32);
}

}  // namespace

void embedding_forward(const View& y, const View& ids, const View& w) {
  const Operands operands("embedding_forward", y);
  check_embedding(operands, y, ids);
  operands.check("w", w, {w.dim(0), y.dim(1)});
  pick(y, ref::embedding_forward, cpu::embedding_forward, cuda::embedding_forward)(y, ids, w);
}

void embedding_backward(const View& dw, const View& ids, const View& dy) {
  const Operands operands("embedding_backward", dy);
  check_embedding(operands, dy, ids);
  operands.check_wide("dw", dw, {dw.dim(0), dy.dim(1)});
  pick(dy, ref::embedding_backward, cpu::embedding_backward, cuda::embedding_backward)(dw, ids, dy);
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
