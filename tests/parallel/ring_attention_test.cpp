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
  AttentionSettings settings() const {
    AttentionSettings settings;
    settings.tile = tile;
    if (cope()) settings.gates[0].gates = kernels::Gates::tokens;
    return settings;
  }
};

/// The rows `index` of both sequences' tensors as one [B, T, …].
Tensor stacked(const Tensor& first, const Tensor& second, const std::vector<std::int64_t>& index, DType type,
               Device device) {
  if (!first) return {};
  std::vector<std::int64_t> extents{batch, std::ssize(index)};
  for (int axis = 1; axis < first.shape().rank(); ++axis) extents.push_back(first.shape()[axis]);
  Tensor out(Shape(extents), type, device);
  for (std::int64_t b = 0; b < batch; ++b) {
    const Tensor whole = converted(b == 0 ? first : second, type, device);
    for (std::int64_t t = 0; t < std::ssize(index); ++t)
      out.view()[b].rows(t, t + 1).copy_from(whole.view().rows(index[std::size_t(t)], index[std::size_t(t)] + 1));
  }
  return out;
}

/// What one rank holds of inputs, and what it computed.
struct Shard {
  std::vector<std::int64_t> index;
  Tensor o, lse, horizon, carry;
  Tensor dq, dk, dv, dz, dtable;
};

Ring make_ring(Communicator& comm, std::int64_t tokens, std::int64_t tile, const std::string& schedule,
               int head_ranks = 0) {
  parallel::RingPlan plan = parallel::plan_ring({schedule, comm.size(), head_ranks, int(groups), tokens, tile});
  return {comm, std::move(plan.layout), std::move(plan.schedule)};
}

Shard run_shard(const Ring& ring, const Case& c) {
  const auto& [first, second] = *c.problems;
  const std::vector<std::int64_t> own = ring.layout.local_index(ring.comm.rank());
  const auto local = [&](const Tensor AttentionProblem::*x) {
    const auto& [a, b] = *c.problems;
    return stacked(a.*x, b.*x, own, c.type, c.device);
  };
  const Tensor q = local(&AttentionProblem::q), k = local(&AttentionProblem::k), v = local(&AttentionProblem::v);
  const Tensor z = local(&AttentionProblem::z), table = local(&AttentionProblem::table),
               d_o = local(&AttentionProblem::d_o);
  const Tensor row_index = index_rows(0, c.tokens, c.device);
  const Tensor row_document[] = {document_rows(first.document, 0, c.tokens, c.device),
                                 document_rows(second.document, 0, c.tokens, c.device)};
  const Tensor index = stacked(row_index, row_index, own, DType::i64, c.device);
  const Tensor document = stacked(row_document[0], row_document[1], own, DType::i64, c.device);
  RingInputs in;
  in.q = q;
  in.k = k;
  in.v = v;
  if (z) in.z = z;
  if (table) in.terms.table[0] = table;
  in.rows = {index, index, document};

  RingSaved saved = ring_attention_forward(ring, in, c.settings(), nullptr);
  Shard shard{own,
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
  RingGradients out;
  out.dq = shard.dq;
  out.dk = shard.dk;
  out.dv = shard.dv;
  if (z) out.dz = shard.dz;
  if (table) out.terms.table[0] = shard.dtable;
  ring_attention_backward(ring, out, in, saved, d_o, c.settings());
  shard.o = std::move(saved.o);
  shard.lse = std::move(saved.lse);
  shard.horizon = std::move(saved.horizon[0]);
  shard.carry = std::move(saved.carry[0]);
  return shard;
}

Shard run_alone(const Case& c) {
  const auto self = parallel::make_self_communicator();
  return run_shard(make_ring(*self, c.tokens, c.tile, "contiguous"), c);
}

/// The rows of `part` out of the whole.
Tensor rows_of(const Shard& whole, const Shard& part, const Tensor Shard::*x, std::int64_t b) {
  Tensor out = zeros_like((part.*x).view()[b]);
  for (std::int64_t t = 0; t < std::ssize(part.index); ++t) {
    const std::int64_t at = part.index[std::size_t(t)];
    out.view().rows(t, t + 1).copy_from((whole.*x).view()[b].rows(at, at + 1));
  }
  return out;
}

void expect_same_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, const char* name) {
  if (!(whole.*x)) return;
  for (std::int64_t b = 0; b < batch; ++b)
    EXPECT_TRUE(same_bits(rows_of(whole, part, x, b), (part.*x).view()[b])) << name << " of sequence " << b;
}

