// Matrix products without oneDNN, for programs that must run where it is not installed (CAPSTAN_DNNL=OFF): plain loops, several times
// slower. An element of c is one chain over k in its order, whatever rows stand beside it, which keeps the promise of products.h.

#include <algorithm>

#include "kernels/isa.h"
#include "kernels/products.h"
#include "kernels/scratch.h"
#include "kernels/stored_rows.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

/// Row `row` of m in f32: where it lies, or a copy in `memory`.
const float* wide_row(const Matrix& m, std::int64_t row, float* memory) {
  const char* const first = static_cast<const char*>(m.data);
  for (std::int64_t c = 0; c < m.columns; ++c) {
    const std::int64_t at = m.transposed ? c * m.pitch + row : row * m.pitch + c;
    memory[c] = m.type == DType::f32 ? reinterpret_cast<const float*>(first)[at]
                                     : to_float(reinterpret_cast<const BFloat16*>(first)[at]);
  }
  return memory;
}

/// sum [columns of b] += Σ_k a[k] b[k, ·].
void add_row_product(float* sum, const float* a, const float* b, std::int64_t inner, std::int64_t columns) {
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t k = 0; k < inner; ++k)
      for (std::int64_t c = 0; c < columns; ++c) sum[c] += a[k] * b[k * columns + c];
  });
}

/// Row `row` of c (+)= sum, rounded once.
void store_row(const Matrix& c, std::int64_t row, const float* sum, Into into) {
  void* const to = c.part(row, 1, 0, c.columns).data;
  const auto store = [&](auto* values) {
    if (into == Into::add) add_row(values, sum, c.columns);
    else convert_row(values, sum, c.columns);
  };
  if (c.type == DType::f32) store(static_cast<float*>(to));
  else store(static_cast<BFloat16*>(to));
}

}  // namespace

NarrowProducts best_narrow_products() { return NarrowProducts::widened; }

void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into, NarrowProducts) {
  thread_local Scratch of_b;
  float* const wide_b = of_b.of<float>(b.rows * c.columns);
  for (std::int64_t k = 0; k < b.rows; ++k) wide_row(b, k, wide_b + k * c.columns);
  parallel_for(c.rows, [&](std::int64_t row) {
    thread_local Scratch of_row;
    float *const wide_a = of_row.of<float>(a.columns + c.columns), *const sum = wide_a + a.columns;
    std::fill_n(sum, c.columns, 0.0f);
    add_row_product(sum, wide_row(a, row, wide_a), wide_b, a.columns, c.columns);
    store_row(c, row, sum, into);
  });
}

}  // namespace capstan::kernels::cpu
