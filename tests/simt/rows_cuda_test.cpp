// Operations on rows of tokens, on the emulated GPU: embedding, activations, biases, rotary, dropout, means of blocks.

#include <cmath>

#include "kernels/activation.h"
#include "kernels/bias.h"
#include "kernels/block_pool.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rotary.h"
#include "tests/simt/device_calls.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using Views = std::vector<View>;

class SimtRows : public OnGpu {};

Call embedding(std::int64_t T, std::int64_t V, std::int64_t C) {
  return {{out({T, C}), integers({T}, Stored::i32, [V](std::int64_t t) { return t * t * 7 % V; }), in({V, C}),
           out({V, C}, Stored::wide), in({T, C})},
          [](const Views& v) {
            embedding_forward(v[0], v[1], v[2]);
            embedding_backward(v[3], v[1], v[4]);
          }};
}

TEST_F(SimtRows, Embedding) {
  for (const std::int64_t C : {1, 3, 8, 40, 43, 300})
    for (const std::int64_t T : {0, 1, 3, 70}) {
      expect_as_on_cpu(embedding(T, 13, C), "embedding");
      expect_accurate(embedding(T, 13, C), "embedding");
    }
  expect_same_bits(embedding(70, 13, 40));
}

// Tokens of one word in several spans of backward; every other token has a word of its own.
TEST_F(SimtRows, EmbeddingOfManyTokens) {
  const std::int64_t T = (1 << 14) + 30, V = 40;
  const Call call{
      {integers({T}, Stored::i32, [](std::int64_t t) { return t % 40; }), out({V, 2}, Stored::wide), in({T, 2})},
      [](const Views& v) { embedding_backward(v[1], v[0], v[2]); }};
  expect_as_on_cpu(call, "embedding of many tokens", false);
}

// Tables of which only the last rows are there: what lies before them is never touched.
TEST_F(SimtRows, OffsetsBeyond32Bits) {
  constexpr std::int64_t words = std::int64_t(1) << 31, C = 8;
  const Tensor last = on_device(random_tensor({2, C}, DType::f32, Device::cpu, 1), Device::cuda);
  char* const begin = static_cast<char*>(last.view().data()) - (words - 2) * C * 4;
  const View table(begin, DType::f32, Device::cuda, {words, C});
  const Tensor ids =
      on_device(tensor_of({3}, DType::i32, Device::cpu, {words - 1, words - 2, words - 1}), Device::cuda);
  const Tensor y(Shape{3, C}, DType::f32, Device::cuda);
  embedding_forward(y, ids, table);
  const std::vector<float> rows = host_values<float>(last), got = host_values<float>(y);
  for (std::size_t i = 0; i < 3 * C; ++i) EXPECT_EQ(got[i], rows[(i / C == 1 ? 0 : C) + i % C]);
  embedding_backward(table, ids, y);
  const std::vector<float> sums = host_values<float>(last);
  for (std::size_t i = 0; i < 2 * C; ++i) EXPECT_EQ(sums[i], i < C ? rows[i] * 2 : rows[i] + rows[i] + rows[i]);
  const Tensor part(Shape{1, 2 * C}, DType::f32, Device::cuda);
  take_columns(part, table.reshape({1, words * C}), (words - 2) * C);
  EXPECT_EQ(host_values<float>(part), sums);
}

TEST_F(SimtRows, EmbeddingOfWordsThatAreNone) {
  const Tensor ids = on_device(tensor_of({3}, DType::i32, Device::cpu, {1, -1, 2}), Device::cuda);
  const Tensor w = on_device(random_tensor({2, 3}, DType::f32, Device::cpu, 1), Device::cuda), dw = w.clone();
  const Tensor y(Shape{3, 3}, DType::f32, Device::cuda);
  embedding_forward(y, ids, w);
  const std::vector<float> got = host_values<float>(y), words = host_values<float>(w);
  for (std::size_t i = 0; i < 9; ++i)
    if (i < 3) EXPECT_EQ(got[i], words[3 + i]);
    else EXPECT_TRUE(std::isnan(got[i]));
  embedding_backward(dw, ids,
                     on_device(tensor_of({3, 3}, DType::f32, Device::cpu, std::vector<double>(9, 1.0)), Device::cuda));
  const std::vector<float> gradient = host_values<float>(dw);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(gradient[i], i < 3 ? words[i] : words[i] + 1);
}

Call activation(const Shape& shape, Activation f) {
  return {{out(shape), in(shape, 4), in(shape), out(shape), out(shape), in(shape), out(shape), out(shape)},
          [f](const Views& v) {
            gated_forward(v[0], v[1], v[2], f);
            gated_backward(v[3], v[4], v[5], v[1], v[2], f);
            activation_forward(v[6], v[1], f);
            activation_backward(v[7], v[5], v[1], f);
          }};
}

TEST_F(SimtRows, Activation) {
  for (const Activation f : {Activation::silu, Activation::gelu}) {
    for (const Shape& shape :
         {Shape{0, 8}, Shape{1, 1}, Shape{1, 3}, Shape{3, 43}, Shape{5, 64}, Shape{2, 1000}, Shape{3, 4, 5}})
      expect_accurate(activation(shape, f), "activation " + shape.text());
    expect_same_bits(activation({3, 43}, f));
    for (const std::int64_t n : {43, 64}) {
      const Call in_place{{out({n}), out({n}), in({n}), out({n}), in({n}), out({n}), in({n})}, [f](const Views& v) {
                            gated_backward(v[0], v[1], v[2], v[0], v[1], f);
                            activation_backward(v[3], v[3], v[4], f);
                            activation_backward(v[5], v[6], v[5], f);
                          }};
      expect_accurate(in_place, "activation in place");
    }
  }
}

