// Sums and maxima of kernels/reduce.cuh.

#include "kernels/reduce.cuh"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/launch.cuh"
#include "kernels/ptx.cuh"
#include "tests/simt/device_array.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

struct Reduced {
  float warp_sum, warp_max, block_sum, block_max, again;
};

__global__ void reduce(Reduced* out, const float* in) {
  BlockReduction& shared = ptx::shared<BlockReduction>();
  const float x = in[threadIdx.x];
  Reduced& of_thread = out[threadIdx.x];
  of_thread.warp_sum = warp_sum(x);
  of_thread.warp_max = warp_max(x);
  of_thread.block_sum = block_sum(shared, x);
  of_thread.block_max = block_max(shared, x);  // at once after the last one, with the same shared memory
  of_thread.again = block_sum(shared, x);
}

std::vector<float> inputs(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(normal(1, i) - 3);  // all maxima below zero
  return values;
}

std::vector<Reduced> run(const std::vector<float>& in, simt::Order order) {
  const simt::Session session(order);
  const DeviceArray<float> from(in);
  const DeviceArray<Reduced> to(in.size());
  launch<BlockReduction>(reduce, dim3(1), dim3(static_cast<unsigned>(in.size())), nullptr, to.data(), from.data());
  return to.values();
}

/// Balanced pairwise sum: what a butterfly gives, term by term.
float pairwise(const float* x, std::size_t n) {
  return n == 1 ? x[0] : pairwise(x, n / 2) + pairwise(x + n / 2, n / 2);
}

TEST(SimtReduce, WarpsAndBlocks) {
  for (const std::size_t threads : {32u, 64u, 96u, 256u, 1024u}) {
    const std::vector<float> in = inputs(threads);
    const std::vector<Reduced> got = run(in, {});
    std::vector<float> of_warp(32, 0);
    for (std::size_t warp = 0; warp < threads / 32; ++warp) of_warp[warp] = pairwise(&in[warp * 32], 32);
    const float sum = pairwise(of_warp.data(), 32), largest = *std::max_element(in.begin(), in.end());
    for (std::size_t i = 0; i < threads; ++i) {
      const float* const warp = &in[i / 32 * 32];
      EXPECT_EQ(got[i].warp_sum, of_warp[i / 32]);
      EXPECT_EQ(got[i].warp_max, *std::max_element(warp, warp + 32));
      EXPECT_EQ(got[i].block_sum, sum);
      EXPECT_EQ(got[i].again, sum);
      EXPECT_EQ(got[i].block_max, largest);
    }
  }
}

TEST(SimtReduce, SameBitsInEveryOrder) {
  const std::vector<float> in = inputs(256);
  const float first = run(in, {})[0].block_sum;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const Reduced& of_thread : run(in, {simt::Order::Kind::random, seed}))
      ASSERT_EQ(std::bit_cast<std::uint32_t>(of_thread.block_sum), std::bit_cast<std::uint32_t>(first));
}

}  // namespace
}  // namespace capstan::tests
