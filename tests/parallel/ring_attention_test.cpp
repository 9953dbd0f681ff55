#include "parallel/ring_attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "tests/support/dense_attention.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using kernels::TermKind;
using kernels::View;
using parallel::Communicator;
using parallel::Ring;
using parallel::RingGradients;
using parallel::RingInputs;
using parallel::RingSaved;
using parallel::SequenceLayout;

constexpr std::int64_t batch = 2, heads = 4, groups = 2, depth = 8;

/// Two sequences: the first is one document, the second holds several.
using Problems = std::array<AttentionProblem, batch>;

std::shared_ptr<const Problems> make_problems(std::int64_t tokens, bool z, std::int64_t npos) {
  AttentionShape shape{tokens, heads, groups, depth, z, npos};
  const auto seed = std::uint64_t(100 * tokens);
  AttentionProblem first = random_attention(shape, seed);
  if (tokens > 12) shape.documents = {7, 3, 1, tokens / 2 - 5};
  return std::make_shared<Problems>(Problems{std::move(first), random_attention(shape, seed + 1)});
}

struct Case {
  std::int64_t tokens, tile;
  DType type;
  Device device;
  std::shared_ptr<const Problems> problems;

  bool cope() const { return bool(problems->front().table); }
  std::string text() const {
    return fmt::format("S {} tile {} z {} cope {} {} {}", tokens, tile, bool(problems->front().z), cope(),
                       name_of(type), name_of(device));
  }
  AttentionSettings settings() const { return {cope() ? TermKind::cope : TermKind::none, tile, true}; }
};

/// Rows [begin, end) of both sequences' tensors as one [B, T, …].
Tensor stacked(const Tensor& first, const Tensor& second, std::int64_t begin, std::int64_t end, DType type,
               Device device) {
  if (!first) return {};
  std::vector<std::int64_t> extents{batch, end - begin};
  for (int axis = 1; axis < first.shape().rank(); ++axis) extents.push_back(first.shape()[axis]);
  Tensor out(Shape(extents), type, device);
  for (std::int64_t b = 0; b < batch; ++b)
    out.view()[b].copy_from(converted((b == 0 ? first : second).view().rows(begin, end), type, device));
  return out;
}

/// What one rank holds of inputs, and what it computed.
struct Shard {
  std::int64_t begin, end;
  Tensor o, lse, horizon, horizon_carry;
  Tensor dq, dk, dv, dz, dtable;
};

Shard run_shard(Communicator& comm, const Case& c) {
  const Ring ring{comm, SequenceLayout::contiguous(c.tokens, comm.size(), c.tile),
                  make_schedule("auto", SequenceLayout::contiguous(c.tokens, comm.size(), c.tile))};
  const parallel::Chunk& chunk = ring.layout.chunks()[comm.rank()];
  const auto& [first, second] = *c.problems;
  const auto local = [&](const Tensor AttentionProblem::*x) {
    const auto& [a, b] = *c.problems;
    return stacked(a.*x, b.*x, chunk.begin, chunk.end, c.type, c.device);
  };
  const Tensor q = local(&AttentionProblem::q), k = local(&AttentionProblem::k), v = local(&AttentionProblem::v);
  const Tensor z = local(&AttentionProblem::z), table = local(&AttentionProblem::table),
               d_o = local(&AttentionProblem::d_o);
  const Tensor row_index = index_rows(0, c.tokens, c.device);
  const Tensor row_document[] = {document_rows(first.document, 0, c.tokens, c.device),
                                 document_rows(second.document, 0, c.tokens, c.device)};
  const Tensor index = stacked(row_index, row_index, chunk.begin, chunk.end, DType::i64, c.device);
  const Tensor document = stacked(row_document[0], row_document[1], chunk.begin, chunk.end, DType::i64, c.device);
  const RingInputs in{q, k, v, z, table, {index, index, document}};

  RingSaved saved = ring_attention_forward(ring, in, c.settings(), nullptr);
  Shard shard{chunk.begin,
              chunk.end,
              {},
              {},
              {},
              {},
              zeros_like(q),
              zeros_like(k),
              zeros_like(v),
              z ? zeros_like(z) : Tensor(),
              table ? zeros_like(table) : Tensor()};
  for (Tensor* x : {&shard.dq, &shard.dk, &shard.dv})  // what was there must not matter
    if (c.type == DType::f64 && x->view().elements() > 0) x->as<double>()[0] = 1e9;
  ring_attention_backward(ring, {shard.dq, shard.dk, shard.dv, shard.dz, shard.dtable}, in, saved, d_o, c.settings());
  shard.o = std::move(saved.o);
  shard.lse = std::move(saved.lse);
  shard.horizon = std::move(saved.horizon);
  shard.horizon_carry = std::move(saved.horizon_carry);
  return shard;
}

