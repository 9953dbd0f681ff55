#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

constexpr Activation both[] = {Activation::silu, Activation::gelu};
std::string name_of(Activation f) { return f == Activation::silu ? " silu " : " gelu "; }

TEST(Activation, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // silu(0) = 0, silu'(0) = 1/2; σ(ln 3) = 3/4
    const double ln3 = std::log(3.0);
    const Tensor gate = tensor_of({1, 2}, DType::f32, device, {0, ln3}),
                 up = tensor_of({1, 2}, DType::f32, device, {6, 8}), h = zeros_like(up);
    gated_forward(h, gate, up, Activation::silu);
    EXPECT_EQ(values_of(h)[0], 0);
    EXPECT_NEAR(values_of(h)[1], 6 * ln3, 1e-6);
    const Tensor dh = tensor_of({1, 2}, DType::f32, device, {1, 1}), dgate = zeros_like(h), dup = zeros_like(h);
    gated_backward(dgate, dup, dh, gate, up, Activation::silu);
    EXPECT_EQ(values_of(dgate)[0], 3);
    EXPECT_NEAR(values_of(dgate)[1], 6 * (1 + ln3 / 4), 1e-5);
    EXPECT_EQ(values_of(dup)[0], 0);
    EXPECT_NEAR(values_of(dup)[1], 0.75 * ln3, 1e-6);
  }
}

/// Φ(1) and φ(1) from tables (Abramowitz & Stegun, table 26.1); gelu(0) = 0, gelu'(0) = 1/2; gelu(-1) = gelu(1) - 1.
TEST(Activation, GeluHandSized) {
  constexpr double normal = 0.841344746068543, bell = 0.241970724519143;
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor x = tensor_of({1, 3}, DType::f32, device, {0, 1, -1}), y = zeros_like(x), dx = zeros_like(x);
    activation_forward(y, x, Activation::gelu);
    EXPECT_EQ(values_of(y)[0], 0);
    EXPECT_NEAR(values_of(y)[1], normal, 2e-7);
    EXPECT_NEAR(values_of(y)[2], normal - 1, 2e-7);
    activation_backward(dx, tensor_of({1, 3}, DType::f32, device, {1, 1, 1}), x, Activation::gelu);
    EXPECT_NEAR(values_of(dx)[0], 0.5, 1e-7);
    EXPECT_NEAR(values_of(dx)[1], normal + bell, 3e-7);
    EXPECT_NEAR(values_of(dx)[2], 1 - normal - bell, 3e-7);
  }
}

TEST(Activation, GradientsMatchDifferences) {
  for (const Activation f : both) {
    const Tensor gate = random_tensor({5, 7}, DType::f64, Device::ref, 1, 3),
                 up = random_tensor({5, 7}, DType::f64, Device::ref, 2);
    const Tensor dh = random_tensor({5, 7}, DType::f64, Device::ref, 3), h = zeros_like(up), dgate = zeros_like(up),
                 dup = zeros_like(up);
    gated_backward(dgate, dup, dh, gate, up, f);
    check_gradient({{"gate", gate, dgate}, {"up", up, dup}}, [&] {
      gated_forward(h, gate, up, f);
      return weighted_sum(h, dh);
    });
    activation_backward(dgate, dh, gate, f);
    check_gradient({{"x", gate, dgate}}, [&] {
      activation_forward(h, gate, f);
      return weighted_sum(h, dh);
    });
  }
}

struct Results {
  Tensor h, dgate, dup, y, dx;
};

/// Inputs are values of `grid`.
Results run(Activation f, DType type, Device device, Shape shape, DType grid) {
  const Tensor gate = random_tensor(shape, type, device, 1, 4, grid),
               up = random_tensor(shape, type, device, 2, 1, grid), dh = random_tensor(shape, type, device, 3, 1, grid);
  Results out{zeros_like(gate), zeros_like(gate), zeros_like(gate), zeros_like(gate), zeros_like(gate)};
  gated_forward(out.h, gate, up, f);
  gated_backward(out.dgate, out.dup, dh, gate, up, f);
  activation_forward(out.y, gate, f);
  activation_backward(out.dx, dh, gate, f);
  return out;
}

