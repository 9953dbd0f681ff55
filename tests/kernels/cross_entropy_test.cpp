#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

Tensor rows_f64(std::int64_t T, Device device) { return Tensor({T}, DType::f64, device); }

TEST(CrossEntropy, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // Logits (ln 1, ln 3) and (0, 0): softmax (1/4, 3/4) and (1/2, 1/2).
    const double ln3 = std::log(3.0);
    const Tensor x = tensor_of({3, 1}, DType::f32, device, {1, 0, 1}),
                 w = tensor_of({2, 1}, DType::f32, device, {0, ln3});
    const Tensor targets = tensor_of({3}, DType::i32, device, {0, 1, -1}), nll = rows_f64(3, device),
                 lse = rows_f64(3, device);
    cross_entropy_forward(nll, lse, x, w, targets);
    EXPECT_NEAR(nll.as<double>()[0], std::log(4.0), 1e-6);
    EXPECT_NEAR(nll.as<double>()[1], std::log(2.0), 1e-6);
    EXPECT_EQ(nll.as<double>()[2], 0);
    EXPECT_NEAR(lse.as<double>()[2], std::log(4.0), 1e-6);
    const Tensor dx = zeros_like(x), dw = tensor_of({2, 1}, DType::f32, device, {1, 1});
    cross_entropy_backward(dx, dw, lse, x, w, targets);
    EXPECT_NEAR(dx.as<float>()[0], 0.75 * ln3, 1e-6);
    EXPECT_NEAR(dx.as<float>()[1], -0.5 * ln3, 1e-6);
    EXPECT_EQ(dx.as<float>()[2], 0);
    EXPECT_NEAR(dw.as<float>()[0], 1 - 0.75, 1e-6);
    EXPECT_NEAR(dw.as<float>()[1], 1 + 0.75, 1e-6);
  }
}

TEST(CrossEntropy, GradientsMatchDifferences) {
  const Tensor x = random_tensor({6, 5}, DType::f64, Device::ref, 1),
               w = random_tensor({9, 5}, DType::f64, Device::ref, 2);
  const Tensor targets = random_ids({6}, Device::ref, 3, -1, 9), nll = rows_f64(6, Device::ref),
               lse = rows_f64(6, Device::ref);
  const Tensor dx = zeros_like(x), dw = zeros_like(w);
  const auto loss = [&] {
    cross_entropy_forward(nll, lse, x, w, targets);
    double sum = 0;
    for (const double value : values_of(nll)) sum += value;
    return sum;
  };
  loss();
  cross_entropy_backward(dx, dw, lse, x, w, targets);
  check_gradient({{"x", x, dx}, {"w", w, dw}}, loss);
}

struct Results {
  Tensor nll, lse, dx, dw;
};

/// Inputs are values of `grid`.
Results run(DType type, Device device, std::int64_t T, std::int64_t C, std::int64_t V, DType grid) {
  const Tensor x = random_tensor({T, C}, type, device, 1, 1, grid),
               w = random_tensor({V, C}, type, device, 2, 0.3, grid);
  const Tensor targets = random_ids({T}, device, 3, -1, static_cast<std::int32_t>(V));
  Results out{rows_f64(T, device), rows_f64(T, device), zeros_like(x), Tensor({V, C}, wide(type), device)};
  cross_entropy_forward(out.nll, out.lse, x, w, targets);
  cross_entropy_backward(out.dx, out.dw, out.lse, x, w, targets);
  return out;
}

/// The same in f32 throughout, logits and sums one term after the other: the rule's naive implementation.
Results naive(std::int64_t T, std::int64_t C, std::int64_t V, DType grid) {
  const Tensor x = random_tensor({T, C}, DType::f32, Device::ref, 1, 1, grid),
               w = random_tensor({V, C}, DType::f32, Device::ref, 2, 0.3, grid);
  const Tensor targets = random_ids({T}, Device::ref, 3, -1, static_cast<std::int32_t>(V));
  Results out{rows_f64(T, Device::ref), rows_f64(T, Device::ref), zeros_like(x), zeros_like(w)};
  for (std::int64_t t = 0; t < T; ++t) {
    std::vector<float> logit(static_cast<std::size_t>(V));
    float largest = -INFINITY, sum = 0;
    for (std::int64_t v = 0; v < V; ++v) {
      float& l = logit[static_cast<std::size_t>(v)];
      for (std::int64_t c = 0; c < C; ++c) l += x.as<float>()[t * C + c] * w.as<float>()[v * C + c];
      largest = std::max(largest, l);
    }
    for (const float l : logit) sum += std::exp(l - largest);
    const float lse = largest + std::log(sum);
    const std::int32_t target = targets.as<std::int32_t>()[t];
    out.lse.as<double>()[t] = lse;
    if (target < 0) continue;
    out.nll.as<double>()[t] = lse - logit[static_cast<std::size_t>(target)];
    for (std::int64_t v = 0; v < V; ++v) {
      const float dlogit = std::exp(logit[static_cast<std::size_t>(v)] - lse) - (v == target ? 1.0f : 0.0f);
      for (std::int64_t c = 0; c < C; ++c) {
        out.dx.as<float>()[t * C + c] += dlogit * w.as<float>()[v * C + c];
        out.dw.as<float>()[v * C + c] += dlogit * x.as<float>()[t * C + c];
      }
    }
  }
  return out;
}

