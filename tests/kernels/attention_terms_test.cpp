// Score terms of the attention tile: alone and together, against the oracle; what must be the same bits; limits in
// which one encoding is another.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_runs.h"
#include "tests/kernels/attention_shapes.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::gated_sums;
using kernels::GateRule;
using kernels::Gates;
using kernels::Tensor;

constexpr double exact = 1e-10;

struct Kernel {
  DType type;
  Device device;
};
constexpr Kernel all_kernels[] = {{DType::f64, Device::ref}, {DType::f32, Device::ref}, {DType::f32, Device::cpu}};

GateRule tokens(double floor, std::int64_t block, std::int64_t window) { return {Gates::tokens, floor, block, window}; }
GateRule block_ends(double floor, std::int64_t block, std::int64_t window) {
  return {Gates::block_ends, floor, block, window};
}

/// None of an absent tensor.
std::vector<double> values(const Tensor& x) { return x ? values_of(x) : std::vector<double>(); }

void expect_same(const Tensor& a, const Tensor& b, const std::string& name) {
  ASSERT_EQ(bool(a), bool(b)) << name;
  EXPECT_TRUE(!a || same_bits(a, b)) << name;
}

void expect_same_forward(const TileRun& a, const TileRun& b) {
  expect_same(a.o, b.o, "o");
  expect_same(a.lse, b.lse, "lse");
  for (int w = 0; w < gated_sums; ++w) {
    expect_same(a.carry[w], b.carry[w], "carry");
    expect_same(a.horizon[w], b.horizon[w], "horizon");
  }
}

void expect_same_gradients(const TileRun& a, const TileRun& b) {
  expect_same(a.dq, b.dq, "dq");
  expect_same(a.dk, b.dk, "dk");
  expect_same(a.dv, b.dv, "dv");
  expect_same(a.dz, b.dz, "dz");
  expect_same(a.dtable, b.dtable, "dtable");
  const auto of_a = a.d_terms.all(), of_b = b.d_terms.all();
  for (std::size_t n = 0; n < of_a.size(); ++n) expect_same(*of_a[n].second, *of_b[n].second, of_a[n].first);
}

/// Backward has walked the carries back to the start of every row; Σ_n dtable[n] = Σ_j dlogit_j = 0 in each row.
void expect_row_invariants(const TileRun& run) {
  for (const Tensor& carry : run.carry_left)
    for (double value : values(carry)) ASSERT_EQ(value, 0);
  for (const Tensor* table : {&run.dtable, &run.d_terms.table_1, &run.d_terms.offset_table, &run.d_terms.relative}) {
    if (!*table) continue;
    const std::vector<double> entries = values_of(*table);
    const std::size_t columns = std::size_t(table->shape()[2]);
    for (std::size_t at = 0; at < entries.size(); at += columns) {
      double sum = 0, size = 0;
      for (std::size_t n = 0; n < columns; ++n) sum += entries[at + n], size += std::abs(entries[at + n]);
      ASSERT_LE(std::abs(sum), 1e-12 * std::max(1.0, size)) << "row " << at / columns;
    }
  }
}

AttentionProblem problem_for(AttentionShape shape, bool packed, std::uint64_t seed) {
  if (packed) {
    shape.heads = 4;
    shape.groups = 2;
    shape.depth = 6;
    shape.documents = {37, 3, 60};
  }
  return random_attention(shape, seed);
}

TEST(AttentionTerms, RefEqualsOracle) {
  for (const NamedShape& named : all_term_shapes())
    for (bool packed : {false, true}) {
      const AttentionProblem problem = problem_for(named.shape, packed, 11);
      const DenseOutputs outputs = dense_attention(problem.inputs());
      const DenseGradients gradients = dense_attention_backward(problem.inputs(), problem.d_o);
      for (std::int64_t tile : {1, 4, 16, 64}) {
        SCOPED_TRACE(fmt::format("{} packed {} tile {}", named.name, packed, tile));
        const TileRun run = run_tiles(problem, DType::f64, Device::ref, settings_for(problem, tile));
        const Worst worst = worst_error(run, outputs, gradients);
        EXPECT_LE(worst.error, exact) << worst.name;
        expect_row_invariants(run);
      }
      if (HasFailure()) return;
    }
}

