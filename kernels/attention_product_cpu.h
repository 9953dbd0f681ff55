#pragma once
// The f32 matrix product that attention's tiles are made of.

#include <cstdint>

namespace capstan::kernels::cpu {

/// c[r][column] from the sums Σ_k a[r·row_step + k·depth_step] b[k·stride + column], each one chain of multiply-adds in the
/// order of k: the bits of a result depend on neither rows, columns nor the instruction set's width (where it has
/// multiply-adds).
struct Product {
  const float* a;
  std::int64_t row_step, depth_step;
  const float* b;
  std::int64_t stride;  ///< of b's and of c's rows
  std::int64_t rows, columns,
      depth;  ///< rows are rounded up to a multiple of four: those beyond are made of what is there
  float* c;
  enum class Into : std::uint8_t { overwrite, add, scale_and_add } into;
  const float* scale = nullptr;  ///< [columns]: c = c scale + sum
};

/// With W floats in a register: 16 on AVX-512, 8 on AVX2, 4 on any x86-64. `columns` is a multiple of W.
template <int W> void multiply(const Product& product);
template <> void multiply<16>(const Product& product);
template <> void multiply<8>(const Product& product);
template <> void multiply<4>(const Product& product);

}  // namespace capstan::kernels::cpu
