#include "kernels/attention_tile.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <functional>

#include "tests/kernels/attention_runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::View;

constexpr double exact = 1e-10;

void expect_same_rows(const View& a, const View& b, const char* name) {
  if (!a && !b) return;
  EXPECT_TRUE(same_bits(a, b)) << name;
}

void expect_same_forward(const TileRun& a, const TileRun& b) {
  expect_same_rows(a.o, b.o, "o");
  expect_same_rows(a.lse, b.lse, "lse");
  expect_same_rows(a.carry[0], b.carry[0], "carry");
  expect_same_rows(a.horizon[0], b.horizon[0], "horizon");
}

void expect_same_gradients(const TileRun& a, const TileRun& b) {
  expect_same_rows(a.dq, b.dq, "dq");
  expect_same_rows(a.dk, b.dk, "dk");
  expect_same_rows(a.dv, b.dv, "dv");
  expect_same_rows(a.dz, b.dz, "dz");
  expect_same_rows(a.dtable, b.dtable, "dtable");
}

/// Gradients of rows are summed per call on cpu, so that cutting the keys changes their rounding.
void expect_close_gradients(const TileRun& a, const TileRun& b, double tolerance) {
  const auto look = [&](const Tensor& x, const Tensor& y, const char* name) {
    if (!x && !y) return;
    EXPECT_LE(relative_error(x, y), tolerance) << name;
  };
  look(a.dq, b.dq, "dq");
  look(a.dk, b.dk, "dk");
  look(a.dv, b.dv, "dv");
  look(a.dz, b.dz, "dz");
  look(a.dtable, b.dtable, "dtable");
}

/// Backward has walked the carry back to the start of every row.
void expect_carry_left_is_zero(const TileRun& run) {
  for (std::int64_t at = 0; at < run.carry_left[0].view().elements(); ++at)
    ASSERT_EQ(run.carry_left[0].as<std::int64_t>()[at], 0) << at;
}

/// Σ_n dtable[n] = Σ_j dlogit_j = 0 in each row: the softmax does not see a constant.
void expect_table_rows_sum_to_zero(const TileRun& run, double tolerance) {
  const std::vector<double> values = values_of(run.dtable);
  const std::size_t npos = std::size_t(run.dtable.shape()[2]);
  for (std::size_t at = 0; at < values.size(); at += npos) {
    double sum = 0, size = 0;
    for (std::size_t n = 0; n < npos; ++n) sum += values[at + n], size += std::abs(values[at + n]);
    ASSERT_LE(std::abs(sum), tolerance * std::max(1.0, size)) << "row " << at / npos;
  }
}

// ---- ref in f64 against the oracle ----------------------------------------------------------------------------------

void compare_with_oracle(const AttentionShape& shape) {
  const AttentionProblem problem = random_attention(shape, std::uint64_t(shape.tokens + 1000 * shape.depth));
  const DenseOutputs outputs = dense_attention(problem.inputs());
  const DenseGradients gradients = dense_attention_backward(problem.inputs(), problem.d_o);
  for (std::int64_t tile : {1, 4, 16, 64}) {
    SCOPED_TRACE(fmt::format("T {} H {} G {} D {} z {} npos {} documents {} tile {}", shape.tokens, shape.heads,
                             shape.groups, shape.depth, shape.z, shape.npos, shape.documents.size(), tile));
    const AttentionSettings settings = settings_for(problem, tile);
    const TileRun run = run_tiles(problem, DType::f64, Device::ref, settings);
    const Worst worst = worst_error(run, outputs, gradients);
    EXPECT_LE(worst.error, exact) << worst.name;
    if (shape.npos == 0) continue;
    expect_carry_left_is_zero(run);
    expect_table_rows_sum_to_zero(run, 1e-12);
    if (run.stats.saturated_tiles == 0) continue;
    AttentionSettings general = settings;
    general.flat_tiles = false;
    const TileRun unsaturated = run_tiles(problem, DType::f64, Device::ref, general);
    expect_same_forward(run, unsaturated);
    expect_same_gradients(run, unsaturated);
  }
}

