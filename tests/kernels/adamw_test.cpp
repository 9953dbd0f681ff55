#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(AdamW, FirstStepHandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // After one step m̂ = g and v̂ = g², so w -= lr (sign(g) + weight_decay w).
    const Tensor w = tensor_of({3}, DType::f32, device, {1, 2, 4}),
                 g = tensor_of({3}, DType::f32, device, {0.5, -3, 1});
    const Tensor m = zeros_like(w), v = zeros_like(w);
    adamw_step(w, m, v, g, {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.75, .eps = 0, .weight_decay = 0.25, .step = 1});
    EXPECT_FLOAT_EQ(w.as<float>()[0], 1 - 0.125f * (1 + 0.25f));
    EXPECT_FLOAT_EQ(w.as<float>()[1], 2 - 0.125f * (-1 + 0.5f));
    EXPECT_FLOAT_EQ(w.as<float>()[2], 4 - 0.125f * (1 + 1));
    EXPECT_EQ(values_of(m), (std::vector<double>{0.25, -1.5, 0.5}));
    EXPECT_EQ(values_of(v), (std::vector<double>{0.0625, 2.25, 0.25}));
    EXPECT_THROW(adamw_step(w, m, v, g, {0.1, 0.9, 0.99, 1e-8, 0, 0}), Error);
  }
}

struct State {
  Tensor w, m, v;
};

/// Two updates, one of them late.
State run(DType type, Device device, std::int64_t n) {
  State s{random_tensor({n}, type, device, 1), random_tensor({n}, type, device, 2, 0.1),
          random_tensor({n}, type, device, 3)};
  std::vector<double> squares = values_of(s.v);
  for (double& value : squares) value = static_cast<float>(value * value);
  s.v = tensor_of({n}, type, device, squares);
  for (const std::int64_t step : {2, 1000}) {
    const AdamW settings{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step};
    adamw_step(s.w, s.m, s.v, random_tensor({n}, type, device, 4 + static_cast<std::uint64_t>(step)), settings);
  }
  return s;
}

TEST(AdamW, CpuAccuracy) {
  for (const std::int64_t n : {1, 43, 1000}) {
    const State exact = run(DType::f64, Device::ref, n), f32 = run(DType::f32, Device::ref, n),
                cpu = run(DType::f32, Device::cpu, n);
    for (const auto tensor : {&State::w, &State::m, &State::v})
      EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor), f32_bound(f32.*tensor, exact.*tensor)) << n;
  }
}

// The optimizer's state is cut differently for other rank counts; an element's update must not see where the cut is.
TEST(AdamW, ElementsDoNotDependOnTheCut) {
  const std::int64_t n = 203;
  const AdamW settings{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 7};
  const auto make = [&](std::uint64_t seed) { return random_tensor({n}, DType::f32, Device::cpu, seed); };
  const Tensor w = make(1), m = make(2), v = zeros_like(w), g = make(4), w1 = make(1), m1 = make(2), v1 = zeros_like(w);
  adamw_step(w, m, v, g, settings);
  for (std::int64_t begin = 0, width = 1; begin < n; begin += width, width = std::min(2 * width + 1, n - begin)) {
    const auto cut = [&](const Tensor& t) { return t.view().rows(begin, begin + width); };
    adamw_step(cut(w1), cut(m1), cut(v1), cut(g), settings);
  }
  EXPECT_TRUE(same_bits(w, w1));
  EXPECT_TRUE(same_bits(m, m1));
  EXPECT_TRUE(same_bits(v, v1));
}

TEST(Sgd, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor w = tensor_of({2}, DType::f32, device, {1, 2});
    sgd_step(w, tensor_of({2}, DType::f32, device, {4, -8}), 0.25);
    EXPECT_EQ(values_of(w), (std::vector<double>{0, 4}));
  }
}

}  // namespace
}  // namespace capstan::tests
