// What must not change, or must become another encoding, over ranks: CoPE (notes/cope.md §7), hierarchical CoPE, and
// every encoding that sees only differences of positions. Tiles alone: tests/kernels/attention_terms_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/framework/runs.h"
#include "tests/support/conformance.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::Tensor;
using kernels::View;

constexpr double rounding = 1e-12;  ///< of sums of some hundred f64 terms of both signs

/// f(ranks, grid) under every schedule that sums gates.
void over_schedules(std::initializer_list<int> rank_counts,
                    const std::function<void(int, const framework::GridConfig&)>& f) {
  for (const int ranks : rank_counts)
    for (const framework::GridConfig& grid : ordered_grids(ranks)) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", grid.schedule, ranks));
      f(ranks, grid);
    }
}

bool has_part(const std::string& kind, const std::string& part) {
  return ("+" + kind + "+").find("+" + part + "+") != std::string::npos;
}

// ---- CoPE -----------------------------------------------------------------------------------------------------------

/// Columns [begin, end) of rows of `width`.
Numbers columns_of(const Numbers& x, std::size_t width, std::size_t begin, std::size_t end) {
  Numbers out;
  for (std::size_t row = 0; row < x.size(); row += width)
    for (std::size_t c = begin; c < end; ++c) out.push_back(x[row + c]);
  return out;
}

/// Gates of 1 count the keys from j to i: p_ij = i - j + 1, which the table reads one row further than `relative` does.
class GatesOfOne : public testing::TestWithParam<DType> {};

TEST_P(GatesOfOne, AreRelativeLogits) {
  constexpr std::int64_t rows = 7;  // R + 1
  const DType type = GetParam();
  const double order = 45 * (type == DType::f64 ? 0x1p-53 : 0x1p-24);  // of a sum of up to 45 terms in another order
  const Device device = type == DType::f64 ? Device::ref : Device::cpu;
  RingRun relative{.documents = {17, 3}};
  relative.settings.tile = type == DType::f64 ? 4 : 16;
  add_random(relative, type, device);
  add_random(relative, "relative", ring_heads, rows);
  RingRun cope{.documents = relative.documents, .settings = relative.settings};
  cope.settings.gates[0].gates = Gates::tokens;
  add_random(cope, type, device);
  add_random(cope, "table0", ring_heads, rows + 1);
  for (std::int64_t row = 0; row < cope.tokens * ring_heads; ++row) {
    const View to = cope.x["table0"].view().reshape({cope.tokens * ring_heads, rows + 1})[row];
    to.rows(1, rows + 1).copy_from(relative.x["relative"].view().reshape({cope.tokens * ring_heads, rows})[row]);
  }
  const std::vector<double> hundreds(std::size_t(cope.tokens * ring_heads * ring_depth),
                                     100);  // a sigmoid of exactly 1
  cope.x["gate_q0"] = tensor_of({cope.tokens, ring_heads, ring_depth}, type, device, hundreds);
  cope.x["gate_k0"] = tensor_of({cope.tokens, ring_groups, ring_depth}, type, device,
                                Numbers(hundreds.begin(), hundreds.begin() + std::ssize(hundreds) / 2));
  over_schedules({1, 2, 3, 4}, [&](int ranks, const framework::GridConfig& grid) {
    relative.grid = cope.grid = grid;
    const RingResult a = run_ring(ranks, relative);
    RingResult b = run_ring(ranks, cope);
    EXPECT_EQ(unequal_names(b.rows, a.rows), std::vector<std::string>{});
    EXPECT_EQ(unequal_names(b.gradients, a.gradients), std::vector<std::string>{});
    const Numbers& table = b.gradients.at("table0");
    EXPECT_LE(relative_difference(columns_of(table, rows + 1, 1, rows + 1), a.gradients.at("relative")), order)
        << "saturated tiles are summed first";
    for (const double value : columns_of(table, rows + 1, 0, 1)) ASSERT_EQ(value, 0) << "nobody stands at position 0";
    for (const char* gate : {"gate_q0", "gate_k0"})
      for (const double value : b.gradients.at(gate)) ASSERT_EQ(value, 0) << gate;
  });
}

INSTANTIATE_TEST_SUITE_P(Types, GatesOfOne, testing::Values(DType::f64, DType::f32),
                         [](const auto& type) { return kernels::name_of(type.param); });