void expect_close_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, double tolerance,
                       const char* name) {
  if (!(whole.*x) || part.index.empty()) return;
  // Relative to the whole tensor: a shard by itself may hold only small numbers.
  for (std::int64_t b = 0; b < batch; ++b) {
    double difference = 0, norm = 0;
    for (double value : values_of((whole.*x).view()[b])) norm += value * value;
    const std::vector<double> got = values_of((part.*x).view()[b]), expected = values_of(rows_of(whole, part, x, b));
    for (std::size_t i = 0; i < got.size(); ++i) difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name << " of sequence " << b;
  }
}

void expect_same_output(const Shard& whole, const Shard& part) {
  expect_same_rows(whole, part, &Shard::o, "o");
  expect_same_rows(whole, part, &Shard::lse, "lse");
  expect_same_rows(whole, part, &Shard::carry, "carry");
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

const std::vector<std::int64_t> some_lengths{1, 7, 64, 65, 129, 200}, other_lengths{2, 63, 127, 128, 257};

std::vector<Case> cases_of(const std::vector<std::int64_t>& lengths, std::int64_t npos, DType type, Device device) {
  std::vector<Case> cases;
  for (std::int64_t tokens : lengths)
    for (bool z : {false, true}) {
      const auto problems = make_problems(tokens, z, npos);
      for (std::int64_t tile : {16, 64}) cases.push_back({tokens, tile, type, device, problems});
    }
  return cases;
}

/// Schedules that this number of ranks can play with two kv heads, and how many ranks split the heads.
std::vector<std::pair<std::string, int>> schedules_of(int ranks, bool ordered) {
  std::vector<std::pair<std::string, int>> out{{"contiguous", 0}, {"ordered_pull", 0}, {"allgather", 0}, {"pass_q", 0}};
  if (!ordered) out.push_back({"zigzag", 0});
  if (ranks == 2) out.push_back({"ulysses", 0});
  if (ranks == 4 || ranks == 8) out.push_back({"ulysses", 2});
  return out;
}

/// zigzag adds in another order: everything else has the bits of one rank.
void compare_rank_counts(const std::vector<std::int64_t>& lengths, std::int64_t npos, DType type, Device device,
                         double tolerance) {
  const std::vector<Case> cases = cases_of(lengths, npos, type, device);
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
    for (std::size_t i = 0; i < cases.size(); ++i)
      for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), npos > 0)) {
        // Every length under the default, some under the others.
        if (schedule != "ordered_pull" && cases[i].tokens != 65 && cases[i].tokens != 200) continue;
        SCOPED_TRACE(fmt::format("{} {} rank {} of {}", schedule, cases[i].text(), comm.rank(), comm.size()));
        const Ring ring = make_ring(comm, cases[i].tokens, cases[i].tile, schedule, head_ranks);
        const Shard part = run_shard(ring, cases[i]);
        if (schedule == "zigzag") {
          expect_close_rows(alone[i], part, &Shard::o, tolerance, "o");
          expect_close_rows(alone[i], part, &Shard::lse, tolerance, "lse");
        } else {
          expect_same_output(alone[i], part);
        }
        expect_close_gradients(alone[i], part, tolerance);
      }
  });
}

class RingAttentionWithTable : public testing::TestWithParam<std::int64_t> {};

TEST_P(RingAttentionWithTable, RefEqualsOneRankAndTheOracle) {
  compare_rank_counts(some_lengths, GetParam(), DType::f64, Device::ref, 1e-12);
}

TEST_P(RingAttentionWithTable, CpuEqualsOneRank) {
  compare_rank_counts(some_lengths, GetParam(), DType::f32, Device::cpu, 1e-5);
}

