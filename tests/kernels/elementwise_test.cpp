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

TEST(Elementwise, ConvertRoundsOnce) {
  const std::vector<double> values{1, -2.5, 1 + 0x1p-8, 1 + 0x1p-23, 0};
  for (const DType from : {DType::f32, DType::bf16})
    for (const DType to : {DType::f32, DType::bf16}) {
      const Tensor x = tensor_of({5}, from, Device::cpu, values), y({1, 5}, to, Device::cpu);
      convert(y, x);
      EXPECT_TRUE(same_bits(y, converted(x, to, Device::cpu)));
    }
  for (const DType from : {DType::f32, DType::f64})
    for (const DType to : {DType::f32, DType::f64}) {
      const Tensor x = tensor_of({5}, from, Device::ref, values), y({5}, to, Device::ref);
      convert(y, x);
      EXPECT_TRUE(same_bits(y, converted(x, to, Device::ref)));
    }
  const auto make = [](DType type, Device device, std::int64_t n) { return Tensor({n}, type, device); };
  const Tensor f32 = make(DType::f32, Device::cpu, 5);
  EXPECT_THROW(convert(f32, make(DType::bf16, Device::cpu, 4)), Error);
  EXPECT_THROW(convert(f32, make(DType::f64, Device::cpu, 5)), Error);
  EXPECT_THROW(convert(f32, make(DType::i32, Device::cpu, 5)), Error);
  EXPECT_THROW(convert(f32, make(DType::f32, Device::ref, 5)), Error);
  EXPECT_THROW(convert(make(DType::f32, Device::ref, 5), make(DType::bf16, Device::ref, 5)), Error);
}

TEST(Elementwise, AddRoundsOnceWhateverMeets) {
  for (const DType type_y : {DType::f32, DType::bf16})
    for (const DType type_x : {DType::f32, DType::bf16}) {
      const Tensor y = random_tensor({1000}, type_y, Device::cpu, 1), x = random_tensor({1000}, type_x, Device::cpu, 2);
      const Tensor sum = converted(y, DType::f32, Device::cpu);
      add(sum, converted(x, DType::f32, Device::cpu));
      add(y, x);
      EXPECT_TRUE(same_bits(y, converted(sum, type_y, Device::cpu)));
    }
  const Tensor f64({3}, DType::f64, Device::ref), f32({3}, DType::f32, Device::ref);
  EXPECT_THROW(add(f64, f32), Error);
  EXPECT_THROW(add(f32, f64), Error);
  EXPECT_THROW(add(Tensor({3}, DType::f32, Device::cpu), Tensor({3}, DType::i32, Device::cpu)), Error);
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
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({7, 12, 143}, type, Device::cpu, 1), y({7, 3, 143}, type, Device::cpu);
    const Tensor X = converted(x, DType::f64, Device::ref), Y({7, 3, 143}, DType::f64, Device::ref);
    group_sum(y, x, 1.0 / 3);
    group_sum(Y, X, 1.0 / 3);
    EXPECT_LE(relative_error(y, Y), stored_bound(type, converted(Y, DType::f32, Device::ref), Y));
    group_spread(x, y, 1.0 / 3);
    group_spread(X, converted(y, DType::f64, Device::ref), 1.0 / 3);
    EXPECT_LE(relative_error(x, X), stored_bound(type, converted(X, DType::f32, Device::ref), X));
    const Tensor scaled = converted(x, DType::f64, Device::ref);
    scale(x, 1.0 / 3);
    scale(scaled, 1.0 / 3);
    EXPECT_LE(relative_error(x, scaled), stored_bound(type, converted(scaled, DType::f32, Device::ref), scaled));
  }
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
  const auto check = [](Device device, DType type) {
    for (const double bad : {double(INFINITY), double(-INFINITY), std::nan("")}) {
      for (const std::size_t at : {0, 5, 42}) {
        std::vector<double> values = values_of(random_tensor({43}, type, device, 1));
        EXPECT_TRUE(all_finite(tensor_of({43}, type, device, values)));
        values[at] = bad;
        EXPECT_FALSE(all_finite(tensor_of({43}, type, device, values))) << bad << " at " << at;
      }
    }
    EXPECT_TRUE(all_finite(Tensor({0}, type, device)));
  };
  check(Device::ref, DType::f32);
  check(Device::cpu, DType::f32);
  check(Device::cpu, DType::bf16);
}

}  // namespace
}  // namespace capstan::tests
