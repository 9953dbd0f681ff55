#include "kernels/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(Rotary, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // (1 + 2i) i = -2 + i and (3 + 4i)(1 + i) = -1 + 7i; elements f and f + D/2 are one number
    const Tensor x = tensor_of({1, 1, 4}, DType::f32, device, {1, 3, 2, 4}),
                 z = tensor_of({1, 1, 4}, DType::f32, device, {0, 1, 1, 1});
    const Tensor y = zeros_like(x), dx = zeros_like(x), dz = tensor_of({1, 1, 4}, DType::f32, device, {1, 1, 1, 1});
    rotary_forward(y, x, z);
    EXPECT_EQ(values_of(y), (std::vector<double>{-2, -1, 1, 7}));
    // conj(i)(-2 + i) = 1 + 2i; conj(1 + i)(-1 + 7i) = 6 + 8i; conj(x) y = |x|² z
    rotary_backward(dx, dz, y, x, z);
    EXPECT_EQ(values_of(dx), (std::vector<double>{1, 6, 2, 8}));
    EXPECT_EQ(values_of(dz), (std::vector<double>{1, 26, 6, 26}));
  }
}

TEST(Rotary, PhasesStayExactFarOut) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const std::int64_t far = 1 << 20;
    const Tensor position = tensor_of({3}, DType::i64, device, {0, 1, static_cast<double>(far)}),
                 z({3, 1, 4}, DType::f32, device);
    const std::vector<double> frequency{1, 1e-4};
    rotary_phases(z, position, frequency, 2);
    const std::vector<double> got = values_of(z);
    for (int t = 0; t < 3; ++t) {
      for (int f = 0; f < 2; ++f) {
        const double angle = values_of(position)[static_cast<std::size_t>(t)] * frequency[static_cast<std::size_t>(f)];
        EXPECT_NEAR(got[static_cast<std::size_t>(4 * t + f)], 2 * std::cos(angle), 1.3e-7);  // half an ulp of [1, 2)
        EXPECT_NEAR(got[static_cast<std::size_t>(4 * t + 2 + f)], 2 * std::sin(angle), 1.3e-7);
      }
    }
  }
}

TEST(Rotary, DecayMultipliesBothParts) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor position = tensor_of({2}, DType::i64, device, {3, 1000007}),
                 z = tensor_of({2, 1, 4}, DType::f32, device, {1, 2, 3, 4, 1, 2, 3, 4});
    rotary_decay(z, position, {std::log(0.5), 1e-6}, 5);
    const std::vector<double> got = values_of(z);
    EXPECT_EQ(got[0], 4);  // 0.5^(3 - 5)
    EXPECT_EQ(got[2], 12);
    EXPECT_EQ(got[1], float(2 * std::exp(-2e-6)));
    EXPECT_EQ(got[4], 0);  // far below the range of f32
    EXPECT_EQ(got[7], float(4 * std::exp(1000002e-6)));
  }
}

TEST(Rotary, GradientsMatchDifferences) {
  const Tensor x = random_tensor({3, 4, 6}, DType::f64, Device::ref, 1),
               z = random_tensor({3, 2, 6}, DType::f64, Device::ref, 2);
  const Tensor dy = random_tensor({3, 4, 6}, DType::f64, Device::ref, 3), y = zeros_like(x), dx = zeros_like(x),
               dz = zeros_like(z);
  rotary_backward(dx, dz, dy, x, z);
  check_gradient({{"x", x, dx}, {"z", z, dz}}, [&] {
    rotary_forward(y, x, z);
    return weighted_sum(y, dy);
  });
}

struct Results {
  Tensor y, dx, dz;
};

/// Values of `grid` in x; z and gradients wide.
Results run(DType type, Device device, std::int64_t T, std::int64_t H, std::int64_t Gz, std::int64_t D, DType grid) {
  const auto make = [&](Shape shape, std::uint64_t seed) { return random_tensor(shape, wide(type), device, seed); };
  const Tensor x = random_tensor({T, H, D}, type, device, 1, 1, grid), z = make({T, Gz, D}, 2), dy = make({T, H, D}, 3);
  Results out{zeros_like(x), zeros_like(dy), make({T, Gz, D}, 4)};
  rotary_forward(out.y, x, z);
  rotary_backward(out.dx, out.dz, dy, x, z);
  return out;
}

TEST(Rotary, CpuAccuracy) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [T, H, Gz, D] : {std::tuple<int, int, int, int>{7, 4, 1, 86}, {13, 6, 2, 64}, {5, 3, 3, 2}}) {
      const Results exact = run(DType::f64, Device::ref, T, H, Gz, D, type),
                    f32 = run(DType::f32, Device::ref, T, H, Gz, D, type);
      const Results cpu = run(type, Device::cpu, T, H, Gz, D, type);
      for (const auto tensor : {&Results::y, &Results::dx, &Results::dz})
        EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor),
                  stored_bound((cpu.*tensor).view().type(), f32.*tensor, exact.*tensor));
    }
}

TEST(Rotary, InPlaceWithoutPhaseGradient) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Results apart = run(DType::f32, device, 5, 4, 2, 22, DType::f32);
    const Tensor dy = random_tensor({5, 4, 22}, DType::f32, device, 3),
                 z = random_tensor({5, 2, 22}, DType::f32, device, 2);
    rotary_backward(dy, View(), dy, View(), z);
    EXPECT_TRUE(same_bits(dy, apart.dx));
    EXPECT_THROW(rotary_backward(dy, zeros_like(z), dy, zeros_like(dy), z), Error);
  }
}

TEST(Rotary, RefusesNarrowPhasesAndGradients) {
  const Tensor x({2, 2, 4}, DType::bf16, Device::cpu), dx({2, 2, 4}, DType::f32, Device::cpu),
      z({2, 1, 4}, DType::f32, Device::cpu), narrow({2, 1, 4}, DType::bf16, Device::cpu);
  EXPECT_NO_THROW(rotary_forward(x, x, z));
  EXPECT_THROW(rotary_forward(x, x, narrow), Error);
  EXPECT_THROW(rotary_forward(dx, x, z), Error);
  EXPECT_THROW(rotary_backward(x, View(), x, View(), z), Error);
  EXPECT_THROW(rotary_backward(dx, narrow, zeros_like(dx), x, z), Error);
}

TEST(Rotary, RowsDoNotDependOnOtherRows) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Results all = run(type, Device::cpu, 9, 4, 2, 22, type);
    const Tensor x = random_tensor({9, 4, 22}, type, Device::cpu, 1),
                 z = random_tensor({9, 2, 22}, DType::f32, Device::cpu, 2);
    const Tensor row({1, 4, 22}, type, Device::cpu);
    for (std::int64_t t = 0; t < 9; ++t) {
      rotary_forward(row, x.view().rows(t, t + 1), z.view().rows(t, t + 1));
      EXPECT_TRUE(same_bits(row, all.y.view().rows(t, t + 1)));
    }
  }
}

}  // namespace
}  // namespace capstan::tests
