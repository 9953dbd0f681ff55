#include "kernels/attention_product_cpu.h"

#include "kernels/attention_lanes.h"
#include "kernels/isa.h"

namespace capstan::kernels::cpu {
namespace {

/// Rows whose sums stay in registers beside N registers of columns: there are 32 registers for W = 16, else 16.
template <int W, int N> constexpr int block_rows = W == 16 ? (N == 4 ? 6 : 12) : W == 8 ? (N == 2 ? 6 : 8) : 4;

/// R rows and N·W columns.
template <int W, int R, int N>
[[gnu::always_inline]] inline void multiply_block(const Product& p, std::int64_t first, std::int64_t column) {
  const std::int64_t row_step = p.row_step, depth_step = p.depth_step, stride = p.stride, depth = p.depth;
  const float *a = p.a + first * row_step, *b = p.b + column;
  Reals<W> sum[R][N] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    Reals<W> x[N];
    for (int n = 0; n < N; ++n) x[n] = lanes<W>(b + k * stride + n * W);
    for (int r = 0; r < R; ++r) {
      const float factor = a[r * row_step + k * depth_step];
      for (int n = 0; n < N; ++n) sum[r][n] += factor * x[n];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      Reals<W>& c = lanes<W>(p.c + (first + r) * stride + column + n * W);
      if (p.into == Product::Into::overwrite) c = sum[r][n];
      else if (p.into == Product::Into::add) c = c + sum[r][n];
      else c = c * lanes<W>(p.scale + column + n * W) + sum[r][n];
    }
}

/// All rows of N·W columns.
template <int W, int N> [[gnu::always_inline]] inline void multiply_columns(const Product& p, std::int64_t column) {
  constexpr int R = block_rows<W, N>;
  std::int64_t row = 0, left = (p.rows + 3) / 4 * 4;
  // Blocks of six leave 8, 6 or 4 rows, never 2.
  for (; left >= R && (R % 4 == 0 || left == R || left > 8); row += R, left -= R)
    multiply_block<W, R, N>(p, row, column);
  if constexpr (R > 4)
    for (; left > 0; row += 4, left -= 4) multiply_block<W, 4, N>(p, row, column);
}

template <int W> [[gnu::always_inline]] inline void multiply_all(const Product& p) {
  constexpr int N = W == 16 ? 4 : 2;
  std::int64_t column = 0;
  for (; column + N * W <= p.columns; column += N * W) multiply_columns<W, N>(p, column);
  for (; column < p.columns; column += W) multiply_columns<W, 1>(p, column);
}

}  // namespace

template <> void multiply<16>(const Product& product) {
  run_avx512([&]() __attribute__((always_inline)) { multiply_all<16>(product); });
}
template <> void multiply<8>(const Product& product) {
  run_avx2([&]() __attribute__((always_inline)) { multiply_all<8>(product); });
}
template <> void multiply<4>(const Product& product) {
  run_portable([&]() __attribute__((always_inline)) { multiply_all<4>(product); });
}

}  // namespace capstan::kernels::cpu
