// The carry of a gated sum over a million tokens: positions against sums in double, for five kinds of gates, and the
// way back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/terms/gated_sum.h"
#include "tests/kernels/attention_runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

namespace terms = kernels::terms;

constexpr std::int64_t tokens = 1 << 20, tile = 64, chunk = 1024, last = 63;
/// Two roundings at 63 in f32 are 7.6e-6, as much again is left for gates and sums within a tile. (A carry in f32 is off by
/// 4e-3; equal small gates that all round the same way after a large one, by 2e-5 if tile sums forgot their roundings.)
constexpr double bound = 1.5e-5;
struct Distribution {
  const char* name;
  double bound;                                ///< of a position's error
  std::function<double(std::uint64_t)> logit;  ///< of token t
};

std::vector<Distribution> all_distributions() {
  const auto around = [](double mean) { return [=](std::uint64_t t) { return mean + normal(1, t); }; };
  const auto delimiters = [](std::uint64_t every, double rest, double spread) {
    return [=](std::uint64_t t) { return random_bits(2, t) % every == 0 ? 7 : rest + spread * normal(1, t); };
  };
  return {{"N(0, 1)", bound, around(0)},
          {"N(-9, 1)", bound, around(-9)},
          {"N(-11, 1)", bound, around(-11)},
          {"one in 256, rest -9", bound, delimiters(256, -9, 0)},
          {"one in 16384, rest N(-16, 1)", bound, delimiters(16384, -16, 1)},
          {"one in 16384, rest -16", bound, delimiters(16384, -16, 0)}};
}

std::vector<float> logits_of(const Distribution& distribution) {
  std::vector<float> u(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) u[t] = float(distribution.logit(std::uint64_t(t)));
  return u;
}

/// Every position of a row, by the scalar term; and its carries back again.
TEST(AttentionCarryCovering, PositionsOverAMillionTokens) {
  for (const Distribution& distribution : all_distributions()) {
    const std::vector<float> u = logits_of(distribution);
    std::vector<std::int64_t> entry;  // carry on entry of each tile, near → far
    std::int64_t carry = 0;
    double sum = 0, worst = 0;
    float gate[tile], position[tile];
    for (std::int64_t begin = tokens - tile; begin >= 0; begin -= tile) {
      entry.push_back(carry);
      carry += terms::fixed_sum(terms::positions(gate, position, &u[begin], ~std::uint64_t(0), tile,
                                                 terms::carry_value<float>(carry, last), float(last), 0.0f));
      for (std::int64_t j = tile - 1; j >= 0; --j) {
        sum += 1 / (1 + std::exp(-double(u[begin + j])));
        worst = std::max(worst, std::abs(double(position[j]) - std::min(sum, double(last))));
      }
    }
    EXPECT_LE(worst, distribution.bound) << distribution.name;
    for (std::int64_t begin = 0; begin < tokens; begin += tile) {  // far → near
      carry -= terms::fixed_sum(
          terms::positions(gate, position, &u[begin], ~std::uint64_t(0), tile, 0.0f, float(last), 0.0f));
      ASSERT_EQ(carry, entry.back()) << distribution.name << " at " << begin;
      entry.pop_back();
    }
  }
}

/// The fast kernel's carry after every chunk, forward and backward: one row, D = 1, q = 1, so that the logits are k.
TEST(AttentionCarryCovering, FastKernelOverAMillionTokens) {
  for (const Distribution& distribution : all_distributions()) {
    AttentionProblem problem = random_attention({.tokens = 1, .depth = 1, .npos = last + 1}, 3);
    problem.q.as<double>()[0] = 1;
    const std::vector<float> u = logits_of(distribution);
    const TileInputs inputs(problem, DType::f32, Device::cpu);
    const TileRun run = inputs.empty_run(0, 1, tile);
    const Tensor index = index_rows(0, tokens, Device::cpu), document({tokens}, DType::i64, Device::cpu);
    Tensor k({tokens, 1, 1}, DType::f32, Device::cpu), l = zeros_like(run.lse);
    std::copy(u.begin(), u.end(), k.as<float>());
    kernels::QueryChunk row = inputs.queries(0, 1);
    row.index = index.view().rows(tokens - 1, tokens);
    const auto keys = [&](std::int64_t begin) {
      const auto cut = [&](const Tensor& x) { return x.view().rows(begin, begin + chunk); };
      return kernels::KeyChunk{cut(k), cut(k), {}, cut(index), {}, cut(document)};
    };
    const kernels::AttentionState state{run.o, run.lse, l, views_of(run.carry), views_of(run.horizon)};
    const AttentionSettings settings = settings_for(problem, tile);
    const std::int64_t& carry = *run.carry[0].as<std::int64_t>();
    attention_begin(state);
    std::vector<std::int64_t> entry;
    double sum = 0, worst = 0;
    for (std::int64_t begin = tokens - chunk; begin >= 0; begin -= chunk) {
      entry.push_back(carry);
      attention_forward(state, row, keys(begin), settings, nullptr);
      for (std::int64_t j = chunk - 1; j >= 0; --j) sum += 1 / (1 + std::exp(-double(u[begin + j])));
      const double position = std::min(double(last), std::ldexp(double(carry), -32));
      worst = std::max(worst, std::abs(position - std::min(sum, double(last))));
    }
    EXPECT_LE(worst, distribution.bound) << distribution.name;
    attention_finish(state);

    const Tensor delta = zeros_like(run.lse), gate_grad = zeros_like(run.lse), d_k = zeros_like(k);
    const kernels::AttentionSaved saved{run.lse, delta, views_of(run.carry), views_of(run.horizon)};
    const kernels::AttentionBackwardState back{views_of(run.carry_left), {gate_grad, {}}};
    kernels::attention_backward_begin(back, saved);
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      kernels::AttentionGradients out;
      out.dq = run.dq;
      out.dk = out.dv = d_k.view().rows(begin, begin + chunk);
      attention_backward(out, back, row, keys(begin), inputs.d_o(), saved, settings);
      ASSERT_EQ(*run.carry_left[0].as<std::int64_t>(), entry.back()) << distribution.name << " at " << begin;
      entry.pop_back();
    }
  }
}

}  // namespace
}  // namespace capstan::tests
