// TAPE (arXiv 2501.00712) as tensors: a 2 x R block per token, head and frequency. Attention does not see a common
// orthogonal R x R matrix on the right, the update commutes with it, and the complex numbers that the model keeps are
// such blocks of 2 x 2.

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <random>

#include "tests/support/oracle_model.h"

namespace capstan::tests {
namespace {

using Numbers = std::vector<double>;

constexpr TapeTensorShape shape{5, 4, 2, 3};  // tokens, H, G, D/2
constexpr std::int64_t depth = 6, width = 3;  // D, I

Numbers random_numbers(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Numbers x;
  for (std::int64_t n = 0; n < count; ++n) x.push_back(std::ldexp(double(engine() >> 11), -52) - 1);
  return x;
}

/// Each block of 2 x R times an R x R matrix.
Numbers times(const Numbers& e, const Numbers& matrix) {
  const std::size_t columns = std::size_t(std::lround(std::sqrt(double(matrix.size()))));
  Numbers y(e.size(), 0);
  for (std::size_t at = 0; at < e.size(); ++at)
    for (std::size_t r = 0; r < columns; ++r)
      y[at] += e[at / columns * columns + r] * matrix[r * columns + at % columns];
  return y;
}

/// Orthogonal matrices: rotations and reflections of R², one reflection I - 2 u u^T of R³.
std::vector<Numbers> orthogonal(std::int64_t columns) {
  const double c = std::cos(0.7), s = std::sin(0.7), u[3] = {2. / 3, -1. / 3, 2. / 3};
  if (columns == 2) return {{c, s, -s, c}, {c, s, s, -c}, {1, 0, 0, -1}};
  Numbers reflection;
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) reflection.push_back((a == b) - 2 * u[a] * u[b]);
  return {reflection};
}

/// A of causal softmax attention with these logits.
Numbers softmax(const Numbers& logits, std::int64_t tokens, double scale) {
  Numbers weights(logits.size(), 0);
  for (std::size_t row = 0; row < logits.size() / tokens; ++row) {
    double sum = 0;
    for (std::size_t j = 0; j <= row % tokens; ++j)
      sum += weights[row * tokens + j] = std::exp(scale * logits[row * tokens + j]);
    for (std::size_t j = 0; j <= row % tokens; ++j) weights[row * tokens + j] /= sum;
  }
  return weights;
}

void expect_near(const Numbers& a, const Numbers& b, double tolerance = 1e-13) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) EXPECT_NEAR(a[n], b[n], tolerance) << n;
}

TapeTensorUpdate random_update(const Numbers& weights) {
  return {weights, random_numbers(4, 11), random_numbers(width * 2, 12), random_numbers(2 * width, 13),
          random_numbers(shape.tokens * width, 14)};
}

TEST(TapeTensor, OrthogonalMatricesOnTheRightCommute) {
  const Numbers q = random_numbers(shape.tokens * shape.heads * depth, 1);
  const Numbers k = random_numbers(shape.tokens * shape.groups * depth, 2);
  for (std::int64_t columns : {2, 3}) {
    TapeTensorShape wide = shape;
    wide.columns = columns;
    const Numbers e = random_numbers(shape.tokens * shape.groups * shape.frequencies * 2 * columns, 3);
    const Numbers logits = tape_tensor_logits(wide, q, k, e);
    const TapeTensorUpdate update = random_update(softmax(logits, shape.tokens, 0.4));
    const Numbers next = tape_tensor_update(wide, e, update), next_logits = tape_tensor_logits(wide, q, k, next);
    for (const Numbers& matrix : orthogonal(columns)) {
      const Numbers turned = times(e, matrix), turned_next = tape_tensor_update(wide, turned, update);
      expect_near(tape_tensor_logits(wide, q, k, turned), logits);
      expect_near(turned_next, times(next, matrix));
      expect_near(tape_tensor_logits(wide, q, k, turned_next), next_logits, 1e-12);
    }
    Numbers skewed(columns * columns, 0);
    for (std::int64_t r = 0; r < columns; ++r) skewed[r * columns + r] = double(1 + r);
    EXPECT_GT(std::abs(tape_tensor_logits(wide, q, k, times(e, skewed))[0] - logits[0]), 1e-3) << "not any matrix does";
  }
}

