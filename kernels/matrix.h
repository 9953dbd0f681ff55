#pragma once
// Matrices as products see them.

#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::kernels {

/// Element (r, c) lies at r · pitch + c, or at c · pitch + r if the matrix is transposed.
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
inline Matrix transpose_of(const Matrix& m) { return {m.data, m.type, m.columns, m.rows, m.pitch, !m.transposed}; }

}  // namespace capstan::kernels