Shard run_alone(const Case& c) {
  const auto self = parallel::make_self_communicator();
  return run_shard(*self, c);
}

void expect_same_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, const char* name) {
  if (!(whole.*x)) return;
  for (std::int64_t b = 0; b < batch; ++b)
    EXPECT_TRUE(same_bits((whole.*x).view()[b].rows(part.begin, part.end), (part.*x).view()[b]))
        << name << " of sequence " << b;
}

void expect_close_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, double tolerance,
                       const char* name) {
  if (!(whole.*x) || part.begin == part.end) return;
  // Relative to the whole tensor: a shard by itself may hold only small numbers.
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::vector<double> all = values_of((whole.*x).view()[b]), got = values_of((part.*x).view()[b]);
    const std::size_t offset = std::size_t(part.begin) * (all.size() / std::size_t((whole.*x).shape()[1]));
    double difference = 0, norm = 0;
    for (double value : all) norm += value * value;
    for (std::size_t i = 0; i < got.size(); ++i) difference += (got[i] - all[offset + i]) * (got[i] - all[offset + i]);
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name << " of sequence " << b;
  }
}

void expect_same_output(const Shard& whole, const Shard& part) {
  expect_same_rows(whole, part, &Shard::o, "o");
  expect_same_rows(whole, part, &Shard::lse, "lse");
  expect_same_rows(whole, part, &Shard::horizon_carry, "horizon_carry");
}

void expect_close_gradients(const Shard& whole, const Shard& part, double tolerance) {
  expect_close_rows(whole, part, &Shard::dq, tolerance, "dq");
  expect_close_rows(whole, part, &Shard::dk, tolerance, "dk");
  expect_close_rows(whole, part, &Shard::dv, tolerance, "dv");
  expect_close_rows(whole, part, &Shard::dz, tolerance, "dz");
  expect_close_rows(whole, part, &Shard::dtable, tolerance, "dtable");
}

void expect_same_gradients(const Shard& a, const Shard& b) {
  for (const auto& [x, name] : {std::pair{&Shard::dq, "dq"},
                                {&Shard::dk, "dk"},
                                {&Shard::dv, "dv"},
                                {&Shard::dz, "dz"},
                                {&Shard::dtable, "dtable"}})
    EXPECT_TRUE(!(a.*x) || same_bits(a.*x, b.*x)) << name;
}

/// One rank against the dense oracle.
class Oracle {
 public:
  explicit Oracle(const Problems& problems) {
    for (const AttentionProblem& problem : problems) {
      outputs_.push_back(dense_attention(problem.inputs()));
      gradients_.push_back(dense_attention_backward(problem.inputs(), problem.d_o));
    }
  }

  void expect(const Shard& whole) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto look = [&](const Tensor& got, const Tensor& expected, const char* name) {
        if (!expected) return;
        EXPECT_LE(relative_error(got.view()[b], expected), 1e-10) << name << " of sequence " << b;
      };
      look(whole.o, outputs_[b].o, "o");
      look(whole.lse, outputs_[b].lse, "lse");
      look(whole.dq, gradients_[b].dq, "dq");
      look(whole.dk, gradients_[b].dk, "dk");
      look(whole.dv, gradients_[b].dv, "dv");
      look(whole.dz, gradients_[b].dz, "dz");
      look(whole.dtable, gradients_[b].dtable, "dtable");
    }
  }

 private:
  std::vector<DenseOutputs> outputs_;
  std::vector<DenseGradients> gradients_;
};