TEST(AttentionTerms, FlatTilesAndKeyPiecesGiveTheSameBits) {
  for (const NamedShape& named : all_term_shapes())
    for (const Kernel& kernel : {all_kernels[0], all_kernels[2]})  // f32 on ref is the same template
      for (std::int64_t tile : {4, 16, 64}) {
        SCOPED_TRACE(fmt::format("{} {} {} tile {}", named.name, name_of(kernel.device), name_of(kernel.type), tile));
        const AttentionProblem problem = problem_for(named.shape, tile == 16, 12);
        AttentionSettings settings = settings_for(problem, tile);
        const TileRun whole = run_tiles(problem, kernel.type, kernel.device, settings);
        const TileRun pieces = run_tiles(problem, kernel.type, kernel.device, settings, {{64, 64, 128}});
        expect_same_forward(whole, pieces);
        EXPECT_EQ(whole.stats.gates, pieces.stats.gates);
        EXPECT_EQ(whole.stats.saturated_tiles, pieces.stats.saturated_tiles);
        settings.flat_tiles = false;
        const TileRun general = run_tiles(problem, kernel.type, kernel.device, settings);
        expect_same_forward(whole, general);
        expect_same_gradients(whole, general);
        EXPECT_EQ(whole.stats.saturated_tiles, general.stats.saturated_tiles);
        EXPECT_LE(whole.stats.gates, general.stats.gates);
        if (HasFailure()) return;
      }
}

TEST(AttentionTerms, GradientsOfKeyPiecesAreClose) {
  for (const NamedShape& named : all_term_shapes())
    for (const Kernel& kernel : all_kernels) {
      SCOPED_TRACE(fmt::format("{} {} {}", named.name, name_of(kernel.device), name_of(kernel.type)));
      const AttentionProblem problem = problem_for(named.shape, true, 13);
      const AttentionSettings settings = settings_for(problem, 64);
      const TileRun whole = run_tiles(problem, kernel.type, kernel.device, settings);
      const TileRun pieces = run_tiles(problem, kernel.type, kernel.device, settings, {{64, 128}});
      const double tolerance = 256 * (kernel.type == DType::f64 ? 0x1p-53 : 0x1p-24);  // 130 rows and keys, rounded
      EXPECT_LE(relative_error(pieces.dq, whole.dq), tolerance);
      EXPECT_LE(relative_error(pieces.dk, whole.dk), tolerance);
      const auto of_pieces = pieces.d_terms.all(), of_whole = whole.d_terms.all();
      for (std::size_t n = 0; n < of_whole.size(); ++n) {
        const Tensor& expected = *of_whole[n].second;
        double size = 0;
        for (double value : values(expected)) size = std::max(size, std::abs(value));
        if (size < 1e-3) continue;  // the gradient is 0, and this rounding
        EXPECT_LE(relative_error(*of_pieces[n].second, expected), tolerance) << of_whole[n].first;
      }
    }
}

TEST(AttentionTerms, RowsDoNotDependOnOtherRows) {
  for (const NamedShape& named : all_term_shapes())
    for (const Kernel& kernel : all_kernels) {
      const AttentionProblem problem = random_attention(named.shape, 14);
      const AttentionSettings settings = settings_for(problem, 64);
      const TileRun all = run_tiles(problem, kernel.type, kernel.device, settings);
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{64, 80}, {100, 101}, {129, 130}}) {
        SCOPED_TRACE(fmt::format("{} {} {} rows {} to {}", named.name, name_of(kernel.device), name_of(kernel.type),
                                 begin, end));
        const TileRun some = run_tiles(problem, kernel.type, kernel.device, settings, {{}, begin, end});
        EXPECT_TRUE(same_bits(all.o.view().rows(begin, end), some.o));
        EXPECT_TRUE(same_bits(all.lse.view().rows(begin, end), some.lse));
        EXPECT_TRUE(same_bits(all.dq.view().rows(begin, end), some.dq));
      }
      if (HasFailure()) return;
    }
}

TEST(AttentionTerms, FrozenTermsChangeNothingElse) {
  for (const NamedShape& named : all_term_shapes())
    for (const Kernel& kernel : all_kernels) {
      SCOPED_TRACE(fmt::format("{} {} {}", named.name, name_of(kernel.device), name_of(kernel.type)));
      const AttentionProblem problem = random_attention(named.shape, 15);
      const AttentionSettings settings = settings_for(problem, 16);
      const TileRun all = run_tiles(problem, kernel.type, kernel.device, settings);
      const TileRun frozen =
          run_tiles(problem, kernel.type, kernel.device, settings, {.key_edges = {}, .frozen = true});
      expect_same(all.dq, frozen.dq, "dq");
      expect_same(all.dk, frozen.dk, "dk");
      expect_same(all.dv, frozen.dv, "dv");
      for (const auto& [name, gradient] : frozen.d_terms.all())
        for (double value : values(*gradient)) ASSERT_EQ(value, 0) << name;
    }
}

