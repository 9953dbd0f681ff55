#pragma once
// Rows of tensors into lanes and back: the transposes at the edges of a query tile. Arrays named x_t are [entry][lane].

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::kernels::cpu {

/// From one row to the next where rows lie side by side: not a multiple of many cache lines, so that a column of a tile fits
/// the first-level cache, whose places go by address.
inline std::int64_t row_stride(std::int64_t columns_p) { return columns_p + 16; }

/// Rows [begin, begin + rows) of x [T, heads, columns], f32 or bf16, one head, times factor, into the first `columns` entries
/// of x_t [columns_p][lane_count], and row by row into `also` [lane_count][row_stride(columns_p)] if it is given. Zeros beyond
/// the rows and the columns. lane_count is a multiple of 16.
void gather_rows(float* x_t, float* also, const View& x, std::int64_t begin, std::int64_t rows, std::int64_t head,
                 std::int64_t columns_p, int lane_count, float factor);

/// The adjoint place: x[row, head, :] = or += factor · x_t[:, lane]; x is f32.
void scatter_rows(const View& x, const float* x_t, std::int64_t begin, std::int64_t rows, std::int64_t head,
                  int lane_count, float factor, Into into);

}  // namespace capstan::kernels::cpu
