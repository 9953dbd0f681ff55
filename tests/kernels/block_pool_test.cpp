#include "kernels/block_pool.h"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(BlockPool, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // Blocks of 3: documents 0 0 1 | 1 1 1 | 2: of the first block only the part of document 1 counts; the last is
    // unfinished.
    const Tensor document = tensor_of({7}, DType::i64, device, {0, 0, 1, 1, 1, 1, 2});
    const Tensor x = tensor_of({7, 2}, DType::f32, device, {9, 9, 9, 9, 3, 4, 1, 0, 2, 0, 3, 6, 5, 7});
    const Tensor mean = tensor_of({3, 2}, DType::f32, device, {8, 8, 8, 8, 8, 8});  // overwritten
    block_mean(mean, x, document, 3);
    EXPECT_EQ(values_of(mean), (std::vector<double>{3, 4, 2, 2, 5, 7}));
    const Tensor dx = tensor_of({7, 2}, DType::f32, device, std::vector<double>(14, 1));
    const Tensor dmean = tensor_of({3, 2}, DType::f32, device, {1, 2, 3, 6, 4, 5});
    block_mean_backward(dx, dmean, document, 3);
    EXPECT_EQ(values_of(dx), (std::vector<double>{1, 1, 1, 1, 2, 3, 2, 3, 2, 3, 2, 3, 5, 6}));
  }
}

TEST(BlockPool, BlocksOfOneTokenAreTheTokens) {
  const Tensor x = random_tensor({20, 3}, DType::f32, Device::cpu, 1), mean = zeros_like(x),
               document({20}, DType::i64, Device::cpu);
  block_mean(mean, x, document, 1);
  EXPECT_TRUE(same_bits(mean, x));
}

TEST(BlockPool, GradientsMatchDifferences) {
  const Tensor document = tensor_of({10}, DType::i64, Device::ref, {0, 0, 0, 0, 0, 0, 1, 1, 1, 2});
  const Tensor x = random_tensor({10, 3}, DType::f64, Device::ref, 1), mean({3, 3}, DType::f64, Device::ref),
               dmean = random_tensor({3, 3}, DType::f64, Device::ref, 2), dx = zeros_like(x);
  block_mean_backward(dx, dmean, document, 4);
  check_gradient({{"x", x, dx}}, [&] {
    block_mean(mean, x, document, 4);
    return weighted_sum(mean, dmean);
  });
}

TEST(BlockPool, CpuWithinTheNaiveError) {
  for (const std::int64_t block : {1, 7, 64, 300}) {
    const std::int64_t blocks = (200 + block - 1) / block;
    std::vector<double> documents(200, 0);
    std::fill(documents.begin() + 90, documents.end(), 1);
    const auto run = [&](DType type, Device device, bool backward) {
      const Tensor document = tensor_of({200}, DType::i64, device, documents);
      const Tensor x = random_tensor({200, 12}, type, device, 3), mean = random_tensor({blocks, 12}, type, device, 4);
      if (!backward) block_mean(mean, x, document, block);
      else block_mean_backward(x, mean, document, block);
      return backward ? x.clone() : mean.clone();
    };
    for (const bool backward : {false, true}) {
      const Tensor exact = run(DType::f64, Device::ref, backward), naive = run(DType::f32, Device::ref, backward);
      EXPECT_LE(relative_error(run(DType::f32, Device::cpu, backward), exact), f32_bound(naive, exact)) << block;
    }
  }
}

TEST(BlockPool, WrongShapesAreRefused) {
  const Tensor x({10, 3}, DType::f32, Device::cpu), mean({3, 3}, DType::f32, Device::cpu),
      document({10}, DType::i64, Device::cpu);
  EXPECT_NO_THROW(block_mean(mean, x, document, 4));
  EXPECT_THROW(block_mean(mean, x, document, 3), Error);
  EXPECT_THROW(block_mean(mean, x, document, 0), Error);
  EXPECT_THROW(block_mean_backward(x, x, document, 4), Error);
}

}  // namespace
}  // namespace capstan::tests
