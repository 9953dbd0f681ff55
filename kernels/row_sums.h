#pragma once
// Sums over rows with the same bits for any number of threads.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/scratch.h"
#include "kernels/tensor.h"
#include "kernels/threads.h"

namespace capstan::kernels {

/// Adds to each of N arrays of f32, sums[i] (absent: nothing), what body(begin, end, partials) adds to partials[i] (null)
/// over all blocks of 64 rows. Partial arrays are zero before, and are added in the order of blocks.
/// cost: elements touched per row.
template <std::size_t N, class Body>
void sum_over_rows(const std::array<View, N>& sums, std::int64_t rows, std::int64_t cost, const Body& body) {
  constexpr std::int64_t length = 64;
  thread_local Scratch memory;
  const std::int64_t blocks = (rows + length - 1) / length;
  std::int64_t width = 0;
  for (const View& sum : sums) width += sum.elements();
  float* const partial = memory.of<float>(blocks * width);  // [blocks, width]
  parallel_rows(blocks, length * cost, [&](std::int64_t begin, std::int64_t end) {
    std::fill(partial + begin * width, partial + end * width, 0.0f);
    for (std::int64_t b = begin; b < end; ++b) {
      std::array<float*, N> of_block{};
      float* at = partial + b * width;
      for (std::size_t i = 0; i < N; at += sums[i].elements(), ++i) of_block[i] = sums[i] ? at : nullptr;
      body(b * length, std::min(rows, (b + 1) * length), of_block);
    }
  });
  const float* at = partial;
  for (const View& sum : sums) {
    parallel_rows(sum.elements(), blocks, [&, at](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = 0; b < blocks; ++b)
        for (std::int64_t i = begin; i < end; ++i) sum.as<float>()[i] += at[b * width + i];
    });
    at += sum.elements();
  }
}

}  // namespace capstan::kernels