TEST(CrossEntropy, CpuAccuracy) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [T, C, V] :
         {std::tuple<int, int, int>{7, 43, 37}, {600, 31, 1031}, {1, 172, 50}}) {  // 600 rows: two blocks of them
      const Results exact = run(DType::f64, Device::ref, T, C, V, type), f32 = naive(T, C, V, type),
                    cpu = run(type, Device::cpu, T, C, V, type);
      for (const auto tensor : {&Results::nll, &Results::lse, &Results::dx, &Results::dw})
        EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor),
                  stored_bound((cpu.*tensor).view().type(), f32.*tensor, exact.*tensor))
            << name_of(type) << T << " " << V;
    }
}

TEST(CrossEntropy, RowsDoNotDependOnOtherRows) {
  const std::int64_t T = 1100, C = 43, V = 517;  // two spans of rows
  for (const DType type : {DType::f32, DType::bf16}) {
    const Results all = run(type, Device::cpu, T, C, V, type);
    const Tensor x = random_tensor({T, C}, type, Device::cpu, 1), w = random_tensor({V, C}, type, Device::cpu, 2, 0.3);
    const Tensor targets = random_ids({T}, Device::cpu, 3, -1, static_cast<std::int32_t>(V));
    const Tensor nll = rows_f64(T, Device::cpu), lse = rows_f64(T, Device::cpu), dx = zeros_like(x);
    for (std::int64_t begin = 0, count = 1; begin < T; begin += count, count = std::min(3 * count, T - begin)) {
      const auto cut = [&](const Tensor& t) { return t.view().rows(begin, begin + count); };
      cross_entropy_forward(cut(nll), cut(lse), cut(x), w, cut(targets));
      cross_entropy_backward(cut(dx), View(), cut(lse), cut(x), w, cut(targets));
    }
    EXPECT_TRUE(same_bits(nll, all.nll));
    EXPECT_TRUE(same_bits(lse, all.lse));
    EXPECT_TRUE(same_bits(dx, all.dx));
  }
}

TEST(CrossEntropy, LargeLogits) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor x = tensor_of({1, 1}, DType::f32, device, {1000}), w = tensor_of({2, 1}, DType::f32, device, {1, -1});
    const Tensor targets = tensor_of({1}, DType::i32, device, {1}), nll = rows_f64(1, device),
                 lse = rows_f64(1, device), dx = zeros_like(x);
    cross_entropy_forward(nll, lse, x, w, targets);
    EXPECT_EQ(nll.as<double>()[0], 2000);
    cross_entropy_backward(dx, View(), lse, x, w, targets);
    EXPECT_EQ(dx.as<float>()[0], 2);
  }
}

TEST(CrossEntropy, NamesATargetOutOfRange) {
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const double target : {-2.0, 2.0}) {
      const Tensor x({1, 1}, DType::f32, device), w({2, 1}, DType::f32, device),
          targets = tensor_of({1}, DType::i32, device, {target});
      const Tensor nll = rows_f64(1, device);
      try {
        cross_entropy_forward(nll, nll, x, w, targets);
        FAIL() << "accepted " << target;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(fmt::format("target {} at 0, of 2 words", target)), std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(CrossEntropy, NoRows) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor x({0, 3}, DType::f32, device), w = random_tensor({2, 3}, DType::f32, device, 1),
                                                targets({0}, DType::i32, device);
    const Tensor none = rows_f64(0, device), dw = w.clone();
    cross_entropy_forward(none, none, x, w, targets);
    cross_entropy_backward(x, dw, none, x, w, targets);
    EXPECT_TRUE(same_bits(dw, w));
  }
}

}  // namespace
}  // namespace capstan::tests