TEST(AttentionTerms, ValuesAsGateKeys) {
  AttentionProblem problem = random_attention(
      {.tokens = 90, .heads = 4, .groups = 2, .npos = 20, .documents = {30}, .gate_k = {true, false}}, 3);
  problem.terms.gate_k[0] = problem.v.clone();
  const DenseOutputs outputs = dense_attention(problem.inputs());
  DenseGradients gradients = dense_attention_backward(problem.inputs(), problem.d_o);
  for (std::int64_t at = 0; at < gradients.dv.view().elements(); ++at)
    gradients.dv.as<double>()[at] += gradients.terms.gate_k[0].as<double>()[at];
  for (const Kernel& kernel : all_kernels) {
    const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings_for(problem, 16),
                                  {.key_edges = {}, .values_are_gates = true});
    const double tolerance = kernel.type == DType::f64 ? exact : 1e-5;
    EXPECT_LE(relative_error(run.o, outputs.o), tolerance);
    EXPECT_LE(relative_error(run.dv, gradients.dv), tolerance);
    EXPECT_LE(relative_error(run.dk, gradients.dk), tolerance);
    EXPECT_LE(relative_error(run.dq, gradients.dq), tolerance);
  }
}

TEST(AttentionTerms, GateSumsAreTheCarries) {
  const AttentionShape shape{.tokens = 150,
                             .heads = 4,
                             .groups = 2,
                             .npos = 400,
                             .documents = {70, 30},
                             .gates = {tokens(0.1, 16, 2), block_ends(0, 16, 2)},
                             .npos_1 = 400};
  const AttentionProblem problem = random_attention(shape, 9);
  for (const Kernel& kernel : all_kernels)
    for (int which = 0; which < gated_sums; ++which) {
      const AttentionSettings settings = settings_for(problem, 16);
      const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings);
      const TileInputs inputs(problem, kernel.type, kernel.device);
      const Tensor total = zeros_like(run.carry[0]), sum = zeros_like(total);
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 150}}) {
        attention_gate_sum(sum, which, inputs.queries(0, 150), inputs.keys(begin, end), settings);
        for (std::int64_t at = 0; at < 600; ++at) total.as<std::int64_t>()[at] += sum.as<std::int64_t>()[at];
      }
      EXPECT_TRUE(same_bits(total, run.carry[which])) << name_of(kernel.device) << " sum " << which;
    }
}

// ---- limits ---------------------------------------------------------------------------------------------------------

TEST(AttentionTerms, AWindowOverAllBlocksIsPlainCope) {
  for (const Kernel& kernel : all_kernels)
    for (std::int64_t tile : {4, 64})
      for (const GateRule& rule : {tokens(0, 1, 150), tokens(0, 16, 10), tokens(0, 16, 1000), tokens(0, 192, 1)}) {
        const AttentionProblem plain = random_attention({.tokens = 150, .heads = 2, .npos = 30, .documents = {40}}, 21);
        AttentionSettings settings = settings_for(plain, tile);
        const TileRun expected = run_tiles(plain, kernel.type, kernel.device, settings);
        settings.gates[0] = rule;
        const TileRun run = run_tiles(plain, kernel.type, kernel.device, settings);
        expect_same_forward(run, expected);
        expect_same_gradients(run, expected);
      }
}

TEST(AttentionTerms, OneBlockIsPlainCope) {
  // No block lies before the window: β = 0 for every key, and its row constant is 0 here.
  const AttentionProblem plain = random_attention({.tokens = 150, .heads = 2, .npos = 30}, 22);
  AttentionProblem blocks = random_attention(
      {.tokens = 150, .heads = 2, .npos = 30, .gates = {tokens(0, 192, 1), block_ends(0, 192, 1)}, .npos_1 = 5}, 22);
  for (std::int64_t at = 0; at < blocks.terms.table_1.view().elements(); at += 5)
    blocks.terms.table_1.as<double>()[at] = 0;
  for (const Kernel& kernel : all_kernels) {
    const TileRun expected = run_tiles(plain, kernel.type, kernel.device, settings_for(plain, 16));
    const TileRun run = run_tiles(blocks, kernel.type, kernel.device, settings_for(blocks, 16));
    expect_same(run.o, expected.o, "o");
    expect_same(run.lse, expected.lse, "lse");
    expect_same(run.dq, expected.dq, "dq");
    expect_same(run.dk, expected.dk, "dk");
    expect_same(run.dtable, expected.dtable, "dtable");
    for (double value : values_of(run.horizon[1])) EXPECT_EQ(value, -1);
  }
}

