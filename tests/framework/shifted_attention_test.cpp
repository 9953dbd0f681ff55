#include "framework/shifted_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/framework/runs.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

constexpr std::int64_t heads = 8, kv_heads = 4, depth = 4;

/// Softmax attention of one sequence, row by row, with LongLoRA's mask written out: head h sees j <= i where both lie in one group,
/// the groups of the second half of the heads begin half a group earlier.
std::vector<double> dense(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                          const std::vector<std::int64_t>& document, std::int64_t tokens, std::int64_t groups) {
  const std::int64_t group = (tokens + groups - 1) / groups;
  std::vector<double> o(q.size());
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t shift = h < heads / 2 ? 0 : group / 2, g = h / (heads / kv_heads);
    for (std::int64_t i = 0; i < tokens; ++i) {
      std::vector<double> weight(std::size_t(i + 1), 0.0);
      double sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        if ((i + shift) / group != (j + shift) / group || document[i] != document[j]) continue;
        double score = 0;
        for (std::int64_t d = 0; d < depth; ++d)
          score += q[(i * heads + h) * depth + d] * k[(j * kv_heads + g) * depth + d];
        sum += weight[std::size_t(j)] = std::exp(score / std::sqrt(double(depth)));
      }
      for (std::int64_t j = 0; j <= i; ++j)
        for (std::int64_t d = 0; d < depth; ++d)
          o[(i * heads + h) * depth + d] += weight[std::size_t(j)] / sum * v[(j * kv_heads + g) * depth + d];
    }
  }
  return o;
}

/// Rows `index` of a whole [tokens, …] as [1, n, heads, D].
Tensor local_rows(const Tensor& whole, const std::vector<std::int64_t>& index, std::int64_t of_heads) {
  Tensor out({1, std::int64_t(index.size()), of_heads, depth}, DType::f64, Device::ref);
  for (std::size_t n = 0; n < index.size(); ++n) out.view()[0][std::int64_t(n)].copy_from(whole.view()[index[n]]);
  return out;
}

TEST(ShiftedAttention, MasksAsWrittenUnderEverySchedule) {
  for_rank_counts({1, 2, 3, 4}, [](parallel::Communicator& comm) {
    for (const std::int64_t tokens : {37, 64})
      for (const std::int64_t groups : {1, 2, 4, 5})
        for (const framework::GridConfig& grid : ordered_grids(comm.size())) {
          SCOPED_TRACE(fmt::format("{} tokens, {} groups, {}", tokens, groups, grid.schedule));
          const Tensor q = random_tensor({tokens, heads, depth}, DType::f64, Device::ref, 1),
                       k = random_tensor({tokens, kv_heads, depth}, DType::f64, Device::ref, 2),
                       v = random_tensor({tokens, kv_heads, depth}, DType::f64, Device::ref, 3);
          std::vector<std::int64_t> document;
          for (std::int64_t t = 0; t < tokens; ++t) document.push_back(t < 11 ? 0 : 1);
          const std::vector<double> expected =
              dense(values_of(q), values_of(k), values_of(v), document, tokens, groups);

          parallel::RingPlan plan =
              parallel::plan_ring({grid.schedule, comm.size(), int(grid.heads), int(kv_heads) / 2, tokens, 4});
          const parallel::Ring ring{comm, std::move(plan.layout), std::move(plan.schedule)};
          const std::vector<std::int64_t> index = ring.layout.local_index(comm.rank());
          const kernels::Shape shape{1, std::int64_t(index.size())};
          const Tensor at(shape, DType::i64, Device::ref), ids(shape, DType::i64, Device::ref);
          for (std::size_t n = 0; n < index.size(); ++n) {
            at.as<std::int64_t>()[n] = index[n];
            ids.as<std::int64_t>()[n] = document[std::size_t(index[n])];
          }
          const Tensor own_q = local_rows(q, index, heads), own_k = local_rows(k, index, kv_heads),
                       own_v = local_rows(v, index, kv_heads);
          parallel::RingInputs in;
          in.q = own_q;
          in.k = own_k;
          in.v = own_v;
          in.rows = {at, at, ids};
          kernels::AttentionSettings settings;
          settings.tile = 4;
          const auto segments = framework::shifted_segments(in.rows, tokens, groups);
          const auto saved = framework::shifted_attention_forward(ring, segments, in, settings, nullptr);
          const std::vector<double> got = values_of(saved.o);
          for (std::size_t n = 0; n < index.size(); ++n)
            for (std::int64_t c = 0; c < heads * depth; ++c)
              ASSERT_NEAR(got[n * heads * depth + c], expected[index[n] * heads * depth + c], 1e-12);
        }
  });
}

/// Gradients are the same on any ranks.
TEST(ShiftedAttention, GradientsDoNotDependOnTheRanks) {
  ModelRun run;
  run.length = 45;
  run.documents = {20};
  run.set_batch = [](framework::Batch& batch) { batch.shifted_groups = 4; };
  const ModelResult alone = run_model(1, run);
  for (const int ranks : {2, 4}) {
    const NamedDifference worst = worst_difference(run_model(ranks, run).gradients, alone.gradients);
    EXPECT_LE(worst.difference, 1e-10) << worst.name;
  }
}

}  // namespace
}  // namespace capstan::tests