/// Plain CoPE, or blocks of four with token gates in two of them, all with tables that soon end.
RingRun gated_run(bool blocks, DType type, std::int64_t window = 2) {
  RingRun run{.tokens = 90, .documents = {50, 7}};
  run.settings.tile = 4;
  run.settings.gates[0] = {Gates::tokens, 0, blocks ? 4 : 0, blocks ? window : 0};
  add_random(run, type, type == DType::f64 ? Device::ref : Device::cpu);
  add_random(run, "table0", ring_heads, 5);
  if (!blocks) return run;
  run.settings.gates[1] = {Gates::block_ends, 0, 4, window};
  add_random(run, "table1", ring_heads, 4);
  add_random(run, "gate_k1", ring_groups, ring_depth);
  return run;
}

TEST(CopeSymmetry, TheSaturatedPathChangesNoBit) {
  for (const bool blocks : {false, true})
    for (const DType type : {DType::f64, DType::f32}) {
      SCOPED_TRACE(fmt::format("blocks {} {}", blocks, name_of(type)));
      RingRun run = gated_run(blocks, type);
      over_schedules({1, 3}, [&](int ranks, const framework::GridConfig& grid) {
        run.grid = grid;
        run.settings.flat_tiles = true;
        const RingResult on = run_ring(ranks, run);
        run.settings.flat_tiles = false;
        const RingResult off = run_ring(ranks, run);
        EXPECT_GT(on.saturated_tiles, 0);
        EXPECT_EQ(unequal_names(on.rows, off.rows), std::vector<std::string>{});
        EXPECT_EQ(unequal_names(on.gradients, off.gradients), std::vector<std::string>{});
      });
    }
}

void expect_rows_sum_to_zero(const Numbers& x, std::size_t columns, const std::string& name) {
  double most = 0;
  for (std::size_t row = 0; row < x.size(); row += columns) {
    double sum = 0, size = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += x[row + c], size += std::abs(x[row + c]);
    most = std::max(most, size);
    ASSERT_LE(std::abs(sum), rounding * std::max(1.0, size)) << name << " row " << row / columns;
  }
  EXPECT_GT(most, 1e-3) << name << ": all zero";
}

/// Adding a constant to a row's logits changes nothing, and the weights of a position on the table's rows are 1
/// together.
TEST(CopeSymmetry, GradientsOfARowsTableSumToZero) {
  RingRun offsets{.tokens = 90, .documents = {50, 7}, .offset = {parallel::OffsetRule::block_gates, 4}};
  offsets.settings.tile = 4;
  offsets.settings.gates[0] = {Gates::tokens, 0, 4, 1};
  add_random(offsets, DType::f64, Device::ref);
  add_random(offsets, "table0", ring_heads, 5);
  add_random(offsets, "relative", ring_heads, 6);
  add_random(offsets, "offset_table", ring_heads, 3);
  offsets.x["offset_source"] = random_tensor({90, ring_heads}, DType::f64, Device::ref, 50);
  RingRun runs[] = {gated_run(false, DType::f64), gated_run(true, DType::f64, 1), std::move(offsets)};
  over_schedules({1, 2, 4}, [&](int ranks, const framework::GridConfig& grid) {
    for (RingRun& run : runs) {
      run.grid = grid;
      const RingResult result = run_ring(ranks, run);
      for (const char* name : {"table0", "table1", "offset_table", "relative"})
        if (const auto found = result.gradients.find(name); found != result.gradients.end())
          expect_rows_sum_to_zero(found->second, std::size_t(run.x.at(name).shape()[2]), name);
    }
  });
}

/// So also the gradients of the tables that the rows share: Σ_n de[n] = Σ_i q_i Σ_n dz_i[n] = 0.
TEST(CopeSymmetry, GradientsOfTablesSumToZero) {
  int tables = 0;
  for (const EncodingCase& encoding : encoding_cases()) {
    ModelRun run{.documents = {11, 5}};
    run.shape.kind = encoding.kind;
    encoding.set(run.shape.position);
    for (const auto& [name, gradient] : run_model(3, run).gradients) {
      const bool by_rows = name.ends_with("table") || name.ends_with("relative"), by_heads = name.ends_with("buckets");
      if (!by_rows && !by_heads) continue;
      const auto columns = std::size_t(by_rows ? run.shape.head_size : run.shape.heads);
      double largest = 0;
      for (const double value : gradient) largest = std::max(largest, std::abs(value));
      for (std::size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::size_t row = 0; row < gradient.size(); row += columns) sum += gradient[row + c];
        EXPECT_NEAR(sum, 0, rounding * std::max(1.0, largest)) << encoding.name << " " << name << " column " << c;
      }
      EXPECT_GT(largest, 1e-3) << encoding.name << " " << name;
      ++tables;
    }
  }
  EXPECT_GT(tables, 20);
}

