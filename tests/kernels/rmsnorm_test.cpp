#include "kernels/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

constexpr double eps = 1e-5;

TEST(RmsNorm, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // mean of squares 12.5 + 3.5 = 16, so r = 1/4
    const Tensor x = tensor_of({1, 2}, DType::f32, device, {3, 4}), w = tensor_of({2}, DType::f32, device, {2, -4}),
                 y = zeros_like(x);
    rmsnorm_forward(y, x, w, 3.5);
    EXPECT_EQ(values_of(y), (std::vector<double>{1.5, -4}));
    // n = (3/4, 1), g = w dy = (8, -16): mean(g n) = (6 - 16) / 2 = -5; dx = (8 + 15/4, -16 + 5) / 4; dw = dy n
    const Tensor dy = tensor_of({1, 2}, DType::f32, device, {4, 4}), dx = tensor_of({1, 2}, DType::f32, device, {1, 1});
    const Tensor dw = tensor_of({2}, DType::f32, device, {1, 1});
    rmsnorm_backward(dx, dw, dy, x, w, 3.5, Into::overwrite);
    EXPECT_EQ(values_of(dx), (std::vector<double>{2.9375, -2.75}));
    EXPECT_EQ(values_of(dw), (std::vector<double>{4, 5}));
    rmsnorm_backward(dx, View(), dy, x, w, 3.5, Into::add);
    EXPECT_EQ(values_of(dx), (std::vector<double>{5.875, -5.5}));
  }
}

TEST(RmsNorm, GradientsMatchDifferences) {
  const Tensor x = random_tensor({5, 7}, DType::f64, Device::ref, 1),
               w = random_tensor({7}, DType::f64, Device::ref, 2);
  const Tensor dy = random_tensor({5, 7}, DType::f64, Device::ref, 3), y = zeros_like(x), dx = zeros_like(x),
               dw = zeros_like(w);
  rmsnorm_backward(dx, dw, dy, x, w, eps, Into::overwrite);
  check_gradient({{"x", x, dx}, {"w", w, dw}}, [&] {
    rmsnorm_forward(y, x, w, eps);
    return weighted_sum(y, dy);
  });
}

struct Results {
  Tensor y, dx, dw;
};

/// Inputs are values of `grid`; dy may be wide.
Results run(DType type, Device device, std::int64_t T, std::int64_t C, Into into, DType grid, bool wide_dy = false) {
  const auto make = [&](Shape shape, DType as, std::uint64_t seed) {
    return random_tensor(shape, as, device, seed, 1, grid);
  };
  const Tensor x = make({T, C}, type, 1), w = make({C}, type, 2), dy = make({T, C}, wide_dy ? wide(type) : type, 3);
  Results out{zeros_like(x), make({T, C}, type, 4), make({C}, wide(type), 5)};
  rmsnorm_forward(out.y, x, w, eps);
  rmsnorm_backward(out.dx, out.dw, dy, x, w, eps, into);
  return out;
}

/// All in f32, one term after the other: the rule's naive implementation. (ref sums in double, and so does not show how much dx
/// cancels in f32: at C = 1 it is r³ eps g, all that is left of g - n mean(g n).)
Results naive(std::int64_t T, std::int64_t C, Into into, DType grid) {
  const auto make = [&](Shape shape, std::uint64_t seed) {
    return random_tensor(shape, DType::f32, Device::ref, seed, 1, grid);
  };
  const Tensor x = make({T, C}, 1), w = make({C}, 2), dy = make({T, C}, 3);
  Results out{zeros_like(x), make({T, C}, 4), make({C}, 5)};
  const float* const W = w.as<float>();
  for (std::int64_t t = 0; t < T; ++t) {
    const float *const X = x.as<float>() + t * C, *const dY = dy.as<float>() + t * C;
    float squares = 0, mean = 0;
    for (std::int64_t c = 0; c < C; ++c) squares += X[c] * X[c];
    const float r = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(eps));
    for (std::int64_t c = 0; c < C; ++c) mean += W[c] * dY[c] * (X[c] * r);
    mean /= static_cast<float>(C);
    for (std::int64_t c = 0; c < C; ++c) {
      float& dX = out.dx.as<float>()[t * C + c];
      out.y.as<float>()[t * C + c] = W[c] * (X[c] * r);
      dX = (into == Into::add ? dX : 0) + r * (W[c] * dY[c] - (X[c] * r) * mean);
      out.dw.as<float>()[c] += dY[c] * (X[c] * r);
    }
  }
  return out;
}

TEST(RmsNorm, CpuAccuracy) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [T, C] : {std::pair<std::int64_t, std::int64_t>{7, 43}, {130, 172}, {3, 1}}) {
      for (const Into into : {Into::overwrite, Into::add}) {
        const Results exact = run(DType::f64, Device::ref, T, C, into, type), f32 = naive(T, C, into, type);
        for (const bool wide_dy : {false, true}) {
          const Results cpu = run(type, Device::cpu, T, C, into, type, wide_dy);
          for (const auto tensor : {&Results::y, &Results::dx, &Results::dw})
            EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor),
                      stored_bound((cpu.*tensor).view().type(), f32.*tensor, exact.*tensor))
                << name_of(type) << T << " " << C;
        }
      }
    }
}

TEST(RmsNorm, RowsDoNotDependOnOtherRows) {
  const std::int64_t T = 20, C = 43;
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({T, C}, type, Device::cpu, 1), w = random_tensor({C}, type, Device::cpu, 2);
    const Tensor dy = random_tensor({T, C}, type, Device::cpu, 3), y = zeros_like(x), dx = zeros_like(x),
                 one = zeros_like(x);
    rmsnorm_forward(y, x, w, eps);
    rmsnorm_backward(dx, View(), dy, x, w, eps, Into::overwrite);
    for (std::int64_t t = 0; t < T; ++t) {
      const View row = one.view().rows(t, t + 1);
      rmsnorm_forward(row, x.view().rows(t, t + 1), w, eps);
      EXPECT_TRUE(same_bits(row, y.view().rows(t, t + 1)));
      rmsnorm_backward(row, View(), dy.view().rows(t, t + 1), x.view().rows(t, t + 1), w, eps, Into::overwrite);
      EXPECT_TRUE(same_bits(row, dx.view().rows(t, t + 1)));
    }
  }
}

TEST(RmsNorm, RefusesNarrowSums) {
  const Tensor x({2, 3}, DType::bf16, Device::cpu), w({3}, DType::bf16, Device::cpu), f32({3}, DType::f32, Device::cpu);
  EXPECT_NO_THROW(rmsnorm_backward(x, f32, x, x, w, eps, Into::overwrite));
  EXPECT_THROW(rmsnorm_backward(x, w, x, x, w, eps, Into::overwrite), Error);
  EXPECT_THROW(rmsnorm_forward(x, x, f32, eps), Error);
}

}  // namespace
}  // namespace capstan::tests