// With 9 positions rows saturate, with 160 none does; 0: no CoPE.
INSTANTIATE_TEST_SUITE_P(Positions, RingAttentionWithTable, testing::Values(9), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(CoveringPositions, RingAttentionWithTable, testing::Values(0, 160),
                         testing::PrintToStringParamName());

TEST(RingAttentionCovering, OtherLengths) {
  for (const std::int64_t npos : {0, 9, 160}) {
    compare_rank_counts(other_lengths, npos, DType::f64, Device::ref, 1e-12);
    compare_rank_counts(other_lengths, npos, DType::f32, Device::cpu, 1e-5);
  }
}

TEST(RingAttention, TwoRunsHaveTheSameBits) {
  const auto without = make_problems(200, true, 0), with = make_problems(200, true, 9);
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (const auto& problems : {without, with}) {
      const Case c{200, 16, DType::f32, Device::cpu, problems};
      const Ring ring = make_ring(comm, 200, 16, "auto");
      const Shard first = run_shard(ring, c), second = run_shard(ring, c);
      expect_same_gradients(first, second);
      for (const auto& [x, name] : {std::pair{&Shard::o, "o"}, {&Shard::lse, "lse"}, {&Shard::horizon, "horizon"}})
        EXPECT_TRUE(!(first.*x) || same_bits(first.*x, second.*x)) << name;
    }
  });
}

/// z as a function of the position, as in TAPE's first layer.
void make_z(const View& z, const View& position) {
  for (std::int64_t t = 0; t < z.dim(0); ++t)
    for (std::int64_t e = 0; e < z.dim(1) * depth; ++e)  // the same for every head
      z.as<float>()[t * z.dim(1) * depth + e] =
          std::sin(0.1f * float(position.as<std::int64_t>()[t]) * float(e % depth + 1));
}

TEST(RingAttention, MadeZEqualsTravellingZ) {
  constexpr std::int64_t tokens = 100, tile = 16;
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), false)) {
      SCOPED_TRACE(schedule);
      const Ring ring = make_ring(comm, tokens, tile, schedule, head_ranks);
      const std::vector<std::int64_t> own = ring.layout.local_index(comm.rank());
      const std::int64_t local = std::ssize(own);
      const auto make = [&](std::int64_t rows, std::int64_t width, std::uint64_t seed) {
        return random_tensor({1, local, rows, width}, DType::f32, Device::cpu, seed + 10 * std::uint64_t(comm.rank()));
      };
      const Tensor q = make(heads, depth, 1), k = make(groups, depth, 2), v = make(groups, depth, 3);
      const Tensor d_o = make(heads, 2 * depth, 4);
      const Tensor index({1, local}, DType::i64, Device::cpu), document = zeros_like(index),
                                                               z({1, local, groups, depth}, DType::f32, Device::cpu);
      std::copy(own.begin(), own.end(), index.as<std::int64_t>());
      make_z(z.view()[0], index.view()[0]);
      AttentionSettings settings;
      settings.tile = tile;
      RingInputs travelling;
      travelling.q = q;
      travelling.k = k;
      travelling.v = v;
      travelling.z = z;
      travelling.rows = {index, index, document};
      RingInputs made = travelling;
      made.make_z = make_z;
      const RingSaved first = ring_attention_forward(ring, travelling, settings, nullptr);
      const RingSaved second = ring_attention_forward(ring, made, settings, nullptr);
      EXPECT_TRUE(same_bits(first.o, second.o));
      EXPECT_TRUE(same_bits(first.lse, second.lse));
      const Tensor dz = zeros_like(z), gradients[] = {zeros_like(q), zeros_like(k), zeros_like(v)},
                   again[] = {zeros_like(q), zeros_like(k), zeros_like(v)};
      ring_attention_backward(ring, {gradients[0], gradients[1], gradients[2], dz, {}, {}}, travelling, first, d_o,
                              settings);
      ring_attention_backward(ring, {again[0], again[1], again[2], {}, {}, {}}, made, second, d_o, settings);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(gradients[i], again[i])) << i;
    }
  });
}

TEST(RingAttention, StatsCountEveryTileOnce) {
  constexpr std::int64_t tokens = 16 * 9, tile = 16;
  const Case c{tokens, tile, DType::f64, Device::ref, make_problems(tokens, false, 160)};
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), true)) {
      const Ring ring = make_ring(comm, tokens, tile, schedule, head_ranks);
      const std::vector<std::int64_t> own = ring.layout.local_index(comm.rank());
      const AttentionProblem& p = c.problems->front();
      const auto local = [&](const Tensor& x) { return stacked(x, x, own, c.type, c.device); };
      const Tensor q = local(p.q), k = local(p.k), v = local(p.v), table = local(p.table);
      const Tensor row_index = index_rows(0, tokens, c.device);
      const Tensor index = stacked(row_index, row_index, own, DType::i64, c.device), document = zeros_like(index);
      RingInputs in;
      in.q = q;
      in.k = k;
      in.v = v;
      in.terms.table[0] = table;
      in.rows = {index, index, document};
      kernels::AttentionStats stats;
      ring_attention_forward(ring, in, c.settings(), &stats);
      EXPECT_EQ(comm.all_reduce(stats.tiles), batch * heads * 9 * 10 / 2) << schedule;
      EXPECT_EQ(comm.all_reduce(stats.gates), batch * heads * tokens * (tokens + 1) / 2) << schedule;
      EXPECT_EQ(comm.all_reduce(stats.saturated_tiles), 0) << schedule;
    }
  });
}