std::vector<Case> all_cases(std::int64_t npos, DType type, Device device) {
  std::vector<Case> cases;
  for (std::int64_t tokens : {1, 2, 7, 63, 64, 65, 127, 128, 129, 200, 257})
    for (bool z : {false, true}) {
      const auto problems = make_problems(tokens, z, npos);
      for (std::int64_t tile : {16, 64}) cases.push_back({tokens, tile, type, device, problems});
    }
  return cases;
}

void compare_rank_counts(std::int64_t npos, DType type, Device device, double tolerance) {
  const std::vector<Case> cases = all_cases(npos, type, device);
  std::vector<Shard> alone;
  for (const Case& c : cases) alone.push_back(run_alone(c));
  std::map<const Problems*, Oracle> oracles;
  for (std::size_t i = 0; type == DType::f64 && !under_mpi() && i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].text());
    const Problems& problems = *cases[i].problems;
    oracles.try_emplace(&problems, problems).first->second.expect(alone[i]);
  }
  if (testing::Test::HasFailure()) return;
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} rank {} of {}", cases[i].text(), comm.rank(), comm.size()));
      const Shard part = run_shard(comm, cases[i]);
      expect_same_output(alone[i], part);
      expect_close_gradients(alone[i], part, tolerance);
    }
  });
}

class RingAttentionWithTable : public testing::TestWithParam<std::int64_t> {};

TEST_P(RingAttentionWithTable, RefEqualsOneRankAndTheOracle) {
  compare_rank_counts(GetParam(), DType::f64, Device::ref, 1e-12);
}

TEST_P(RingAttentionWithTable, CpuEqualsOneRank) { compare_rank_counts(GetParam(), DType::f32, Device::cpu, 1e-5); }

// 0: no CoPE; with 9 positions rows saturate, with 160 none does.
INSTANTIATE_TEST_SUITE_P(Positions, RingAttentionWithTable, testing::Values(0, 9, 160),
                         testing::PrintToStringParamName());

TEST(RingAttention, TwoRunsHaveTheSameBits) {
  const auto without = make_problems(200, true, 0), with = make_problems(200, true, 9);
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (const auto& problems : {without, with}) {
      const Case c{200, 16, DType::f32, Device::cpu, problems};
      const Shard first = run_shard(comm, c), second = run_shard(comm, c);
      expect_same_gradients(first, second);
      for (const auto& [x, name] : {std::pair{&Shard::o, "o"}, {&Shard::lse, "lse"}, {&Shard::horizon, "horizon"}})
        EXPECT_TRUE(!(first.*x) || same_bits(first.*x, second.*x)) << name;
    }
  });
}

/// z as a function of the position, as in TAPE's first layer.
void make_z(const View& z, const View& position) {
  for (std::int64_t t = 0; t < z.dim(0); ++t)
    for (std::int64_t e = 0; e < groups * depth; ++e)
      z.as<float>()[t * groups * depth + e] = std::sin(0.1f * float(position.as<std::int64_t>()[t]) * float(e + 1));
}

