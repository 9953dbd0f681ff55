#include "kernels/linear.h"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

Tensor empty(Shape shape, Device device, DType type = DType::f32) { return Tensor(shape, type, device); }

TEST(Linear, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor x = tensor_of({2, 2}, DType::f32, device, {1, 2, 3, 4}),
                 w = tensor_of({3, 2}, DType::f32, device, {1, 0, 0, 1, 2, -1});
    const Tensor y = empty({2, 3}, device), dx = empty({2, 2}, device),
                 dw = tensor_of({3, 2}, DType::f32, device, {1, 1, 1, 1, 1, 1});
    linear_forward(y, x, w);
    EXPECT_EQ(values_of(y), (std::vector<double>{1, 2, 0, 3, 4, 2}));
    linear_forward(y, x, w, Into::add);
    EXPECT_EQ(values_of(y), (std::vector<double>{2, 4, 0, 6, 8, 4}));
    const Tensor dy = tensor_of({2, 3}, DType::f32, device, {1, 0, 1, 0, 1, 0});
    linear_backward_input(dx, dy, w);
    EXPECT_EQ(values_of(dx), (std::vector<double>{3, -1, 0, 1}));
    linear_backward_input(dx, dy, w, Into::add);
    EXPECT_EQ(values_of(dx), (std::vector<double>{6, -2, 0, 2}));
    linear_backward_weight(dw, dy, x);
    EXPECT_EQ(values_of(dw), (std::vector<double>{2, 3, 4, 5, 2, 3}));
  }
}

TEST(Linear, GradientsMatchDifferences) {
  const Tensor x = random_tensor({5, 7}, DType::f64, Device::ref, 1),
               w = random_tensor({3, 7}, DType::f64, Device::ref, 2);
  const Tensor dy = random_tensor({5, 3}, DType::f64, Device::ref, 3), y = zeros_like(dy), dx = zeros_like(x),
               dw = zeros_like(w);
  linear_backward_input(dx, dy, w);
  linear_backward_weight(dw, dy, x);
  check_gradient({{"x", x, dx}, {"w", w, dw}}, [&] {
    linear_forward(y, x, w);
    return weighted_sum(y, dy);
  });
}

TEST(Linear, EmptyExtents) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor w = random_tensor({3, 4}, DType::f32, device, 1), dw = w.clone(), none = empty({0, 4}, device),
                 y = empty({0, 3}, device);
    linear_forward(y, none, w);
    linear_backward_input(none, y, w);
    linear_backward_weight(dw, y, none);
    EXPECT_TRUE(same_bits(dw, w));
    const Tensor filled = random_tensor({2, 3}, DType::f32, device, 2), kept = filled.clone();
    linear_forward(filled, empty({2, 0}, device), empty({3, 0}, device), Into::add);
    EXPECT_TRUE(same_bits(filled, kept));
    linear_forward(filled, empty({2, 0}, device), empty({3, 0}, device));
    EXPECT_EQ(values_of(filled), std::vector<double>(6));
  }
}

/// c[i, j] = Σ_k a(i, k) b(k, j) with an f32 sum: the naive implementation of the rule.
template <class A, class B> Tensor naive(std::int64_t rows, std::int64_t columns, std::int64_t inner, A a, B b) {
  Tensor c({rows, columns}, DType::f32, Device::ref);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t k = 0; k < inner; ++k) c.as<float>()[i * columns + j] += a(i, k) * b(k, j);
  return c;
}

