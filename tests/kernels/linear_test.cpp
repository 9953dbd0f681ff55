#include "kernels/linear.h"

#include <gtest/gtest.h>

#include "kernels/isa.h"
#include "kernels/products.h"
#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using cpu::best_narrow_products, cpu::matrix, cpu::multiply, cpu::NarrowProducts, cpu::transposed;

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

/// Products of operands of `type`, by `narrow` if that is bf16; results y and dx as `stored`.
struct Case {
  DType type, stored;
  NarrowProducts narrow = best_narrow_products();
};

/// linear_forward and the other two on `cpu`, by the case's way.
void forward(const Case& c, const View& y, const View& x, const View& w, Into into) {
  if (c.narrow == best_narrow_products()) return linear_forward(y, x, w, into);
  multiply(matrix(y), matrix(x), transposed(w), into, c.narrow);
}
void backward_input(const Case& c, const View& dx, const View& dy, const View& w, Into into) {
  if (c.narrow == best_narrow_products()) return linear_backward_input(dx, dy, w, into);
  multiply(matrix(dx), matrix(dy), matrix(w), into, c.narrow);
}
void backward_weight(const Case& c, const View& dw, const View& dy, const View& x) {
  if (c.narrow == best_narrow_products()) return linear_backward_weight(dw, dy, x);
  multiply(matrix(dw), transposed(dy), matrix(x), Into::add, c.narrow);
}