void compare_all_with_oracle(std::int64_t npos) {
  for (std::int64_t tokens : {1, 5, 63, 64, 65, 130})
    for (std::int64_t groups : {2, 1})
      for (std::int64_t depth : {8, 6, 16})
        for (bool z : {false, true})
          for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{}, {7, 3, 1}}) {
            if (tokens < 12 && !documents.empty()) continue;
            compare_with_oracle({tokens, 2, groups, depth, z, npos, documents});
            if (testing::Test::HasFailure()) return;
          }
}

TEST(AttentionTile, RefEqualsOracle) { compare_all_with_oracle(0); }

TEST(AttentionTile, RefEqualsOracleWithCopeSaturating) { compare_all_with_oracle(4); }

TEST(AttentionTile, RefEqualsOracleWithCopeUnsaturated) { compare_all_with_oracle(300); }

TEST(AttentionTile, RefEqualsOracleWithSmallTables) {
  compare_with_oracle({.tokens = 70, .heads = 2, .groups = 1, .npos = 1});  // P = 0: saturated from the first tile on
  compare_with_oracle({.tokens = 70, .heads = 2, .groups = 1, .npos = 2});
  compare_with_oracle({.tokens = 130, .heads = 2, .groups = 2, .npos = 30, .gate_mean = -4});
}

TEST(AttentionTile, GatesForcedToOneAreRelativePositions) {
  // σ(60) = 1 in f64 up to 1e-26, so p_ij = min(P, i - j + 1): an ordinary table by distance.
  AttentionProblem problem = random_attention({.tokens = 80, .heads = 2, .npos = 17, .gate_mean = 60}, 5);
  for (Tensor* x : {&problem.q, &problem.k})
    for (std::int64_t at = 0; at < x->view().elements(); ++at)
      if (at % 8 != 0) x->as<double>()[at] = 0;
  const TileRun run = run_tiles(problem, DType::f64, Device::ref, settings_for(problem, 16));
  for (std::int64_t i = 0; i < 80; ++i)
    for (std::int64_t head = 0; head < 2; ++head) {
      const double* table = problem.table.as<double>() + (i * 2 + head) * 17;
      double sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) sum += std::exp(table[std::min<std::int64_t>(16, i - j + 1)]);
      const double u = problem.q.as<double>()[(i * 2 + head) * 8] / std::sqrt(8.0);
      EXPECT_NEAR(run.lse.as<double>()[i * 2 + head], u + std::log(sum), 1e-12);
    }
}

// ---- state that is handed on ----------------------------------------------------------------------------------------

struct Kernel {
  DType type;
  Device device;
};
constexpr Kernel all_kernels[] = {{DType::f64, Device::ref}, {DType::f32, Device::ref}, {DType::f32, Device::cpu}};

TEST(AttentionTile, KeysInPiecesGiveTheSameBits) {
  for (const Kernel& kernel : all_kernels)
    for (std::int64_t tile : {4, 16, 64})
      for (std::int64_t npos : {0, 4, 64})
        for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{}, {70, 3, 30}}) {
          SCOPED_TRACE(fmt::format("{} {} tile {} npos {} {}", name_of(kernel.device), name_of(kernel.type), tile, npos,
                                   documents.size()));
          const AttentionProblem problem = random_attention({200, 4, 2, 8, true, npos, documents}, 8);
          const AttentionSettings settings = settings_for(problem, tile);
          const TileRun whole = run_tiles(problem, kernel.type, kernel.device, settings);
          const TileRun pieces = run_tiles(problem, kernel.type, kernel.device, settings, {{64, 64, 128, 192}});
          expect_same_forward(whole, pieces);
          expect_close_gradients(whole, pieces, kernel.type == DType::f64 ? 1e-15 : 1e-6);
          EXPECT_EQ(whole.stats.tiles, pieces.stats.tiles);
          EXPECT_EQ(whole.stats.gates, pieces.stats.gates);
          EXPECT_EQ(whole.stats.saturated_tiles, pieces.stats.saturated_tiles);
          EXPECT_TRUE(npos != 4 || whole.stats.saturated_tiles > 0);
          if (npos == 0) continue;
          expect_carry_left_is_zero(whole);
          AttentionSettings general = settings;
          general.flat_tiles = false;
          const TileRun unsaturated = run_tiles(problem, kernel.type, kernel.device, general);
          expect_same_forward(whole, unsaturated);
          expect_same_gradients(whole, unsaturated);
          EXPECT_GE(unsaturated.stats.gates, whole.stats.gates);
        }
}