/// v[0] = y, v[1] = db, v[2] = b, v[3] = dy. Naively the sums are in f32, one term after the other.
Call bias(std::int64_t T, std::int64_t M, Into into) {
  return {{out({T, M}), out({M}, Stored::wide), in({M}), in({T, M})},
          [into](const Views& v) {
            bias_forward(v[0], v[2], into);
            bias_backward(v[1], v[3]);
          },
          [=](const Views& v) {
            for (std::int64_t i = 0; i < T * M; ++i) {
              float& y = v[0].as<float>()[i];
              y = (into == Into::add ? y : 0) + v[2].as<float>()[i % M];
              v[1].as<float>()[i % M] += v[3].as<float>()[i];
            }
          }};
}

TEST_F(SimtRows, Bias) {
  for (const std::int64_t M : {1, 3, 8, 43, 64, 300})
    for (const std::int64_t T : {0, 1, 3, 70})
      for (const Into into : {Into::overwrite, Into::add})
        if (M > 1 || T <= 3)  // one sum of many numbers may cancel
          expect_accurate(bias(T, M, into), "bias " + std::to_string(T) + " rows of " + std::to_string(M));
  expect_same_bits(bias(70, 43, Into::add));
}

struct Heads {
  std::int64_t T, H, Gz, D;
};

Call rotary(const Heads& h) {
  const auto [T, H, Gz, D] = h;
  return {{out({T, H, D}), in({T, H, D}), in({T, Gz, D}, 1, Stored::wide), out({T, H, D}, Stored::wide),
           out({T, Gz, D}, Stored::wide), in({T, H, D}, 1, Stored::wide), out({T, H, D}, Stored::wide)},
          [](const Views& v) {
            rotary_forward(v[0], v[1], v[2]);
            rotary_backward(v[3], v[4], v[5], v[1], v[2]);
            rotary_backward(v[6], View(), v[6], View(), v[2]);
          }};
}

TEST_F(SimtRows, Rotary) {
  for (const std::int64_t D : {2, 6, 8, 40, 64, 128})
    for (const auto& [T, H, Gz] : {std::array{0, 2, 1}, {1, 1, 1}, {3, 4, 1}, {5, 6, 2}, {2, 3, 3}})
      expect_accurate(rotary({T, H, Gz, D}), "rotary " + std::to_string(D));
  expect_same_bits(rotary({3, 6, 2, 40}));
}

Call phases(std::int64_t T, std::int64_t half) {
  std::vector<double> frequency, log_base;
  for (std::int64_t f = 0; f < half; ++f) {
    frequency.push_back(std::pow(10000.0, -double(f) / double(half)));
    log_base.push_back(-1e-6 * double(f + 1));
  }
  return {{out({T, 1, 2 * half}), integers({T}, Stored::i64, [](std::int64_t t) { return t * 104729 % 1000003; })},
          [=](const Views& v) {
            rotary_phases(v[0], v[1], frequency, 1.25);
            rotary_decay(v[0], v[1], log_base, 1000);
          }};
}

TEST_F(SimtRows, Phases) {
  for (const std::int64_t half : {1, 3, 20, 32, 300})
    for (const std::int64_t T : {0, 1, 37}) expect_accurate(phases(T, half), "phases " + std::to_string(half), false);
  expect_same_bits(phases(37, 20), false);
}

Call dropout(std::int64_t B, std::int64_t T, std::int64_t C) {
  return {{out({B * T, C}), integers({B, T}, Stored::i64, [](std::int64_t t) { return (t << 33) + t; })},
          [](const Views& v) { apply_dropout(v[0], v[1], 0.3, 0x123456789abcdefu); }};
}

TEST_F(SimtRows, Dropout) {
  for (const std::int64_t C : {1, 3, 8, 40, 43, 1000}) {
    expect_as_on_cpu(dropout(2, 3, C), "dropout");
    expect_accurate(dropout(2, 3, C), "dropout");
  }
  expect_as_on_cpu(dropout(1, 0, 8), "dropout of nothing");
  expect_same_bits(dropout(2, 3, 43));
}

/// Documents of 5 tokens: some begin within a block.
Call means(std::int64_t T, std::int64_t N, std::int64_t block) {
  const std::int64_t blocks = (T + block - 1) / block;
  return {{out({blocks, N}), in({T, N}), integers({T}, Stored::i64, [](std::int64_t t) { return t / 5; }), out({T, N}),
           in({blocks, N})},
          [block](const Views& v) {
            block_mean(v[0], v[1], v[2], block);
            block_mean_backward(v[3], v[4], v[2], block);
          }};
}

TEST_F(SimtRows, BlockMeans) {
  for (const std::int64_t N : {1, 3, 8, 43, 300})
    for (const std::int64_t T : {0, 1, 8, 43})
      for (const std::int64_t block : {1, 4, 16}) {
        expect_as_on_cpu(means(T, N, block), "means", false);
        expect_accurate(means(T, N, block), "means", false);
      }
  expect_same_bits(means(43, 40, 4), false);
}

}  // namespace
}  // namespace capstan::tests
