#include "parallel/ring_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/parallel/ring_runs.h"
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

constexpr std::int64_t batch = ring_runs::batch, heads = ring_runs::heads, groups = ring_runs::groups,
                       depth = ring_runs::depth;

const std::vector<std::int64_t> some_lengths{1, 7, 64, 65, 129, 200}, other_lengths{2, 63, 127, 128, 257};

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
        compare_with_one_rank(comm, cases[i], alone[i], schedule, head_ranks, tolerance);
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
