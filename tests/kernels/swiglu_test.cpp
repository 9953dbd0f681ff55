#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(Swiglu, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // silu(0) = 0, silu'(0) = 1/2; σ(ln 3) = 3/4
    const double ln3 = std::log(3.0);
    const Tensor gate = tensor_of({1, 2}, DType::f32, device, {0, ln3}),
                 up = tensor_of({1, 2}, DType::f32, device, {6, 8}), h = zeros_like(up);
    swiglu_forward(h, gate, up);
    EXPECT_EQ(values_of(h)[0], 0);
    EXPECT_NEAR(values_of(h)[1], 6 * ln3, 1e-6);
    const Tensor dh = tensor_of({1, 2}, DType::f32, device, {1, 1}), dgate = zeros_like(h), dup = zeros_like(h);
    swiglu_backward(dgate, dup, dh, gate, up);
    EXPECT_EQ(values_of(dgate)[0], 3);
    EXPECT_NEAR(values_of(dgate)[1], 6 * (1 + ln3 / 4), 1e-5);
    EXPECT_EQ(values_of(dup)[0], 0);
    EXPECT_NEAR(values_of(dup)[1], 0.75 * ln3, 1e-6);
  }
}

TEST(Swiglu, GradientsMatchDifferences) {
  const Tensor gate = random_tensor({5, 7}, DType::f64, Device::ref, 1, 3),
               up = random_tensor({5, 7}, DType::f64, Device::ref, 2);
  const Tensor dh = random_tensor({5, 7}, DType::f64, Device::ref, 3), h = zeros_like(up), dgate = zeros_like(up),
               dup = zeros_like(up);
  swiglu_backward(dgate, dup, dh, gate, up);
  check_gradient({{"gate", gate, dgate}, {"up", up, dup}}, [&] {
    swiglu_forward(h, gate, up);
    return weighted_sum(h, dh);
  });
  silu_backward(dgate, dh, gate);
  check_gradient({{"x", gate, dgate}}, [&] {
    silu_forward(h, gate);
    return weighted_sum(h, dh);
  });
}

struct Results {
  Tensor h, dgate, dup, y, dx;
};

/// Inputs are values of `grid`.
Results run(DType type, Device device, Shape shape, DType grid) {
  const Tensor gate = random_tensor(shape, type, device, 1, 4, grid),
               up = random_tensor(shape, type, device, 2, 1, grid), dh = random_tensor(shape, type, device, 3, 1, grid);
  Results out{zeros_like(gate), zeros_like(gate), zeros_like(gate), zeros_like(gate), zeros_like(gate)};
  swiglu_forward(out.h, gate, up);
  swiglu_backward(out.dgate, out.dup, dh, gate, up);
  silu_forward(out.y, gate);
  silu_backward(out.dx, dh, gate);
  return out;
}

TEST(Swiglu, CpuAccuracy) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{7, 43}, Shape{130, 172}, Shape{5}, Shape{3, 4, 5}}) {
      const Results exact = run(DType::f64, Device::ref, shape, type), f32 = run(DType::f32, Device::ref, shape, type),
                    cpu = run(type, Device::cpu, shape, type);
      for (const auto tensor : {&Results::h, &Results::dgate, &Results::dup, &Results::y, &Results::dx})
        EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor), stored_bound(type, f32.*tensor, exact.*tensor))
            << name_of(type) << shape.text();
    }
}

/// ref in f32, cpu in both types.
template <class Body> void for_each_type(const Body& body) {
  body(Device::ref, DType::f32);
  body(Device::cpu, DType::f32);
  body(Device::cpu, DType::bf16);
}

TEST(Swiglu, ResultsMayLieOverOperands) {
  for_each_type([](Device device, DType type) {
    const Results apart = run(type, device, {7, 43}, type);
    const Tensor gate = random_tensor({7, 43}, type, device, 1, 4), up = random_tensor({7, 43}, type, device, 2);
    const Tensor dh = random_tensor({7, 43}, type, device, 3), x = gate.clone();
    swiglu_backward(gate, up, dh, gate, up);
    EXPECT_TRUE(same_bits(gate, apart.dgate));
    EXPECT_TRUE(same_bits(up, apart.dup));
    silu_backward(dh, dh, x);
    EXPECT_TRUE(same_bits(dh, apart.dx));
  });
}

TEST(Swiglu, RowsDoNotDependOnOtherRows) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Results all = run(type, Device::cpu, {20, 43}, type);
    const Tensor gate = random_tensor({20, 43}, type, Device::cpu, 1, 4),
                 up = random_tensor({20, 43}, type, Device::cpu, 2);
    const Tensor row({1, 43}, type, Device::cpu);
    for (std::int64_t t = 0; t < 20; ++t) {
      swiglu_forward(row, gate.view().rows(t, t + 1), up.view().rows(t, t + 1));
      EXPECT_TRUE(same_bits(row, all.h.view().rows(t, t + 1)));
      silu_forward(row, gate.view().rows(t, t + 1));
      EXPECT_TRUE(same_bits(row, all.y.view().rows(t, t + 1)));
    }
  }
}

TEST(Swiglu, ExtremeGates) {
  const Tensor x = tensor_of({1, 4}, DType::f32, Device::cpu, {-1e4, -80, 80, 1e4}), y = zeros_like(x),
               dx = zeros_like(x);
  silu_forward(y, x);
  EXPECT_EQ(values_of(y)[0], 0);
  EXPECT_NEAR(values_of(y)[1] / (-80 * std::exp(-80.0)), 1, 1e-5);
  EXPECT_EQ(values_of(y)[2], 80);
  EXPECT_EQ(values_of(y)[3], 1e4);
  silu_backward(dx, tensor_of({1, 4}, DType::f32, Device::cpu, {1, 1, 1, 1}), x);
  EXPECT_EQ(values_of(dx)[0], 0);
  EXPECT_EQ(values_of(dx)[3], 1);
}

}  // namespace
}  // namespace capstan::tests