TEST(TapeTensor, ComplexStatesAreItsBlocks) {
  using Complex = std::complex<double>;
  const Numbers q = random_numbers(shape.tokens * shape.heads * depth, 1);
  const Numbers k = random_numbers(shape.tokens * shape.groups * depth, 2);
  const Numbers z = random_numbers(shape.tokens * shape.groups * depth, 3);
  const auto number = [&](const Numbers& x, std::int64_t row, std::int64_t f) {
    return Complex(x[row * depth + f], x[row * depth + f + depth / 2]);
  };
  Numbers expected;
  for (std::int64_t h = 0; h < 4; ++h)
    for (std::int64_t i = 0; i < shape.tokens; ++i)
      for (std::int64_t j = 0; j < shape.tokens; ++j) {
        double& sum = expected.emplace_back(0);
        for (std::int64_t f = 0; f < depth / 2; ++f) {
          const Complex left = number(q, i * 4 + h, f) * number(z, i * 2 + h / 2, f);
          const Complex right = number(k, j * 2 + h / 2, f) * number(z, j * 2 + h / 2, f);
          sum += (left * std::conj(right)).real();
        }
      }
  expect_near(tape_tensor_logits(shape, q, k, tape_tensor(shape, z)), expected);
}

// --- a layer of the oracle ---

/// W x of each token
Numbers product(const Numbers& matrix, const Numbers& x, std::size_t columns) {
  Numbers y;
  for (std::size_t t = 0; t < x.size(); t += columns)
    for (std::size_t row = 0; row < matrix.size(); row += columns) {
      double& sum = y.emplace_back(0);
      for (std::size_t c = 0; c < columns; ++c) sum += matrix[row + c] * x[t + c];
    }
  return y;
}

Numbers normed(Numbers x, const Numbers& weight, double eps) {
  for (std::size_t t = 0; t < x.size(); t += weight.size()) {
    double squares = 0;
    for (std::size_t c = 0; c < weight.size(); ++c) squares += x[t + c] * x[t + c];
    const double r = 1 / std::sqrt(squares / double(weight.size()) + eps);
    for (std::size_t c = 0; c < weight.size(); ++c) x[t + c] *= r * weight[c];
  }
  return x;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

/// The oracle's state after its first layer is the tensor form's, computed anew from the layer's inputs. W_o = 0 keeps
/// attention's output out of the MLP.
TEST(TapeTensor, OracleMovesItsStateAsTheTensorForm) {
  const OracleModel model{2, 8, 6, shape.heads, shape.groups, depth, 7};
  OraclePosition position;
  position.parts = {"tape"};
  position.theta = 50;
  position.tape_width = width;
  OracleParameters parameters;
  for (const auto& [name, extents] : oracle_shapes(model, position)) {
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    parameters[name] = random_numbers(size, 20 + parameters.size());
  }
  for (double& each : parameters["model.layers.0.self_attn.o_proj.weight"]) each = 0;
  const OracleSequence sequence{{3, 1, 6, 0, 2}, {1, 6, 0, 2, 5}, {0, 1, 3, 4, 8}, {0, 0, 0, 0, 0}};
  const OracleResult result = oracle(model, position, parameters, {sequence});

  const auto own = [&](const std::string& name) { return parameters.at("model.layers.0." + name); };
  Numbers x;
  for (int token : sequence.tokens)
    for (int c = 0; c < 8; ++c) x.push_back(parameters["model.embed_tokens.weight"][token * 8 + c]);
  const Numbers xn = normed(x, own("input_layernorm.weight"), model.norm_eps);
  const Numbers xm = normed(x, own("post_attention_layernorm.weight"), model.norm_eps);
  Numbers inner = product(own("mlp.gate_proj.weight"), xm, 8);
  const Numbers up = product(own("mlp.up_proj.weight"), xm, 8);
  for (std::size_t n = 0; n < inner.size(); ++n) inner[n] = silu(inner[n]) * up[n];
  Numbers gate = product(own("position.gate"), product(own("mlp.down_proj.weight"), inner, 6), 8);
  for (double& each : gate) each = silu(each);

  const Numbers e = tape_tensor(shape, result.states[0]);
  const Numbers logits = tape_tensor_logits(shape, product(own("self_attn.q_proj.weight"), xn, 8),
                                            product(own("self_attn.k_proj.weight"), xn, 8), e);
  const TapeTensorUpdate update{softmax(logits, shape.tokens, 1 / std::sqrt(double(depth))), own("position.alpha"),
                                own("position.up"), own("position.down"), gate};
  expect_near(tape_tensor_update(shape, e, update), tape_tensor(shape, result.states[1]));
}

}  // namespace
}  // namespace capstan::tests