/// Without a word from the tables: the same losses and gradients, bit for bit.
TEST(CopeSymmetry, ZeroTablesAreNoTables) {
  const std::pair<const char*, const char*> pairs[] = {{"cope", "none"},          {"relative", "none"},
                                                       {"cope+relative", "none"}, {"hierarchical_cope", "none"},
                                                       {"rope+cope", "rope"},     {"rope+hierarchical_cope", "rope"}};
  for (const auto& [kind, without] : pairs)
    for (const Device device : {Device::ref, Device::cpu}) {
      SCOPED_TRACE(fmt::format("{} on {}", kind, name_of(device)));
      over_schedules({1, 2, 3}, [&](int ranks, const framework::GridConfig& grid) {
        ModelRun plain{.documents = {11, 5}, .grid = grid};
        plain.shape.kind = without;
        plain.shape.device = device;
        plain.shape.type = device == Device::ref ? DType::f64 : DType::f32;
        ModelRun run = plain;
        run.shape.kind = kind;
        run.set_model = [&](framework::Model& model) {
          copy_shared(model, *tiny_model(plain.shape));
          zero_parameters(model, "table");
          zero_parameters(model, "relative");
        };
        const ModelResult expected = run_model(ranks, plain), got = run_model(ranks, run);
        EXPECT_EQ(got.nll, expected.nll);
        EXPECT_EQ(got.input_gradient, expected.input_gradient);
        EXPECT_EQ(unequal_names(got.gradients, expected.gradients), std::vector<std::string>{});
      });
    }
}

// ---- hierarchical CoPE
// ------------------------------------------------------------------------------------------------

constexpr std::int64_t unsaturated = 46;  ///< rows of a table that 45 gates do not leave: the far blocks are seen

/// A hierarchical model with the parameters of the plain one.
ModelRun hierarchical_run(const ModelRun& plain, bool zero_block_table) {
  ModelRun run = plain;
  run.shape.kind = plain.shape.kind == "cope" ? "hierarchical_cope" : "rope+hierarchical_cope";
  run.set_model = [shape = plain.shape, zero_block_table](framework::Model& model) {
    copy_shared(model, *tiny_model(shape));
    if (zero_block_table) zero_parameters(model, "block_table");
  };
  return run;
}

/// Without blocks beyond the window their table adds one constant to all logits of a row, or, where it is zero,
/// nothing.
void expect_plain(const ModelRun& plain, ModelRun blocks, int ranks, bool zero_block_table) {
  const ModelResult expected = run_model(ranks, plain), got = run_model(ranks, blocks);
  if (zero_block_table) {
    EXPECT_EQ(got.nll, expected.nll);
  } else {
    EXPECT_LE(relative_difference(got.nll, expected.nll), rounding);
  }
  EXPECT_LE(relative_difference(got.input_gradient, expected.input_gradient), rounding);
  const NamedDifference worst = worst_difference(got.gradients, expected.gradients);
  EXPECT_LE(worst.difference, rounding) << worst.name;
  int own = 0;
  for (const auto& [name, gradient] : got.gradients) {
    if (expected.gradients.contains(name)) continue;
    ++own;
    for (const double value : gradient) ASSERT_NEAR(value, 0, name.ends_with("block_table") ? rounding : 0) << name;
  }
  EXPECT_GT(own, 0);
}

TEST(HierarchicalCope, IsPlainCopeWhereTheWindowHoldsAllBlocks) {
  for (const char* kind : {"cope", "rope+cope"})
    for (const std::int64_t block : {1, 4, 16})
      for (const bool zero : {true, false})
        for (const int ranks : {1, 2, 3})
          for (const framework::GridConfig& grid : ordered_grids(ranks)) {
            SCOPED_TRACE(
                fmt::format("{} block {} zero table {} {} over {} ranks", kind, block, zero, grid.schedule, ranks));
            ModelRun plain{.grid = grid};
            if (!zero) plain.documents = {13, 6};
            plain.shape.kind = kind;
            plain.shape.position.cope_positions = unsaturated;
            ModelRun blocks = hierarchical_run(plain, zero);
            blocks.shape.position.block_size = block;
            blocks.shape.position.block_window = (plain.length + block - 1) / block;
            expect_plain(plain, blocks, ranks, zero);
          }
}