TEST(AttentionTile, RowsDoNotDependOnOtherRows) {
  // One row alone, sixteen, or all 64 of a query tile: the same bits, also where CoPE's other rows are not saturated
  // yet.
  for (const Kernel& kernel : all_kernels)
    for (std::int64_t npos : {0, 4, 64}) {
      const AttentionProblem problem = random_attention({192, 2, 1, 24, false, npos}, 4);
      const AttentionSettings settings = settings_for(problem, 64);
      const TileRun all = run_tiles(problem, kernel.type, kernel.device, settings);
      for (const auto& [begin, end] :
           {std::pair<std::int64_t, std::int64_t>{128, 192}, {128, 144}, {128, 129}, {191, 192}, {150, 151}}) {
        SCOPED_TRACE(
            fmt::format("{} {} npos {} rows {} to {}", name_of(kernel.device), name_of(kernel.type), npos, begin, end));
        const TileRun some = run_tiles(problem, kernel.type, kernel.device, settings, {{}, begin, end});
        expect_same_rows(all.o.view().rows(begin, end), some.o, "o");
        expect_same_rows(all.lse.view().rows(begin, end), some.lse, "lse");
        expect_same_rows(all.dq.view().rows(begin, end), some.dq, "dq");
        if (npos > 0) expect_same_rows(all.dtable.view().rows(begin, end), some.dtable, "dtable");
      }
    }
}

TEST(AttentionTile, RowWithoutKeysIsZero) {
  // Queries at 64 … 127 in document 1, keys 0 … 63 in document 0: nothing to see, and then row 64 meets its own key
  // only.
  for (const Kernel& kernel : all_kernels) {
    const AttentionProblem problem = random_attention({.tokens = 128, .heads = 2, .npos = 5, .documents = {64}}, 6);
    const TileInputs inputs(problem, kernel.type, kernel.device);
    const AttentionSettings settings = settings_for(problem, 64);
    const QueryChunk queries = inputs.queries(64, 128);
    const KeyChunk keys = inputs.keys(0, 64);
    const View d_o = inputs.d_o().view().rows(64, 128);
    TileRun run = inputs.empty_run(64, 128, 64);
    const Tensor l = zeros_like(run.lse), delta = zeros_like(run.lse), gate_grad = zeros_like(run.lse);
    const kernels::AttentionState state{run.o, run.lse, l, views_of(run.carry), views_of(run.horizon)};
    attention_begin(state);
    attention_forward(state, queries, keys, settings, nullptr);
    attention_finish(state);
    for (double value : values_of(run.o)) EXPECT_EQ(value, 0);
    for (double value : values_of(run.lse)) EXPECT_EQ(value, std::numeric_limits<double>::infinity());
    for (double value : values_of(run.horizon[0])) EXPECT_EQ(value, -1);
    const kernels::AttentionSaved saved{run.lse, delta, views_of(run.carry), views_of(run.horizon)};
    const kernels::AttentionBackwardState back{views_of(run.carry_left), {gate_grad, {}}};
    kernels::attention_delta(delta, d_o, run.o);
    kernels::attention_backward_begin(back, saved);
    attention_backward(inputs.gradients(run, 0, 64, false), back, queries, keys, d_o, saved, settings);
    for (const Tensor* x : {&run.dq, &run.dk, &run.dv, &run.dtable})
      for (double value : values_of(*x)) EXPECT_EQ(value, 0);
  }
}