TEST(RingAttention, WrongShardIsRefused) {
  const auto self = parallel::make_self_communicator();
  const Ring ring = make_ring(*self, 32, 16, "contiguous");
  const Tensor q({1, 16, 2, 8}, DType::f64, Device::ref), index({1, 16}, DType::i64, Device::ref);
  RingInputs in;
  in.q = in.k = in.v = q;
  in.rows = {index, index, index};
  EXPECT_THROW(ring_attention_forward(ring, in, {}, nullptr), Error);
}

/// Counts what is sent.
class CountingCommunicator : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string backend() const override { return inner_.backend(); }
  std::unique_ptr<parallel::Pending> exchange(std::span<const parallel::Message> sends,
                                              std::span<const parallel::Message> receives) override {
    for (const parallel::Message& message : sends) bytes += message.data.bytes();
    return inner_.exchange(sends, receives);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  std::unique_ptr<Communicator> split_by_host() override { return inner_.split_by_host(); }
  [[noreturn]] void abort(ExitCode code, const std::string& reason) override {
    inner_.abort(code, reason);
    std::abort();
  }
  std::int64_t bytes = 0;

 private:
  Communicator& inner_;
};

/// What `plan` says a rank sends is what it sends.
TEST(RingAttention, BytesSentAreAsPlanned) {
  for_rank_counts({1, 2, 3, 4, 8}, [&](Communicator& comm) {
    for (std::int64_t tokens : {33, 130})
      for (bool cope : {false, true})
        for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), cope)) {
          SCOPED_TRACE(fmt::format("{} S {} cope {}", schedule, tokens, cope));
          const Case c{tokens, 4, DType::f32, Device::cpu, make_problems(tokens, true, cope ? 9 : 0)};
          CountingCommunicator counting(comm);
          const Ring ring = make_ring(counting, tokens, 4, schedule, head_ranks);
          run_shard(ring, c);
          const auto shape = [&](std::int64_t h, std::int64_t width) {
            return View(nullptr, DType::f32, Device::cpu, {batch, ring.layout.local_tokens(comm.rank()), h, width});
          };
          RingInputs in;
          in.q = shape(heads, depth);
          in.k = in.v = in.z = shape(groups, depth);
          if (cope) in.terms.table[0] = shape(heads, 9);
          const View row(nullptr, DType::i64, Device::cpu, {batch, ring.layout.local_tokens(comm.rank())});
          in.rows = {row, row, row};
          const parallel::RingBytes planned = bytes_sent(ring.layout, ring.schedule, comm.rank(), in, c.settings());
          EXPECT_EQ(counting.bytes, planned.forward + planned.backward);
        }
  });
}

/// Every length up to some beyond 8 W, at every tile: the right answer, none refused.
TEST(RingAttentionCovering, EveryLength) {
  for (std::int64_t tile : {1, 4, 64})
    for (bool cope : {false, true}) {
      std::vector<Case> cases;
      std::vector<Shard> alone;
      for (std::int64_t tokens = 1; tokens <= 8 * 8 + 3; ++tokens) {
        cases.push_back({tokens, tile, DType::f64, Device::ref, make_problems(tokens, true, cope ? 9 : 0)});
        alone.push_back(run_alone(cases.back()));
      }
      for_rank_counts({2, 3, 5, 8}, [&](Communicator& comm) {
        for (std::size_t i = 0; i < cases.size() && cases[i].tokens <= 8 * comm.size() + 3; ++i)
          for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), cope)) {
            SCOPED_TRACE(fmt::format("{} {} ranks {}", schedule, cases[i].text(), comm.size()));
            const Shard part = run_shard(make_ring(comm, cases[i].tokens, tile, schedule, head_ranks), cases[i]);
            expect_close_rows(alone[i], part, &Shard::o, 1e-12, "o");
            expect_close_gradients(alone[i], part, 1e-12);
          }
      });
    }
}

}  // namespace
}  // namespace capstan::tests
