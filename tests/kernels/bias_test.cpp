#include "kernels/bias.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(Bias, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor b = tensor_of({2}, DType::f32, device, {3, -1}),
                 y = tensor_of({2, 2}, DType::f32, device, {1, 2, 4, 8});
    bias_forward(y, b, Into::add);
    EXPECT_EQ(values_of(y), (std::vector<double>{4, 1, 7, 7}));
    const Tensor db = tensor_of({2}, DType::f32, device, {10, 20});
    bias_backward(db, y);
    EXPECT_EQ(values_of(db), (std::vector<double>{21, 28}));
    bias_forward(y, b, Into::overwrite);
    EXPECT_EQ(values_of(y), (std::vector<double>{3, -1, 3, -1}));
  }
}

struct Results {
  Tensor copied, added, db;
};

/// Inputs are values of `grid`.
Results run(DType type, Device device, std::int64_t T, std::int64_t M, DType grid) {
  const auto make = [&](Shape shape, DType as, std::uint64_t seed) {
    return random_tensor(shape, as, device, seed, 1, grid);
  };
  const Tensor b = make({M}, type, 1), dy = make({T, M}, type, 2);
  Results out{make({T, M}, type, 3), make({T, M}, type, 4), make({M}, wide(type), 5)};
  bias_forward(out.copied, b, Into::overwrite);
  bias_forward(out.added, b, Into::add);
  bias_backward(out.db, dy);
  return out;
}

/// db one term after the other in f32: the rule's naive implementation (ref sums in double).
Tensor naive_sum(std::int64_t T, std::int64_t M, DType grid) {
  Tensor db = random_tensor({M}, DType::f32, Device::ref, 5, 1, grid);
  const Tensor dy = random_tensor({T, M}, DType::f32, Device::ref, 2, 1, grid);
  for (std::int64_t i = 0; i < T * M; ++i) db.as<float>()[i % M] += dy.as<float>()[i];
  return db;
}

TEST(Bias, CpuAccuracy) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [T, M] : {std::pair<std::int64_t, std::int64_t>{7, 43}, {130, 172}, {3, 1}, {1, 40}}) {
      const Results exact = run(DType::f64, Device::ref, T, M, type), f32 = run(DType::f32, Device::ref, T, M, type),
                    cpu = run(type, Device::cpu, T, M, type);
      EXPECT_EQ(values_of(cpu.copied), values_of(exact.copied));
      EXPECT_LE(relative_error(cpu.added, exact.added), stored_bound(type, f32.added, exact.added)) << T << " " << M;
      EXPECT_LE(relative_error(cpu.db, exact.db), f32_bound(naive_sum(T, M, type), exact.db)) << T << " " << M;
    }
}

TEST(Bias, RefusesOtherShapesAndNarrowSums) {
  const Tensor y({2, 3}, DType::bf16, Device::cpu), b({3}, DType::bf16, Device::cpu), f32({3}, DType::f32, Device::cpu),
      other({2}, DType::bf16, Device::cpu);
  EXPECT_NO_THROW(bias_backward(f32, y));
  EXPECT_THROW(bias_backward(b, y), Error);
  EXPECT_THROW(bias_forward(y, f32, Into::add), Error);
  EXPECT_THROW(bias_forward(y, other, Into::add), Error);
}

}  // namespace
}  // namespace capstan::tests