TEST(AttentionTile, RowThatSeesNoKeyBesideRowsThatDo) {
  // The same key tile holds the end of document 0 and the start of document 1; rows of document 2 see nothing of it.
  for (const Kernel& kernel : all_kernels) {
    const AttentionProblem problem = random_attention({.tokens = 64, .heads = 1, .npos = 5, .documents = {10, 10}}, 6);
    const AttentionSettings settings = settings_for(problem, 16);
    const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings);
    for (double value : values_of(run.o)) EXPECT_TRUE(std::isfinite(value));
    // Token 20 opens document 2: it attends only to itself.
    for (std::int64_t e = 0; e < 8; ++e)
      EXPECT_NEAR(values_of(run.o)[20 * 8 + e], values_of(problem.v)[20 * 8 + e], 1e-6);
  }
}

TEST(AttentionTile, NanStaysInTheRowsThatSeeIt) {
  std::fenv_t traps;
  std::feholdexcept(&traps);  // NaN is the subject here
  for (const Kernel& kernel : all_kernels) {
    AttentionProblem problem = random_attention({.tokens = 200, .heads = 2, .npos = 20, .gate_mean = -2}, 6);
    problem.k.as<double>()[100 * 2 * 4] = std::numeric_limits<double>::quiet_NaN();  // token 100
    const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings_for(problem, 64));
    const std::vector<double> o = values_of(run.o);
    for (std::int64_t row = 0; row < 200; ++row)
      EXPECT_EQ(std::isnan(o[std::size_t(row) * 16]), row >= 100) << name_of(kernel.device) << " row " << row;
  }
  std::fesetenv(&traps);
}

TEST(AttentionTile, GateSumIsTheCarry) {
  for (const Kernel& kernel : all_kernels)
    for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{}, {70, 30}}) {
      AttentionProblem problem =
          random_attention({.tokens = 150, .heads = 4, .groups = 2, .npos = 400, .documents = documents}, 9);
      const AttentionSettings settings = settings_for(problem, 16);
      const TileRun run = run_tiles(problem, kernel.type, kernel.device, settings);
      const TileInputs inputs(problem, kernel.type, kernel.device);
      const Tensor total = zeros_like(run.carry[0]), sum = zeros_like(total);
      sum.as<std::int64_t>()[0] = 99;  // overwritten
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 150}}) {
        attention_gate_sum(sum, 0, inputs.queries(0, 150), inputs.keys(begin, end), settings);
        for (std::int64_t at = 0; at < 600; ++at) total.as<std::int64_t>()[at] += sum.as<std::int64_t>()[at];
      }
      EXPECT_TRUE(same_bits(total, run.carry[0])) << name_of(kernel.device) << " " << name_of(kernel.type);
    }
}

TEST(AttentionTile, LongF64SequencesAreRefused) {
  AttentionProblem gated = random_attention({.tokens = 1, .npos = 2}, 1),
                   forgetting = random_attention({.tokens = 1, .offset = true}, 1);
  for (const AttentionProblem* problem : {&gated, &forgetting}) {
    const TileInputs inputs(*problem, DType::f64, Device::ref);
    TileRun run = inputs.empty_run(0, 1, 1);
    const Tensor l = zeros_like(run.lse);
    const auto run_at = [&](std::int64_t at) {
      const Tensor index = index_rows(at, at + 1, Device::ref);
      const kernels::AttentionState state{run.o, run.lse, l, views_of(run.carry), views_of(run.horizon)};
      attention_begin(state);
      QueryChunk queries = inputs.queries(0, 1);
      KeyChunk keys = inputs.keys(0, 1);
      queries.index = keys.index = index;
      attention_forward(state, queries, keys, settings_for(*problem, 1), nullptr);
    };
    run_at(kernels::longest_f64_sequence - 2);
    try {
      run_at(kernels::longest_f64_sequence - 1);  // the sequence has 2^19 tokens
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      EXPECT_NE(std::string(error.what()).find("524288"), std::string::npos) << error.what();
    }
  }
}