TEST(Activation, CpuAccuracy) {
  for (const Activation f : both)
    for (const DType type : {DType::f32, DType::bf16})
      for (const Shape& shape : {Shape{7, 43}, Shape{130, 172}, Shape{5}, Shape{3, 4, 5}}) {
        const Results exact = run(f, DType::f64, Device::ref, shape, type),
                      f32 = run(f, DType::f32, Device::ref, shape, type), cpu = run(f, type, Device::cpu, shape, type);
        for (const auto tensor : {&Results::h, &Results::dgate, &Results::dup, &Results::y, &Results::dx})
          EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor), stored_bound(type, f32.*tensor, exact.*tensor))
              << kernels::name_of(type) << name_of(f) << shape.text();
      }
}

/// Both functions; ref in f32, cpu in both types.
template <class Body> void for_each_type(const Body& body) {
  for (const Activation f : both) {
    body(f, Device::ref, DType::f32);
    body(f, Device::cpu, DType::f32);
    body(f, Device::cpu, DType::bf16);
  }
}

TEST(Activation, ResultsMayLieOverOperands) {
  for_each_type([](Activation f, Device device, DType type) {
    const Results apart = run(f, type, device, {7, 43}, type);
    const Tensor gate = random_tensor({7, 43}, type, device, 1, 4), up = random_tensor({7, 43}, type, device, 2);
    const Tensor dh = random_tensor({7, 43}, type, device, 3), x = gate.clone(), again = gate.clone();
    gated_backward(gate, up, dh, gate, up, f);
    EXPECT_TRUE(same_bits(gate, apart.dgate));
    EXPECT_TRUE(same_bits(up, apart.dup));
    activation_backward(again, dh, again, f);
    EXPECT_TRUE(same_bits(again, apart.dx));
    activation_backward(dh, dh, x, f);
    EXPECT_TRUE(same_bits(dh, apart.dx));
  });
}

TEST(Activation, RowsDoNotDependOnOtherRows) {
  for_each_type([](Activation f, Device device, DType type) {
    const Results all = run(f, type, device, {20, 43}, type);
    const Tensor gate = random_tensor({20, 43}, type, device, 1, 4), up = random_tensor({20, 43}, type, device, 2);
    const Tensor row({1, 43}, type, device);
    for (std::int64_t t = 0; t < 20; ++t) {
      gated_forward(row, gate.view().rows(t, t + 1), up.view().rows(t, t + 1), f);
      EXPECT_TRUE(same_bits(row, all.h.view().rows(t, t + 1)));
      activation_forward(row, gate.view().rows(t, t + 1), f);
      EXPECT_TRUE(same_bits(row, all.y.view().rows(t, t + 1)));
    }
  });
}

TEST(Activation, ExtremeGates) {
  const Tensor x = tensor_of({1, 4}, DType::f32, Device::cpu, {-1e4, -80, 80, 1e4}), y = zeros_like(x),
               dx = zeros_like(x);
  activation_forward(y, x, Activation::silu);
  EXPECT_EQ(values_of(y)[0], 0);
  EXPECT_NEAR(values_of(y)[1] / (-80 * std::exp(-80.0)), 1, 1e-5);
  EXPECT_EQ(values_of(y)[2], 80);
  EXPECT_EQ(values_of(y)[3], 1e4);
  activation_backward(dx, tensor_of({1, 4}, DType::f32, Device::cpu, {1, 1, 1, 1}), x, Activation::silu);
  EXPECT_EQ(values_of(dx)[0], 0);
  EXPECT_EQ(values_of(dx)[3], 1);
}

TEST(Activation, GeluOfExtremes) {
  const std::vector<double> at{-1e4, -13, -6, 6, 1e4};
  const Tensor x = tensor_of({1, 5}, DType::f32, Device::cpu, at), y = zeros_like(x), dx = zeros_like(x);
  activation_forward(y, x, Activation::gelu);
  EXPECT_EQ(values_of(y)[0], 0);
  for (const std::size_t i : {1, 2}) {  // the tail keeps its relative accuracy: (x²/2 + 6) · 2⁻²³, and one product
    const double exact = at[i] * 0.5 * std::erfc(-at[i] / std::sqrt(2.0));
    EXPECT_NEAR(values_of(y)[i] / exact, 1, (at[i] * at[i] / 2 + 7) * std::ldexp(1.0, -23)) << at[i];
  }
  EXPECT_EQ(values_of(y)[3], 6);
  EXPECT_EQ(values_of(y)[4], 1e4);
  activation_backward(dx, tensor_of({1, 5}, DType::f32, Device::cpu, {1, 1, 1, 1, 1}), x, Activation::gelu);
  EXPECT_EQ(values_of(dx)[0], 0);
  EXPECT_EQ(values_of(dx)[4], 1);
}

}  // namespace
}  // namespace capstan::tests