TEST(HierarchicalCope, ASmallerWindowIsNotPlainCope) {
  for (const std::int64_t block : {1, 4, 16}) {
    ModelRun plain;
    plain.shape.kind = "cope";
    plain.shape.position.cope_positions = unsaturated;
    ModelRun blocks = hierarchical_run(plain, true);
    blocks.shape.position.block_size = block;
    blocks.shape.position.block_window = 2;
    EXPECT_GT(relative_difference(run_model(3, blocks).nll, run_model(3, plain).nll), 1e-4) << block;
  }
}

TEST(HierarchicalCope, IsPlainCopeInOneBlock) {
  for (const char* kind : {"cope", "rope+cope"})
    for (const char* gates : {"query", "token"})
      for (const bool zero : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} zero table {}", kind, gates, zero));
        ModelRun plain{.documents = {13, 6}};
        plain.shape.kind = kind;
        plain.shape.position.cope_positions = unsaturated;
        ModelRun blocks = hierarchical_run(plain, zero);
        blocks.shape.position.block_size = 48;
        blocks.shape.position.block_gates = gates;
        expect_plain(plain, blocks, 1, zero);
      }
}

/// Attention with p_ij = Σ_(j<=k<i) σ(s q_i·κ_k), which leaves out the own gate, from its formula. The other sum is the
/// own token's gate for every key, so it changes nothing.
struct StrictPast {
  const RingRun& run;
  std::int64_t last_position;  ///< P

  double number(const char* name, std::int64_t t, std::int64_t head, std::int64_t c) const {
    const View x = run.x.at(name);
    return x.as<double>()[(t * x.dim(1) + head) * x.dim(2) + c];
  }
  double dot(const char* a, std::int64_t i, std::int64_t h, const char* b, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t c = 0; c < ring_depth; ++c)
      sum += number(a, i, h, c) * number(b, j, h / (ring_heads / ring_groups), c);
    return sum / std::sqrt(double(ring_depth));
  }
  double bias(std::int64_t i, std::int64_t h, double position) const {
    const double p = std::min(position, double(last_position)), low = std::floor(p);
    return (1 - (p - low)) * number("table1", i, h, std::int64_t(low)) +
           (p - low) * number("table1", i, h, std::int64_t(std::ceil(p)));
  }
  /// Σ_c d_o · o of one row and head.
  double row_loss(std::int64_t i, std::int64_t h, std::int64_t first) const {
    double position = 0, weights = 0, loss = 0;
    for (std::int64_t j = i; j >= first; --j) {
      if (j < i) position += 1 / (1 + std::exp(-dot("q", i, h, "gate_k1", j)));
      const double weight = std::exp(dot("q", i, h, "k", j) + bias(i, h, position));
      weights += weight;
      for (std::int64_t c = 0; c < ring_depth; ++c)
        loss += weight * number("d_o", i, h, c) * number("v", j, h / (ring_heads / ring_groups), c);
    }
    return loss / weights;
  }
  double loss() const {
    double sum = 0;
    for (std::int64_t i = 0; i < run.tokens; ++i)
      for (std::int64_t h = 0; h < ring_heads; ++h) sum += row_loss(i, h, i < run.documents[0] ? 0 : run.documents[0]);
    return sum;
  }
};

