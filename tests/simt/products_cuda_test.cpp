// Products on the emulated GPU, where cuBLASLt is a plain f32 program: linear layers and cross-entropy.

#include <cmath>

#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "tests/simt/device_calls.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using Views = std::vector<View>;

class SimtProducts : public OnGpu {};

struct Extents {
  std::int64_t T, K, M;
};

/// c (+)= Σ_k a(i, k) b(k, j), summed in f32.
template <class A, class B>
void multiply_naively(const View& c, std::int64_t inner, Into into, const A& a, const B& b) {
  for (std::int64_t i = 0; i < c.dim(0); ++i)
    for (std::int64_t j = 0; j < c.dim(1); ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) sum += a(i, k) * b(k, j);
      float& to = c.as<float>()[i * c.dim(1) + j];
      to = into == Into::add ? to + sum : sum;
    }
}

/// x [T, K], w [M, K], dy [T, M]: v[0] = y, v[1] = dx, v[2] = dw, v[3] = x, v[4] = w, v[5] = dy.
Call linear(const Extents& e, Into into, Stored stored) {
  const auto [T, K, M] = e;
  Call call{{out({T, M}, stored), out({T, K}, stored), out({M, K}, Stored::wide), in({T, K}), in({M, K}), in({T, M})},
            [into](const Views& v) {
              linear_forward(v[0], v[3], v[4], into);
              linear_backward_input(v[1], v[5], v[4], into);
              linear_backward_weight(v[2], v[5], v[3]);
            }};
  call.naive = [=](const Views& v) {
    const float *const x = v[3].as<float>(), *const w = v[4].as<float>(), *const dy = v[5].as<float>();
    multiply_naively(
        v[0], K, into, [=](auto t, auto k) { return x[t * K + k]; }, [=](auto k, auto m) { return w[m * K + k]; });
    multiply_naively(
        v[1], M, into, [=](auto t, auto m) { return dy[t * M + m]; }, [=](auto m, auto k) { return w[m * K + k]; });
    multiply_naively(
        v[2], T, Into::add, [=](auto m, auto t) { return dy[t * M + m]; },
        [=](auto t, auto k) { return x[t * K + k]; });
  };
  return call;
}

TEST_F(SimtProducts, Linear) {
  for (const Extents& e : {Extents{0, 8, 3}, {1, 1, 1}, {3, 8, 40}, {1, 43, 64}, {17, 64, 43}, {3, 1000, 8}, {2, 3, 0}})
    for (const Into into : {Into::overwrite, Into::add})
      for (const Stored stored : {Stored::value, Stored::wide})
        expect_accurate(linear(e, into, stored), "linear " + std::to_string(e.K));
  expect_same_bits(linear({5, 43, 8}, Into::add, Stored::value));
}

TEST_F(SimtProducts, LinearWithoutDepth) {
  const Tensor x(Shape{2, 0}, DType::f32, Device::cuda), w(Shape{3, 0}, DType::f32, Device::cuda);
  const Tensor y = on_device(random_tensor({2, 3}, DType::f32, Device::cpu, 1), Device::cuda), before = y.clone();
  linear_forward(y, x, w, Into::add);
  EXPECT_EQ(host_values<float>(y), host_values<float>(before));
  linear_forward(y, x, w);
  EXPECT_EQ(host_values<float>(y), std::vector<float>(6));
}

// A plan is kept for rows that begin at 16 bytes, and another for those that do not.
TEST_F(SimtProducts, LinearOfPartsOfRows) {
  const Call call{{out({8, 5}), in({9, 6}), in({5, 6})}, [](const Views& v) {
                    linear_forward(v[0].rows(0, 4), v[1].rows(0, 4), v[2]);
                    linear_forward(v[0].rows(4, 8), v[1].rows(5, 9), v[2]);
                  }};
  expect_accurate(call, "rows");
}

struct Words {
  std::int64_t T, C, V;
};

