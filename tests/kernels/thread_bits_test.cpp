// The number of threads of a rank changes no bit: every operation on `cpu`, at sizes that are cut, by 1, 2 and 3 threads.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "kernels/ops.h"
#include "kernels/threads.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

constexpr std::int64_t T = 1100, C = 320, H = 6, G = 3, D = 32, V = 1500;  ///< rows, columns, …: nothing divides evenly

/// What an operation left behind.
using Outputs = std::vector<Tensor>;
template <class... Tensors> Outputs outputs(Tensors&&... tensors) {
  Outputs all;
  (all.push_back(std::move(tensors)), ...);
  return all;
}

/// As a rank of its own, so that the setting is gone with it.
Outputs with_threads(int count, const std::function<Outputs()>& run) {
  Outputs out;
  std::thread rank([&] {
    set_threads(count);
    out = run();
  });
  rank.join();
  return out;
}

void expect_same_bits(const std::string& name, const std::function<Outputs()>& run) {
  const Outputs one = with_threads(1, run);
  for (const int count : {2, 3}) {
    const Outputs many = with_threads(count, run);
    ASSERT_EQ(one.size(), many.size());
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(same_bits(one[i], many[i])) << name << ", output " << i << ", " << count << " threads";
  }
}

Tensor values(Shape shape, DType type, std::uint64_t seed, double scale = 1) {
  return random_tensor(shape, type, Device::cpu, seed, scale);
}

Tensor empty(Shape shape, DType type) { return Tensor(shape, type, Device::cpu); }

Tensor numbers(Shape shape) {
  Tensor tensor(shape, DType::i64, Device::cpu);
  for (std::int64_t i = 0; i < tensor.view().elements(); ++i) tensor.as<std::int64_t>()[i] = 7 * i;
  return tensor;
}

/// A scalar result as an output.
Tensor scalars(const std::vector<double>& values) {
  return tensor_of({std::ssize(values)}, DType::f64, Device::ref, values);
}

class ThreadBits : public testing::TestWithParam<DType> {
 protected:
  const DType type = GetParam();
};

TEST_P(ThreadBits, Linear) {
  expect_same_bits("linear", [&] {
    const Tensor x = values({T, C}, type, 1), w = values({V, C}, type, 2), dy = values({T, V}, type, 3);
    Tensor y = values({T, V}, type, 4), y_wide = values({T, V}, DType::f32, 4), dx = values({T, C}, type, 5),
           dw = values({V, C}, DType::f32, 6);
    linear_forward(y, x, w, Into::add);
    linear_forward(y_wide, x, w);
    linear_backward_input(dx, dy, w, Into::add);
    linear_backward_weight(dw, dy, x);
    return outputs(y, y_wide, dx, dw);
  });
}

TEST_P(ThreadBits, CrossEntropy) {
  expect_same_bits("cross_entropy", [&] {
    const Tensor x = values({T, C}, type, 1), w = values({V, C}, type, 2, 0.1);
    const Tensor targets = random_ids({T}, Device::cpu, 3, -1, std::int32_t(V));
    Tensor nll = empty({T}, DType::f64), lse = empty({T}, DType::f64), dx = empty({T, C}, type),
           dw = values({V, C}, DType::f32, 4);
    cross_entropy_forward(nll, lse, x, w, targets);
    cross_entropy_backward(dx, dw, lse, x, w, targets);
    return outputs(nll, lse, dx, dw);
  });
}

TEST_P(ThreadBits, RmsNorm) {
  for (const Into into : {Into::overwrite, Into::add})
    expect_same_bits("rmsnorm", [&] {
      const Tensor x = values({T, C}, type, 1), w = values({C}, type, 2), dy = values({T, C}, type, 3);
      Tensor y = empty({T, C}, type), dx = values({T, C}, type, 4), dw = values({C}, DType::f32, 5);
      rmsnorm_forward(y, x, w, 1e-5);
      rmsnorm_backward(dx, dw, dy, x, w, 1e-5, into);
      return outputs(y, dx, dw);
    });
}

TEST_P(ThreadBits, Activation) {
  for (const Activation f : {Activation::silu, Activation::gelu})
    expect_same_bits("activation", [&] {
      const Tensor gate = values({T, C}, type, 1), up = values({T, C}, type, 2), dh = values({T, C}, type, 3);
      Tensor h = zeros_like(up), dgate = zeros_like(up), dup = zeros_like(up), y = zeros_like(up), dx = zeros_like(up);
      gated_forward(h, gate, up, f);
      gated_backward(dgate, dup, dh, gate, up, f);
      activation_forward(y, gate, f);
      activation_backward(dx, dh, gate, f);
      return outputs(h, dgate, dup, y, dx);
    });
}

TEST_P(ThreadBits, Bias) {
  for (const Into into : {Into::overwrite, Into::add})
    expect_same_bits("bias", [&] {
      const Tensor b = values({C}, type, 1), dy = values({T, C}, type, 2);
      Tensor y = values({T, C}, type, 3), db = values({C}, DType::f32, 4);
      bias_forward(y, b, into);
      bias_backward(db, dy);
      return outputs(y, db);
    });
}

