#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(Elementwise, AddAndScale) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor y = tensor_of({3}, DType::f32, device, {1, 2, 3});
    add(y, tensor_of({3}, DType::f32, device, {10, 20, 30}));
    scale(y, 0.5);
    EXPECT_EQ(values_of(y), (std::vector<double>{5.5, 11, 16.5}));
    EXPECT_THROW(add(y, tensor_of({2}, DType::f32, device, {1, 2})), Error);
    EXPECT_THROW(add(y, tensor_of({3}, DType::i32, device, {1, 2, 3})), Error);
  }
}

TEST(Elementwise, GroupsHandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor x = tensor_of({1, 4, 2}, DType::f32, device, {1, 2, 3, 4, 5, 6, 7, 8}),
                 y({1, 2, 2}, DType::f32, device);
    group_sum(y, x, 0.5);
    EXPECT_EQ(values_of(y), (std::vector<double>{2, 3, 6, 7}));
    group_spread(x, y, 2);
    EXPECT_EQ(values_of(x), (std::vector<double>{4, 6, 4, 6, 12, 14, 12, 14}));
    EXPECT_THROW(group_sum(Tensor({1, 3, 2}, DType::f32, device), x, 1), Error);
  }
}

TEST(Elementwise, GroupSpreadIsTheGradientOfGroupSum) {
  const Tensor x = random_tensor({3, 6, 5}, DType::f64, Device::ref, 1),
               dy = random_tensor({3, 2, 5}, DType::f64, Device::ref, 2);
  const Tensor y = zeros_like(dy), dx = zeros_like(x);
  group_spread(dx, dy, 0.25);
  check_gradient({{"x", x, dx}}, [&] {
    group_sum(y, x, 0.25);
    return weighted_sum(y, dy);
  });
}

TEST(Elementwise, CpuAccuracy) {
  const Tensor x = random_tensor({7, 12, 43}, DType::f32, Device::cpu, 1), y({7, 3, 43}, DType::f32, Device::cpu);
  const Tensor X = converted(x, DType::f64, Device::ref), Y({7, 3, 43}, DType::f64, Device::ref);
  group_sum(y, x, 1.0 / 3);
  group_sum(Y, X, 1.0 / 3);
  EXPECT_LE(relative_error(y, Y), f32_bound(converted(Y, DType::f32, Device::ref), Y));
  group_spread(x, y, 1.0 / 3);
  group_spread(X, converted(y, DType::f64, Device::ref), 1.0 / 3);
  EXPECT_LE(relative_error(x, X), f32_bound(converted(X, DType::f32, Device::ref), X));
}

TEST(Elementwise, Columns) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor whole = tensor_of({2, 4}, DType::f32, device, {0, 1, 2, 3, 4, 5, 6, 7}),
                 part({2, 2}, DType::f32, device);
    take_columns(part, whole, 1);
    EXPECT_EQ(values_of(part), (std::vector<double>{1, 2, 5, 6}));
    put_columns(whole, part, 2);
    EXPECT_EQ(values_of(whole), (std::vector<double>{0, 1, 1, 2, 4, 5, 5, 6}));
    EXPECT_THROW(take_columns(part, whole, 3), Error);
    EXPECT_THROW(take_columns(part, whole, -1), Error);
    EXPECT_THROW(put_columns(whole, Tensor({3, 2}, DType::f32, device), 0), Error);
  }
}

TEST(Elementwise, AllFinite) {
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
      for (const std::int64_t at : {0, 5, 42}) {
        const Tensor x = random_tensor({43}, DType::f32, device, 1);
        EXPECT_TRUE(all_finite(x));
        x.as<float>()[at] = bad;
        EXPECT_FALSE(all_finite(x)) << bad << " at " << at;
      }
    }
    EXPECT_TRUE(all_finite(Tensor({0}, DType::f32, device)));
  }
}

}  // namespace
}  // namespace capstan::tests