TEST(AttentionTile, WrongArgumentsAreRefused) {
  const AttentionProblem problem = random_attention({.tokens = 8, .heads = 2, .groups = 2, .npos = 3}, 1);
  const AttentionSettings right = settings_for(problem, 4);
  EXPECT_NO_THROW(run_tiles(problem, DType::f64, Device::ref, right));
  EXPECT_THROW(run_tiles(problem, DType::f64, Device::ref, right, {{3}}), Error);
  EXPECT_THROW(run_tiles(problem, DType::f64, Device::cpu, right), Error);
  const auto refuse = [&](const std::function<void(AttentionSettings&)>& change) {
    AttentionSettings wrong = right;
    change(wrong);
    EXPECT_THROW(run_tiles(problem, DType::f64, Device::ref, wrong), Error);
  };
  refuse([](AttentionSettings& s) { s.tile = 65; });
  refuse([](AttentionSettings& s) { s.gates[0].gates = Gates::none; });    // a table without gates
  refuse([](AttentionSettings& s) { s.gates[1].gates = Gates::tokens; });  // gates without a table
  refuse([](AttentionSettings& s) { s.gates[0].floor = 1; });
  refuse([](AttentionSettings& s) { s.gates[0].block = 4; });                       // no window
  refuse([](AttentionSettings& s) { s.gates[0] = {Gates::block_ends, 0, 4, 1}; });  // no block keys
  refuse([](AttentionSettings& s) { s.dropout.rate = 1; });
}

TEST(AttentionTile, WrongShapesAreRefused) {
  const AttentionProblem problem = random_attention({.tokens = 8,
                                                     .heads = 2,
                                                     .offset = true,
                                                     .offset_npos = 3,
                                                     .relative = 4,
                                                     .distances = 3,
                                                     .fire = 2,
                                                     .slope = true},
                                                    1);
  const TileInputs inputs(problem, DType::f64, Device::ref);
  const TileRun run = inputs.empty_run(0, 8, 4);
  const Tensor l = zeros_like(run.lse), small({1, 1}, DType::f64, Device::ref);
  const auto run_with = [&](const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings) {
    const kernels::AttentionState state{run.o, run.lse, l, {}, {}};
    attention_begin(state);
    attention_forward(state, queries, keys, settings, nullptr);
  };
  const QueryChunk right_queries = inputs.queries(0, 8);
  const KeyChunk right_keys = inputs.keys(0, 8);
  const AttentionSettings right = inputs.settings(settings_for(problem, 4));
  EXPECT_NO_THROW(run_with(right_queries, right_keys, right));
  const auto refuse = [&](const std::function<void(QueryChunk&, KeyChunk&, kernels::SharedTerms&)>& change) {
    QueryChunk queries = right_queries;
    KeyChunk keys = right_keys;
    AttentionSettings settings = right;
    change(queries, keys, settings.shared);
    EXPECT_THROW(run_with(queries, keys, settings), Error);
  };
  using kernels::SharedTerms;
  refuse([](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.position = {}; });
  refuse([](QueryChunk&, KeyChunk& keys, SharedTerms&) { keys.position = {}; });
  refuse([](QueryChunk&, KeyChunk& keys, SharedTerms&) { keys.terms.offset = {}; });
  refuse([](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.terms.offset = {}; });
  refuse([&](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.terms.offset = small; });
  refuse([&](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.terms.offset_table = small; });
  refuse([&](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.terms.relative = small; });
  refuse([&](QueryChunk& queries, KeyChunk&, SharedTerms&) { queries.terms.gate_q[1] = queries.q; });
  refuse([&](QueryChunk&, KeyChunk&, SharedTerms& shared) { shared.slope = small; });
  refuse([&](QueryChunk&, KeyChunk&, SharedTerms& shared) { shared.distance_table = small; });
  refuse([&](QueryChunk&, KeyChunk&, SharedTerms& shared) { shared.fire.out = small; });
  refuse([&](QueryChunk&, KeyChunk&, SharedTerms& shared) { shared.fire.scale = {}; });
}

}  // namespace
}  // namespace capstan::tests