TEST(AttentionTerms, BlocksOfOneTokenAreStrictPastCope) {
  // p_ij = Σ_{j<=k<i} σ(s gate_q·gate_k): CoPE without the own gate.
  const AttentionProblem problem =
      random_attention({.tokens = 60, .npos = 9, .gates = {block_ends(0, 1, 1)}, .gate_q = {true, false}}, 23);
  const TileRun run = run_tiles(problem, DType::f64, Device::ref, settings_for(problem, 16));
  const auto dot = [](const Tensor& a, std::int64_t i, const Tensor& b, std::int64_t j) {
    double sum = 0;
    for (std::int64_t d = 0; d < 8; ++d) sum += a.as<double>()[i * 8 + d] * b.as<double>()[j * 8 + d];
    return sum / std::sqrt(8.0);
  };
  for (std::int64_t i = 0; i < 60; ++i) {
    double position = 0, sum = 0;
    for (std::int64_t j = i; j >= 0; --j) {
      if (j < i) position += 1 / (1 + std::exp(-dot(problem.terms.gate_q[0], i, problem.terms.gate_k[0], j)));
      const double place = std::min(position, 8.0), low = std::floor(place);
      const double* table = problem.table.as<double>() + i * 9;
      const double bias =
          (1 - (place - low)) * table[std::int64_t(low)] + (place - low) * table[std::int64_t(std::ceil(place))];
      sum += std::exp(dot(problem.q, i, problem.k, j) + bias);
    }
    EXPECT_NEAR(run.lse.as<double>()[i], std::log(sum), 1e-11);
  }
}

TEST(AttentionTerms, ARaisedFloorBoundsTheHorizon) {
  // Gates of at least 1/4: P = 8 is reached within 32 keys, so that no tile of 16 beyond the fourth is summed.
  const AttentionProblem problem =
      random_attention({.tokens = 150, .npos = 9, .gate_mean = -30, .gates = {tokens(0.25, 0, 0)}}, 24);
  for (const Kernel& kernel : all_kernels) {
    const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings_for(problem, 16));
    for (std::int64_t tile = 0; tile < 10; ++tile)
      EXPECT_EQ(run.horizon[0].as<std::int64_t>()[tile], std::max<std::int64_t>(0, tile - 2) * 16);
  }
}

// ---- dropout --------------------------------------------------------------------------------------------------------

TEST(AttentionTerms, DropoutMasksBelongToHeadsOfTheModel) {
  // Heads 0 … 3 at once, or 2 and 3 alone as on another rank: the same bits.
  const AttentionProblem whole = random_attention({.tokens = 100, .heads = 4, .groups = 4, .dropout = 0.3}, 25);
  AttentionProblem half = random_attention({.tokens = 100, .heads = 2, .groups = 2, .dropout = 0.3}, 25);
  half.dropout.first_head = whole.dropout.first_head + 2;
  const auto upper = [](const Tensor& all, const Tensor& heads) {
    for (std::int64_t t = 0; t < 100; ++t) heads.view()[t].reshape({2, 8}).copy_from(all.view()[t].rows(2, 4));
  };
  upper(whole.q, half.q);
  upper(whole.k, half.k);
  upper(whole.v, half.v);
  upper(whole.d_o, half.d_o);
  for (const Kernel& kernel : all_kernels) {
    const TileRun all = run_tiles(whole, kernel.type, kernel.device, settings_for(whole, 16));
    const TileRun some = run_tiles(half, kernel.type, kernel.device, settings_for(half, 16));
    for (std::int64_t t = 0; t < 100; ++t) {
      EXPECT_TRUE(same_bits(all.o.view()[t].rows(2, 4), some.o.view()[t]));
      EXPECT_TRUE(same_bits(all.dq.view()[t].rows(2, 4), some.dq.view()[t]));
    }
  }
}

TEST(AttentionTerms, DropoutKeepsTheMeanAndLse) {
  // v = 1: O_i = Σ m A, whose mean over many rows is 1.
  AttentionProblem problem = random_attention({.tokens = 300, .heads = 2, .depth = 1, .dropout = 0.5}, 26);
  std::fill_n(problem.v.as<double>(), problem.v.view().elements(), 1.0);
  AttentionSettings settings = settings_for(problem, 64);
  const TileRun dropped = run_tiles(problem, DType::f32, Device::cpu, settings);
  settings.dropout.rate = 0;
  const TileRun full = run_tiles(problem, DType::f32, Device::cpu, settings);
  expect_same(dropped.lse, full.lse, "lse");
  double mean = 0;
  for (double value : values_of(dropped.o)) mean += value / 600;
  EXPECT_NEAR(mean, 1, 0.05);
}

}  // namespace
}  // namespace capstan::tests
