#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

/// One row of masks per token of two sequences.
Tensor dropped(DType type, Device device, double rate, std::uint64_t seed, std::int64_t first = 0) {
  const std::int64_t B = 2, T = 50, C = 70;
  Tensor x({B * T, C}, type, device), index({B, T}, DType::i64, device);
  x.view().copy_from(tensor_of({B * T, C}, type, device, std::vector<double>(std::size_t(B * T * C), 1)));
  for (std::int64_t n = 0; n < B * T; ++n) index.as<std::int64_t>()[n] = first + n % T;
  apply_dropout(x, index, rate, seed);
  return x;
}

TEST(Dropout, IsAsItsCommentSays) {
  const std::vector<double> values = values_of(dropped(DType::f64, Device::ref, 0.25, 7));
  for (std::int64_t n = 0; n < 100; ++n)
    for (std::int64_t c = 0; c < 70; ++c) {
      const std::uint32_t row = dropout_row(7, std::uint64_t(n / 50), std::uint64_t(n % 50));
      const bool gone = is_dropped(row, std::uint32_t(c), dropout_threshold(0.25));
      EXPECT_EQ(values[std::size_t(n * 70 + c)], gone ? 0 : 1 / 0.75);
    }
}

TEST(Dropout, CpuHasTheSameBits) {
  const Tensor ref = dropped(DType::f32, Device::ref, 0.3, 8);
  EXPECT_TRUE(same_bits(dropped(DType::f32, Device::cpu, 0.3, 8), ref));
  EXPECT_TRUE(same_bits(dropped(DType::bf16, Device::cpu, 0.3, 8), converted(ref, DType::bf16, Device::ref)));
}

TEST(Dropout, DropsItsRateAndKeepsTheRest) {
  for (const double rate : {0.0, 0.1, 0.5, 0.9}) {
    double gone = 0;
    for (const double value : values_of(dropped(DType::f32, Device::cpu, rate, 9))) {
      gone += value == 0;
      EXPECT_TRUE(value == 0 || value == float(1 / (1 - rate))) << value;
    }
    EXPECT_NEAR(gone / 7000, rate, 4 * std::sqrt(rate * (1 - rate) / 7000)) << rate;
  }
}

TEST(Dropout, RowsBelongToTokensNotToPlaces) {
  // Tokens 25 … 49 of a sequence, held from 0 on by another rank
  const Tensor whole = dropped(DType::f32, Device::cpu, 0.3, 10), part = dropped(DType::f32, Device::cpu, 0.3, 10, 25);
  EXPECT_TRUE(same_bits(whole.view().rows(25, 50), part.view().rows(0, 25)));
  EXPECT_FALSE(same_bits(whole.view().rows(0, 25), part.view().rows(0, 25)));
  EXPECT_FALSE(same_bits(whole.view().rows(0, 50), whole.view().rows(50, 100)));  // the other sequence
}

TEST(Dropout, RowsAndSeedsAreUnrelated) {
  std::set<std::uint32_t> rows;
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32})
    for (std::uint64_t a = 0; a < 40; ++a)
      for (std::uint64_t b = 0; b < 400; ++b) rows.insert(dropout_row(seed, a, b << (b % 2 * 30)));
  EXPECT_GT(rows.size(), 48000u - 4);  // 0.3 equal pairs are to be expected of random 32-bit numbers
  double both = 0;
  const std::uint32_t half = dropout_threshold(0.5);
  for (std::uint32_t c = 0; c < 10000; ++c)
    both += is_dropped(dropout_row(3, 0, 0), c, half) && is_dropped(dropout_row(3, 0, 1), c, half);
  EXPECT_NEAR(both / 10000, 0.25, 4 * std::sqrt(0.25 * 0.75 / 10000));
}

TEST(Dropout, WrongArgumentsAreRefused) {
  const Tensor x({4, 3}, DType::f32, Device::cpu), index({2, 2}, DType::i64, Device::cpu),
      few({1, 3}, DType::i64, Device::cpu);
  EXPECT_NO_THROW(apply_dropout(x, index, 0.5, 1));
  EXPECT_THROW(apply_dropout(x, few, 0.5, 1), Error);
  EXPECT_THROW(apply_dropout(x, index, 1, 1), Error);
  EXPECT_THROW(apply_dropout(x, index, -0.1, 1), Error);
}

}  // namespace
}  // namespace capstan::tests
