#pragma once
// Matrix products on `cpu`, for the operations that are made of them.

#include <algorithm>
#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::kernels::cpu {

/// A matrix in memory as a product sees it: element (r, c) lies at r · pitch + c, or at c · pitch + r if it is transposed.
struct Matrix {
  void* data;
  DType type;  ///< f32 or bf16
  std::int64_t rows, columns, pitch;
  bool transposed = false;

  /// The part of it with these rows and columns.
  Matrix part(std::int64_t row, std::int64_t row_count, std::int64_t column, std::int64_t column_count) const {
    const std::int64_t offset = transposed ? column * pitch + row : row * pitch + column;
    return {static_cast<char*>(data) + offset * size_of(type), type, row_count, column_count, pitch, transposed};
  }
};

/// A view [rows, columns], or the transpose of one.
inline Matrix matrix(const View& view) { return {view.data(), view.type(), view.dim(0), view.dim(1), view.dim(1)}; }
inline Matrix transposed(const View& view) {
  return {view.data(), view.type(), view.dim(1), view.dim(0), view.dim(1), true};
}

/// How two bf16 matrices are multiplied. `native`: by oneDNN's bf16 primitives. `widened`: blocks of them are converted to f32 in
/// the cache, which is the faster way wherever there is no matrix unit (AMX).
enum class NarrowProducts : std::uint8_t { native, widened };
NarrowProducts best_narrow_products();

/// c (+)= a b, summed in f32 and rounded once.  a and b of one type; c of that type, or f32; not transposed.
/// The bits of a row of c depend on that row of a and on b only, if a is not transposed: see products.cpp.
void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into,
              NarrowProducts narrow = best_narrow_products());

}  // namespace capstan::kernels::cpu