void check_accuracy(std::int64_t T, std::int64_t K, std::int64_t M) {
  const Tensor x = random_tensor({T, K}, DType::f32, Device::cpu, 1),
               w = random_tensor({M, K}, DType::f32, Device::cpu, 2);
  const Tensor dy = random_tensor({T, M}, DType::f32, Device::cpu, 3);
  const Tensor X = converted(x, DType::f64, Device::ref), W = converted(w, DType::f64, Device::ref),
               dY = converted(dy, DType::f64, Device::ref);
  const float *const fx = x.as<float>(), *const fw = w.as<float>(), *const fdy = dy.as<float>();
  const Tensor y = empty({T, M}, Device::cpu), dx = zeros_like(x), dw = zeros_like(w), Y = zeros_like(dY),
               dX = zeros_like(X), dW = zeros_like(W);
  linear_forward(y, x, w);
  linear_forward(Y, X, W);
  EXPECT_LE(relative_error(y, Y), f32_bound(naive(
                                                T, M, K, [=](auto t, auto k) { return fx[t * K + k]; },
                                                [=](auto k, auto m) { return fw[m * K + k]; }),
                                            Y));
  linear_backward_input(dx, dy, w);
  linear_backward_input(dX, dY, W);
  EXPECT_LE(relative_error(dx, dX), f32_bound(naive(
                                                  T, K, M, [=](auto t, auto m) { return fdy[t * M + m]; },
                                                  [=](auto m, auto k) { return fw[m * K + k]; }),
                                              dX));
  linear_backward_weight(dw, dy, x);
  linear_backward_weight(dW, dY, X);
  EXPECT_LE(relative_error(dw, dW), f32_bound(naive(
                                                  M, K, T, [=](auto m, auto t) { return fdy[t * M + m]; },
                                                  [=](auto t, auto k) { return fx[t * K + k]; }),
                                              dW));
}

TEST(Linear, CpuAccuracy) {
  check_accuracy(7, 43, 5);
  check_accuracy(130, 172, 43);
  check_accuracy(65, 512, 129);
}

/// Every row of the call with all rows must come out the same in a call with some of them.
void check_rows(std::int64_t K, std::int64_t M, Into into) {
  constexpr std::int64_t all = 1000;
  const Tensor x = random_tensor({all, K}, DType::f32, Device::cpu, 4),
               w = random_tensor({M, K}, DType::f32, Device::cpu, 5);
  const Tensor v = random_tensor({K, M}, DType::f32, Device::cpu, 6),
               old = random_tensor({all, M}, DType::f32, Device::cpu, 7);
  const Tensor y = old.clone(), dx = old.clone(), part = zeros_like(old);
  linear_forward(y, x, w, into);
  linear_backward_input(dx, x, v, into);
  for (const std::int64_t rows : {1, 2, 5, 8, 17, 64, 100, 257}) {
    for (const std::int64_t begin : {0, 3, 37, 743}) {
      const View some = part.view().rows(begin, begin + rows);
      some.copy_from(old.view().rows(begin, begin + rows));
      linear_forward(some, x.view().rows(begin, begin + rows), w, into);
      EXPECT_TRUE(same_bits(some, y.view().rows(begin, begin + rows)))
          << "forward, K " << K << " M " << M << " rows " << rows << " at " << begin;
      some.copy_from(old.view().rows(begin, begin + rows));
      linear_backward_input(some, x.view().rows(begin, begin + rows), v, into);
      EXPECT_TRUE(same_bits(some, dx.view().rows(begin, begin + rows)))
          << "input, K " << K << " M " << M << " rows " << rows << " at " << begin;
    }
  }
}

TEST(Linear, RowsDoNotDependOnOtherRows) {
  for (const std::int64_t K : {1, 43, 64, 172, 512})
    for (const std::int64_t M : {1, 3, 43, 172, 512}) check_rows(K, M, K % 2 ? Into::add : Into::overwrite);
  check_rows(1376, 64, Into::add);
  check_rows(2048, 33, Into::overwrite);
}

TEST(Linear, RefusesWrongShapes) {
  const Tensor x = empty({2, 3}, Device::cpu), w = empty({4, 3}, Device::cpu), y = empty({2, 4}, Device::cpu);
  EXPECT_THROW(linear_forward(x, x, w), Error);
  EXPECT_THROW(linear_forward(y, x, y), Error);
  EXPECT_THROW(linear_forward(y, x, empty({4, 3}, Device::ref)), Error);
  EXPECT_THROW(linear_forward(y, x, View()), Error);
  EXPECT_THROW(linear_forward(empty({2, 4}, Device::cpu, DType::f64), empty({2, 3}, Device::cpu, DType::f64),
                              empty({4, 3}, Device::cpu, DType::f64)),
               Error);
}

}  // namespace
}  // namespace capstan::tests
