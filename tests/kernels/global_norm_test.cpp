#include "kernels/global_norm.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(GlobalNorm, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    EXPECT_EQ(sum_of_squares(tensor_of({3}, DType::f32, device, {1, -2, 3})), 14);
    EXPECT_EQ(sum_of_squares(Tensor({0}, DType::f32, device)), 0);
    const Tensor x = tensor_of({1}, DType::f32, device, {1e-23});
    EXPECT_NEAR(sum_of_squares(x) / 1e-46, 1, 1e-6);  // its square is below the range of f32
  }
}

TEST(GlobalNorm, CpuAgreesInDouble) {
  for (const std::int64_t n : {1, 15, 17, 1023, 1024, 1025, 5000}) {
    const double ref = sum_of_squares(random_tensor({n}, DType::f32, Device::ref, 1));
    const double cpu = sum_of_squares(random_tensor({n}, DType::f32, Device::cpu, 1));
    EXPECT_NEAR(cpu / ref, 1, 5e-13) << n;  // n ε at n = 2048 terms in one chain
    EXPECT_EQ(cpu, sum_of_squares(random_tensor({n}, DType::f32, Device::cpu, 1)));
  }
}

}  // namespace
}  // namespace capstan::tests
