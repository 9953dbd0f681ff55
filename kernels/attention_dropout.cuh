#pragma once
// kernels/dropout.h on a GPU: which attention weights are dropped is a pure function of (seed, head, index_i, index_j).

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_meeting.cuh"
#include "kernels/dropout.h"

namespace capstan::kernels::cuda::attention {

/// Keys of the masks of the thread's rows.
struct DropoutRows {
  std::uint32_t row[half_rows] = {};

  __device__ DropoutRows(const Arguments& a, const QueryTile& t, const Lane& lane) {
    if (!a.dropout.on) return;
#pragma unroll
    for (int h = 0; h < half_rows; ++h)
      row[h] = dropout_row(a.dropout.seed, static_cast<std::uint64_t>(a.dropout.first_head + t.head),
                           static_cast<std::uint64_t>(t.index(a, lane, h)));
  }
  /// What multiplies the weight in O.
  __device__ float kept(const DropoutArguments& dropout, const Meeting& m, int h, int column) const {
    const auto key = static_cast<std::uint32_t>(m.first + column);
    return is_dropped(row[h], key, dropout.threshold) ? 0.0f : dropout.factor;
  }
};

/// Weights → what O is made of.
__device__ inline void drop_weights(Fragment& weight, const Arguments& a, const QueryTile& t, const Meeting& m,
                                    const Lane& lane) {
  const DropoutRows rows(a, t, lane);
  for_each_element(lane,
                   [&](int n, int i, int h, int column) { weight.at[n][i] *= rows.kept(a.dropout, m, h, column); });
}

}  // namespace capstan::kernels::cuda::attention