/// Every way in which this machine multiplies; oneDNN has its bf16 primitives where there is AVX-512.
std::vector<Case> cases() {
  std::vector<Case> all{{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};
  for (const NarrowProducts narrow : {NarrowProducts::native, NarrowProducts::widened})
    if (narrow != best_narrow_products() && (narrow == NarrowProducts::widened || best_isa() == Isa::avx512))
      for (const DType stored : {DType::f32, DType::bf16}) all.push_back({DType::bf16, stored, narrow});
  return all;
}

std::string text(const Case& c) {
  return name_of(c.type) + " to " + name_of(c.stored) + (c.narrow == NarrowProducts::native ? " native" : " widened");
}

void expect_within_rule(const View& got, const View& naive, const View& exact) {
  EXPECT_LE(relative_error(got, exact), stored_bound(got.type(), naive, exact));
}

void check_accuracy(const Case& c, std::int64_t T, std::int64_t K, std::int64_t M) {
  SCOPED_TRACE(fmt::format("{}, T {} K {} M {}", text(c), T, K, M));
  const Tensor x = random_tensor({T, K}, c.type, Device::cpu, 1), w = random_tensor({M, K}, c.type, Device::cpu, 2);
  const Tensor dy = random_tensor({T, M}, c.type, Device::cpu, 3);
  const Tensor X = converted(x, DType::f64, Device::ref), W = converted(w, DType::f64, Device::ref),
               dY = converted(dy, DType::f64, Device::ref);
  const Tensor x32 = converted(x, DType::f32, Device::ref), w32 = converted(w, DType::f32, Device::ref),
               dy32 = converted(dy, DType::f32, Device::ref);
  const float *const fx = x32.as<float>(), *const fw = w32.as<float>(), *const fdy = dy32.as<float>();
  const Tensor y = empty({T, M}, Device::cpu, c.stored), dx = empty({T, K}, Device::cpu, c.stored),
               dw = empty({M, K}, Device::cpu), Y = zeros_like(dY), dX = zeros_like(X), dW = zeros_like(W);
  forward(c, y, x, w, Into::overwrite);
  linear_forward(Y, X, W);
  expect_within_rule(
      y,
      naive(
          T, M, K, [=](auto t, auto k) { return fx[t * K + k]; }, [=](auto k, auto m) { return fw[m * K + k]; }),
      Y);
  backward_input(c, dx, dy, w, Into::overwrite);
  linear_backward_input(dX, dY, W);
  expect_within_rule(
      dx,
      naive(
          T, K, M, [=](auto t, auto m) { return fdy[t * M + m]; }, [=](auto m, auto k) { return fw[m * K + k]; }),
      dX);
  backward_weight(c, dw, dy, x);
  linear_backward_weight(dW, dY, X);
  expect_within_rule(
      dw,
      naive(
          M, K, T, [=](auto m, auto t) { return fdy[t * M + m]; }, [=](auto t, auto k) { return fx[t * K + k]; }),
      dW);
}

TEST(Linear, CpuAccuracy) {
  for (const Case& c : cases()) {
    check_accuracy(c, 7, 43, 5);
    check_accuracy(c, 130, 172, 43);
    check_accuracy(c, 65, 512, 129);
    check_accuracy(c, 530, 43, 600);    // more than one piece each way
    check_accuracy(c, 1100, 1024, 33);  // lines whole pages apart
    check_accuracy(c, 70, 33, 1024);
  }
}

TEST(Linear, AddsBeforeItRounds) {
  // 1 + 2^-8 rounds to 1 in bf16, where 1 + 2^-7 comes next. The two terms are far apart along the inner extent.
  const std::int64_t K = 1500;
  std::vector<double> terms(K);
  terms[0] = terms[1400] = 0x1p-8;
  for (const Case& c : cases()) {
    const Tensor y = tensor_of({1, 1}, c.stored, Device::cpu, {1}), x = tensor_of({1, K}, c.type, Device::cpu, terms),
                 w = tensor_of({1, K}, c.type, Device::cpu, std::vector<double>(K, 1));
    forward(c, y, x, w, Into::add);
    EXPECT_EQ(values_of(y), std::vector<double>{1 + 0x1p-7}) << text(c);
  }
}

/// Every row of the call with all rows must come out the same in a call with some of them.
void check_rows(const Case& c, std::int64_t K, std::int64_t M, Into into) {
  constexpr std::int64_t all = 1000;
  const Tensor x = random_tensor({all, K}, c.type, Device::cpu, 4), w = random_tensor({M, K}, c.type, Device::cpu, 5);
  const Tensor v = random_tensor({K, M}, c.type, Device::cpu, 6),
               old = random_tensor({all, M}, c.stored, Device::cpu, 7);
  const Tensor y = old.clone(), dx = old.clone(), part = zeros_like(old);
  forward(c, y, x, w, into);
  backward_input(c, dx, x, v, into);
  for (const std::int64_t rows : {1, 2, 5, 8, 17, 64, 100, 257}) {
    for (const std::int64_t begin : {0, 3, 37, 743}) {
      SCOPED_TRACE(fmt::format("{}, K {} M {} rows {} at {}", text(c), K, M, rows, begin));
      const View some = part.view().rows(begin, begin + rows);
      some.copy_from(old.view().rows(begin, begin + rows));
      forward(c, some, x.view().rows(begin, begin + rows), w, into);
      EXPECT_TRUE(same_bits(some, y.view().rows(begin, begin + rows))) << "forward";
      some.copy_from(old.view().rows(begin, begin + rows));
      backward_input(c, some, x.view().rows(begin, begin + rows), v, into);
      EXPECT_TRUE(same_bits(some, dx.view().rows(begin, begin + rows))) << "backward_input";
    }
  }
}

TEST(Linear, RowsDoNotDependOnOtherRows) {
  for (const Case& c : cases()) {
    const bool f32 = c.type == DType::f32;
    for (const std::int64_t K :
         f32 ? std::vector<std::int64_t>{1, 43, 64, 172, 512} : std::vector<std::int64_t>{1, 43, 512})
      for (const std::int64_t M :
           f32 ? std::vector<std::int64_t>{1, 3, 43, 172, 512} : std::vector<std::int64_t>{1, 43, 172})
        check_rows(c, K, M, K % 2 ? Into::add : Into::overwrite);
    check_rows(c, 1376, 64, Into::add);
    check_rows(c, 64, 1024, Into::add);
    check_rows(c, 2048, 33, Into::overwrite);
    check_rows(c, 64, 600, Into::add);
  }
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

TEST(Linear, RefusesMixedTypes) {
  const auto make = [](Shape shape, DType type) { return empty(shape, Device::cpu, type); };
  const Tensor x = make({2, 3}, DType::bf16), w = make({4, 3}, DType::bf16), y = make({2, 4}, DType::bf16);
  EXPECT_THROW(linear_forward(y, x, make({4, 3}, DType::f32)), Error);
  EXPECT_THROW(linear_forward(y, make({2, 3}, DType::f32), make({4, 3}, DType::f32)), Error);
  EXPECT_THROW(linear_backward_input(x, make({2, 4}, DType::f32), w), Error);
  EXPECT_THROW(linear_backward_weight(w, y, x), Error);
  EXPECT_NO_THROW(linear_backward_weight(make({4, 3}, DType::f32), y, x));
}

}  // namespace
}  // namespace capstan::tests