/// Losses by the formula and by the ring; then the ring's gradients against the formula's central differences with h =
/// 1e-6, small for the kinks of the table, so that rounding leaves 1e-16 · loss / h of them.
TEST(HierarchicalCope, IsStrictPastCopeAtBlocksOfOneToken) {
  RingRun run{.tokens = 23, .documents = {9}};
  run.settings.tile = 4;
  run.settings.gates = {{{Gates::tokens, 0, 1, 1}, {Gates::block_ends, 0, 1, 1}}};
  add_random(run, DType::f64, Device::ref);
  add_random(run, "table0", ring_heads, 4);
  add_random(run, "table1", ring_heads, 5);
  add_random(run, "gate_k1", ring_groups, ring_depth);
  const StrictPast formula{run, 4};
  NamedNumbers differences;
  for (auto& [name, x] : run.x) {
    if (name == "d_o" || name == "table0") continue;
    for (std::int64_t at = 0; at < x.view().elements(); at += 7) {
      double& value = x.as<double>()[at];
      const double kept = value;
      value = kept + 1e-6;
      const double above = formula.loss();
      value = kept - 1e-6;
      differences[name].push_back((above - formula.loss()) / 2e-6);
      value = kept;
    }
  }
  over_schedules({1, 2, 3, 4}, [&](int ranks, const framework::GridConfig& grid) {
    run.grid = grid;
    RingResult result = run_ring(ranks, run);
    double loss = 0;
    const Numbers d_o = values_of(run.x.at("d_o"));
    for (std::size_t at = 0; at < d_o.size(); ++at) loss += d_o[at] * result.rows.at("o")[at];
    EXPECT_NEAR(loss, formula.loss(), rounding * double(d_o.size()));
    for (const auto& [name, expected] : differences) {
      Numbers some;
      for (std::size_t at = 0; at < result.gradients[name].size(); at += 7) some.push_back(result.gradients[name][at]);
      EXPECT_LE(relative_difference(some, expected), 1e-8) << name;
    }
    EXPECT_LE(relative_difference(result.gradients["table0"], Numbers(result.gradients["table0"].size())), rounding);
  });
}

// ---- translations
// -----------------------------------------------------------------------------------------------------

ModelRun shifted(ModelRun run, std::int64_t shift) {
  run.set_batch = [shift](framework::Batch& batch) {
    for (std::int64_t t = 0; t < batch.position.view().elements(); ++t) batch.position.as<std::int64_t>()[t] += shift;
  };
  return run;
}

ModelRun run_of(const EncodingCase& encoding) {
  ModelRun run{.documents = {11, 5}};
  run.shape.kind = encoding.kind;
  run.shape.layers = 3;
  encoding.set(run.shape.position);
  return run;
}

bool is_absolute(const std::string& kind) {
  return has_part(kind, "sinusoidal") || has_part(kind, "learned") || has_part(kind, "fire");
}

/// Positions all further by a constant. Where nothing turns, differences of integers are exact, and so is the rest.
/// Phases of positions of 10^6 have errors up to 2^-53 · 10^6 = 1e-10, ten times that is allowed. randomized takes its
/// positions as places in its draw, where there is nothing beyond the sequence. xPos's factors leave f64 at 10^6: it
/// goes 1000 far.
TEST(Translation, ChangesNoRelativeEncoding) {
  int tried = 0;
  for (const EncodingCase& encoding : encoding_cases()) {
    if (is_absolute(encoding.kind) || has_part(encoding.kind, "randomized")) continue;
    SCOPED_TRACE(encoding.name);
    const ModelRun run = run_of(encoding);
    const ModelResult expected = run_model(3, run);
    framework::PositionConfig position = run.shape.position;
    position.kind = encoding.kind;
    const bool turns = framework::claims_of(position).rotation;
    for (const std::int64_t shift : {1'000, 1'000'000}) {
      if (shift > 1'000 && has_part(encoding.kind, "xpos")) continue;
      const ModelResult got = run_model(3, shifted(run, shift));
      if (!turns) {
        EXPECT_EQ(got.nll, expected.nll);
        EXPECT_EQ(unequal_names(got.gradients, expected.gradients), std::vector<std::string>{});
        continue;
      }
      EXPECT_NE(got.nll, expected.nll) << "not even rounding: are positions seen?";
      EXPECT_LE(relative_difference(got.nll, expected.nll), 1e-9) << shift;
      EXPECT_LE(relative_difference(got.input_gradient, expected.input_gradient), 1e-9) << shift;
      const NamedDifference worst = worst_difference(got.gradients, expected.gradients);
      EXPECT_LE(worst.difference, 1e-9) << worst.name << " " << shift;
    }
    ++tried;
  }
  EXPECT_GT(tried, 30);
}

/// FIRE divides by the row's position, so it, too, is none of these.
TEST(Translation, ChangesAbsoluteEncodings) {
  int tried = 0;
  for (const EncodingCase& encoding : encoding_cases()) {
    if (!is_absolute(encoding.kind)) continue;
    const ModelRun run = run_of(encoding);
    const std::int64_t shift = has_part(encoding.kind, "learned") ? 100 : 1'000;
    EXPECT_GT(relative_difference(run_model(3, shifted(run, shift)).nll, run_model(3, run).nll), 1e-3) << encoding.name;
    ++tried;
  }
  EXPECT_GE(tried, 3);
}

}  // namespace
}  // namespace capstan::tests