TEST(RingAttention, MadeZEqualsTravellingZ) {
  constexpr std::int64_t tokens = 100, tile = 16;
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    const SequenceLayout layout = SequenceLayout::contiguous(tokens, comm.size(), tile);
    const Ring ring{comm, layout, make_schedule("auto", layout)};
    const std::int64_t begin = layout.chunks()[comm.rank()].begin, local = layout.local_tokens(comm.rank());
    const auto make = [&](std::int64_t rows, std::int64_t width, std::uint64_t seed) {
      return random_tensor({1, local, rows, width}, DType::f32, Device::cpu, seed + 10 * std::uint64_t(comm.rank()));
    };
    const Tensor q = make(heads, depth, 1), k = make(groups, depth, 2), v = make(groups, depth, 3);
    const Tensor d_o = make(heads, 2 * depth, 4);
    const Tensor row_index = index_rows(begin, begin + local, Device::cpu);
    const View index = row_index.view().reshape({1, local});
    const Tensor document = zeros_like(index), z({1, local, groups, depth}, DType::f32, Device::cpu);
    make_z(z.view()[0], index[0]);
    const AttentionSettings settings{TermKind::none, tile, true};
    const RingInputs travelling{q, k, v, z, {}, {index, index, document}};
    const RingInputs made{q, k, v, z, {}, {index, index, document}, make_z};
    const RingSaved first = ring_attention_forward(ring, travelling, settings, nullptr);
    const RingSaved second = ring_attention_forward(ring, made, settings, nullptr);
    EXPECT_TRUE(same_bits(first.o, second.o));
    EXPECT_TRUE(same_bits(first.lse, second.lse));
    const Tensor dz = zeros_like(z), gradients[] = {zeros_like(q), zeros_like(k), zeros_like(v)},
                 again[] = {zeros_like(q), zeros_like(k), zeros_like(v)};
    ring_attention_backward(ring, {gradients[0], gradients[1], gradients[2], dz, {}}, travelling, first, d_o, settings);
    ring_attention_backward(ring, {again[0], again[1], again[2], {}, {}}, made, second, d_o, settings);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(gradients[i], again[i])) << i;
  });
}

TEST(RingAttention, StatsCountEveryTileOnce) {
  constexpr std::int64_t tokens = 16 * 9, tile = 16;
  const Case c{tokens, tile, DType::f64, Device::ref, make_problems(tokens, false, 160)};
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    const SequenceLayout layout = SequenceLayout::contiguous(tokens, comm.size(), tile);
    const Ring ring{comm, layout, make_schedule("auto", layout)};
    const parallel::Chunk& chunk = layout.chunks()[comm.rank()];
    const AttentionProblem& p = c.problems->front();
    const auto local = [&](const Tensor& x) { return stacked(x, x, chunk.begin, chunk.end, c.type, c.device); };
    const Tensor q = local(p.q), k = local(p.k), v = local(p.v), table = local(p.table);
    const Tensor row_index = index_rows(0, tokens, c.device);
    const Tensor index = stacked(row_index, row_index, chunk.begin, chunk.end, DType::i64, c.device),
                 document = zeros_like(index);
    kernels::AttentionStats stats;
    ring_attention_forward(ring, {q, k, v, {}, table, {index, index, document}}, c.settings(), &stats);
    EXPECT_EQ(comm.all_reduce(stats.tiles), batch * heads * 9 * 10 / 2);
    EXPECT_EQ(comm.all_reduce(stats.gates), batch * heads * tokens * (tokens + 1) / 2);
    EXPECT_EQ(comm.all_reduce(stats.saturated_tiles), 0);
  });
}

TEST(RingAttention, WrongShardIsRefused) {
  const auto self = parallel::make_self_communicator();
  const SequenceLayout layout = SequenceLayout::contiguous(32, 1, 16);
  const Ring ring{*self, layout, make_schedule("auto", layout)};
  const Tensor q({1, 16, 1, 8}, DType::f64, Device::ref), index({1, 16}, DType::i64, Device::ref);
  EXPECT_THROW(
      ring_attention_forward(ring, {q, q, q, {}, {}, {index, index, index}}, {TermKind::none, 16, true}, nullptr),
      Error);
}

TEST(RingAttention, ChunkBytes) {
  const parallel::ChunkBytes bytes = parallel::chunk_bytes(2, 100, 4, 64, true, DType::f32);
  EXPECT_EQ(bytes.gradients, 2 * 100 * 4 * 64 * 3 * 4);
  EXPECT_EQ(bytes.keys, bytes.gradients + 2 * 100 * 3 * 8);
}

}  // namespace
}  // namespace capstan::tests
