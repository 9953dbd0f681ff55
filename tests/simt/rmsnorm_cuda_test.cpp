// RMSNorm on the emulated GPU: the project's rule for errors, the same bits in every order, and nothing beyond its arrays.

#include "kernels/rmsnorm.h"

#include <cmath>

#include "tests/simt/device_calls.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using Views = std::vector<View>;

constexpr double eps = 1e-5;

class SimtRmsNorm : public OnGpu {};

struct Shapes {
  std::int64_t T, C;
};

/// The formulas in f32, one term after the other: the naive implementation of the rule.
void naively(const Views& v, Shapes shape, Into into) {
  const auto [T, C] = shape;
  const float* const w = v[5].as<float>();
  float* const dw = v[2].as<float>();
  for (std::int64_t t = 0; t < T; ++t) {
    const float *const x = v[3].as<float>() + t * C, *const dy = v[4].as<float>() + t * C;
    float *const y = v[0].as<float>() + t * C, *const dx = v[1].as<float>() + t * C;
    float squares = 0, mean = 0;
    for (std::int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
    const float r = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(eps));
    for (std::int64_t c = 0; c < C; ++c) mean += w[c] * dy[c] * (x[c] * r);
    mean /= static_cast<float>(C);
    for (std::int64_t c = 0; c < C; ++c) {
      y[c] = w[c] * (x[c] * r);
      dx[c] = (into == Into::add ? dx[c] : 0) + r * (w[c] * dy[c] - (x[c] * r) * mean);
      dw[c] += dy[c] * (x[c] * r);
    }
  }
}

/// v[0] = y, v[1] = dx, v[2] = dw, v[3] = x, v[4] = dy, v[5] = w.
Call rmsnorm(Shapes shape, Into into, Stored stored_dy = Stored::value) {
  const auto [T, C] = shape;
  return {{out({T, C}), out({T, C}), out({C}, Stored::wide), in({T, C}), in({T, C}, 1, stored_dy), in({C})},
          [into](const Views& v) {
            rmsnorm_forward(v[0], v[3], v[5], eps);
            rmsnorm_backward(v[1], v[2], v[4], v[3], v[5], eps, into);
          },
          [=](const Views& v) { naively(v, shape, into); }};
}

TEST_F(SimtRmsNorm, Accuracy) {
  for (const std::int64_t C : {1, 8, 40, 43, 64, 1000, 4096})
    for (const std::int64_t T : {0, 1, 3, 70})
      for (const Into into : {Into::overwrite, Into::add})
        for (const Stored stored_dy : {Stored::value, Stored::wide})
          if (C < 4096 || T < 70 || stored_dy == Stored::value)
            expect_accurate(rmsnorm({T, C}, into, stored_dy), std::to_string(T) + " rows of " + std::to_string(C));
}

TEST_F(SimtRmsNorm, SameBitsInEveryOrder) {
  for (const Shapes shape : {Shapes{70, 40}, {3, 1000}}) expect_same_bits(rmsnorm(shape, Into::add));
}

// A row's results do not depend on how many rows there are, and an absent dw leaves dx as it is.
TEST_F(SimtRmsNorm, RowsByThemselves) {
  Call alone = rmsnorm({5, 1000}, Into::overwrite);
  const std::vector<Tensor> together = after(alone, Device::cuda, DType::bf16, DType::bf16);
  alone.run = [](const Views& v) {
    for (std::int64_t t = 0; t < 5; ++t) {
      const auto row = [t](const View& all) { return all.rows(t, t + 1); };
      rmsnorm_forward(row(v[0]), row(v[3]), v[5], eps);
      rmsnorm_backward(row(v[1]), View(), row(v[4]), row(v[3]), v[5], eps, Into::overwrite);
    }
  };
  const std::vector<Tensor> by_row = after(alone, Device::cuda, DType::bf16, DType::bf16);
  EXPECT_TRUE(same_bits(by_row[0], together[0]));
  EXPECT_TRUE(same_bits(by_row[1], together[1]));
}

}  // namespace
}  // namespace capstan::tests