TEST_P(ThreadBits, Rotary) {
  expect_same_bits("rotary", [&] {
    const Tensor x = values({T, H, D}, type, 1), dy = values({T, H, D}, DType::f32, 2), position = numbers({T});
    Tensor z = values({T, G, D}, DType::f32, 3), y = zeros_like(x), dx = zeros_like(dy), dz = zeros_like(z),
           phases = empty({T, 1, D}, DType::f32);
    rotary_forward(y, x, z);
    rotary_backward(dx, dz, dy, x, z);
    const std::vector<double> frequency(D / 2, 1e-3);
    rotary_phases(phases, position, frequency, 1.5);
    rotary_decay(phases, position, frequency, 100);
    return outputs(y, dx, dz, phases);
  });
}

TEST_P(ThreadBits, Embedding) {
  expect_same_bits("embedding", [&] {
    const Tensor w = values({V, C}, type, 1), dy = values({T, C}, type, 2);
    const Tensor ids = random_ids({T}, Device::cpu, 3, 0, 50);  // many meet
    Tensor y = zeros_like(dy), dw = empty({V, C}, DType::f32);
    embedding_forward(y, ids, w);
    embedding_backward(dw, ids, dy);
    return outputs(y, dw);
  });
}

TEST_P(ThreadBits, Elementwise) {
  expect_same_bits("elementwise", [&] {
    const Tensor x = values({T, H, D}, type, 1), wide = values({T, H, D}, DType::f32, 2);
    Tensor sum = x.clone(), mixed = wide.clone(), other = zeros_like(wide), scaled = x.clone(),
           grouped = empty({T, G, D}, type), spread = zeros_like(x), part = empty({T, H, 7}, type), whole = x.clone();
    add(sum, wide);
    add(mixed, x);
    convert(other, x);
    scale(scaled, 1.0 / 3);
    group_sum(grouped, x, 1.0 / 3);
    group_spread(spread, grouped, 1.0 / 3);
    take_columns(part, x, 11);
    put_columns(whole, part, 3);
    return outputs(sum, mixed, other, scaled, grouped, spread, part, whole, scalars({double(all_finite(x))}));
  });
}

TEST_P(ThreadBits, FindTheOneThatIsNotFinite) {
  std::vector<double> all(std::size_t(T * C), 1);
  all[all.size() - 5] = INFINITY;
  const Tensor x = tensor_of({T, C}, type, Device::cpu, all);
  expect_same_bits("all_finite", [&] {
    EXPECT_FALSE(all_finite(x));
    return Outputs();
  });
}

TEST_P(ThreadBits, Dropout) {
  expect_same_bits("dropout", [&] {
    Tensor x = values({2 * T, C}, type, 1);
    apply_dropout(x, numbers({2, T}), 0.3, 11);
    return outputs(x);
  });
}

INSTANTIATE_TEST_SUITE_P(Types, ThreadBits, testing::Values(DType::f32, DType::bf16),
                         [](const auto& of) { return name_of(of.param); });

TEST(ThreadBitsOfWideOperations, Optimizers) {
  expect_same_bits("optimizers", [] {
    const std::int64_t n = T * C + 13;
    const Tensor g = values({n}, DType::f32, 1);
    Tensor w = values({n}, DType::f32, 2), m = values({n}, DType::f32, 3), v = g.clone(), s = w.clone();
    for (float *at = v.as<float>(), *end = at + n; at < end; ++at) *at *= *at;
    adamw_step(w, m, v, g, {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3});
    sgd_step(s, g, 0.1);
    return outputs(w, m, v, s, scalars({sum_of_squares(g)}));
  });
}

TEST(ThreadBitsOfWideOperations, PositionMlp) {
  expect_same_bits("position_mlp", [] {
    constexpr std::int64_t I = 4 * G;
    const auto make = [](Shape shape, std::uint64_t seed) { return values(shape, DType::f32, seed); };
    const Tensor z = make({T, G, D}, 1), p = make({T, G, D}, 2), gate = make({T, I}, 3), alpha = make({G, G}, 4),
                 up = make({I, G}, 5), down = make({G, I}, 6), dnext = make({T, G, D}, 7);
    Tensor next = zeros_like(z), dz = zeros_like(z), dp = zeros_like(z), dgate = zeros_like(gate),
           dalpha = make({G, G}, 8), dup = make({I, G}, 9), ddown = make({G, I}, 10);
    position_mlp_forward(next, z, p, gate, alpha, up, down);
    position_mlp_backward({dz, dp, dgate, dalpha, dup, ddown}, dnext, z, p, gate, alpha, up, down);
    const MagnitudeSum of = complex_magnitude(z);
    return outputs(next, dz, dp, dgate, dalpha, dup, ddown, scalars({of.sum, of.max, double(of.count)}));
  });
}

TEST(ThreadBitsOfWideOperations, BlockPool) {
  expect_same_bits("block_pool", [] {
    const Tensor x = values({T, C}, DType::f32, 1), document = empty({T}, DType::i64);
    const std::int64_t block = 16, blocks = (T + block - 1) / block;
    Tensor mean = empty({blocks, C}, DType::f32), dx = x.clone();
    block_mean(mean, x, document, block);
    block_mean_backward(dx, mean, document, block);
    return outputs(mean, dx);
  });
}

}  // namespace
}  // namespace capstan::tests
