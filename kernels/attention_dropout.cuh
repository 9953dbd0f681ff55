#pragma once
// kernels/dropout.h on a GPU: which attention weights are dropped is a pure function of (seed, head, index_i, index_j).

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_meeting.cuh"

namespace capstan::kernels::cuda::attention {

__device__ inline std::uint32_t mix_bits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// Keys of the masks of the thread's rows.
struct DropoutRows {
  std::uint32_t row[half_rows] = {};

  __device__ DropoutRows(const Arguments& a, const QueryTile& t, const Lane& lane) {
    const DropoutArguments& dropout = a.dropout;
    if (!dropout.on) return;
    const auto low = static_cast<std::uint32_t>(dropout.seed), high = static_cast<std::uint32_t>(dropout.seed >> 32);
    const auto head = static_cast<std::uint32_t>(dropout.first_head + t.head);
    const std::uint32_t of_head = mix_bits(mix_bits(mix_bits(low + 0x9e3779b9u) ^ high) ^ (head * 0x85ebca6bu + 1));
#pragma unroll
    for (int h = 0; h < half_rows; ++h) {
      const auto index = static_cast<std::uint64_t>(t.index(a, lane, h));
      row[h] = mix_bits(
          of_head ^ (static_cast<std::uint32_t>(index) * 0xc2b2ae35u + static_cast<std::uint32_t>(index >> 32) + 1));
    }
  }
  /// What multiplies the weight in O.
  __device__ float kept(const DropoutArguments& dropout, const Meeting& m, int h, int column) const {
    const auto key = static_cast<std::uint32_t>(m.first + column);
    return mix_bits(row[h] ^ (key * 0x9e3779b9u)) < dropout.threshold ? 0.0f : dropout.factor;
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