/// v[0] = nll, v[1] = lse, v[2] = dx, v[3] = dw, v[4] = x, v[5] = w, v[6] = targets.
Call cross_entropy(const Words& e) {
  const auto [T, C, V] = e;
  const auto target = [V](std::int64_t t) { return t % 5 == 3 ? -1 : (t * t * 31 + V - 1) % V; };
  Call call{{out({T}, Stored::f64), out({T}, Stored::f64), out({T, C}), out({V, C}, Stored::wide), in({T, C}),
             in({V, C}), integers({T}, Stored::i32, target)},
            [](const Views& v) {
              cross_entropy_forward(v[0], v[1], v[4], v[5], v[6]);
              cross_entropy_backward(v[2], v[3], v[1], v[4], v[5], v[6]);
            }};
  call.naive = [=](const Views& v) {
    const float *const x = v[4].as<float>(), *const w = v[5].as<float>();
    const std::int32_t* const targets = v[6].as<std::int32_t>();
    const Tensor logits({T, V}, DType::f32, Device::ref);
    float* const p = logits.as<float>();
    multiply_naively(
        logits, C, Into::overwrite, [=](auto t, auto c) { return x[t * C + c]; },
        [=](auto c, auto word) { return w[word * C + c]; });
    for (std::int64_t t = 0; t < T; ++t) {
      float largest = p[t * V], sum = 0;
      for (std::int64_t word = 0; word < V; ++word) largest = std::max(largest, p[t * V + word]);
      for (std::int64_t word = 0; word < V; ++word) sum += std::exp(p[t * V + word] - largest);
      const float lse = largest + std::log(sum);
      const std::int32_t of_row = targets[t];
      v[1].as<double>()[t] = double(lse);
      v[0].as<double>()[t] = of_row < 0 ? 0 : double(lse - p[t * V + of_row]);
      for (std::int64_t word = 0; word < V; ++word)
        p[t * V + word] = of_row < 0 ? 0 : std::exp(p[t * V + word] - lse) - float(word == of_row);
    }
    multiply_naively(
        v[2], V, Into::overwrite, [=](auto t, auto word) { return p[t * V + word]; },
        [=](auto word, auto c) { return w[word * C + c]; });
    multiply_naively(
        v[3], T, Into::add, [=](auto word, auto t) { return p[t * V + word]; },
        [=](auto t, auto c) { return x[t * C + c]; });
  };
  return call;
}

TEST_F(SimtProducts, CrossEntropy) {
  for (const Words& e : {Words{0, 8, 3}, {1, 1, 1}, {3, 8, 40}, {8, 43, 64}, {17, 40, 1000}, {64, 3, 43}})
    expect_accurate(cross_entropy(e), "cross_entropy " + std::to_string(e.V));
  expect_same_bits(cross_entropy({5, 8, 300}));
}

TEST_F(SimtProducts, CrossEntropyOfPanelsAndChunks) {
  expect_accurate(cross_entropy({3, 8, 8192 + 100}), "two panels");
  expect_accurate(cross_entropy({1024 + 7, 3, 5}), "two chunks");
}

TEST_F(SimtProducts, CrossEntropyOfFrozenWordsAndWrongTargets) {
  const auto gpu = [](const Tensor& host) { return on_device(host, Device::cuda); };
  const Tensor x = gpu(random_tensor({3, 8}, DType::bf16, Device::cpu, 1)),
               w = gpu(random_tensor({5, 8}, DType::bf16, Device::cpu, 2)),
               targets = gpu(tensor_of({3}, DType::i32, Device::cpu, {5, -1, -2}));
  const Tensor nll(Shape{3}, DType::f64, Device::cuda), lse(Shape{3}, DType::f64, Device::cuda);
  cross_entropy_forward(nll, lse, x, w, targets);
  const std::vector<double> got = host_values<double>(nll);
  EXPECT_TRUE(std::isnan(got[0]) && got[1] == 0 && std::isnan(got[2]));
  const Tensor right = gpu(tensor_of({3}, DType::i32, Device::cpu, {4, -1, 0}));
  const Tensor dx = zeros_like(x), alone = zeros_like(x), dw(Shape{5, 8}, DType::f32, Device::cuda);
  cross_entropy_backward(dx, dw, lse, x, w, right);
  cross_entropy_backward(alone, View(), lse, x, w, right);
  EXPECT_TRUE(same_bits(on_device(dx, Device::cpu), on_device(alone, Device::cpu)));
}

}  // namespace
}  // namespace capstan::tests
