// The whole model over a ring of ranks against one rank: loss terms bit for bit, gradients to rounding.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_model.h"

namespace capstan::tests {
namespace {

double relative_difference(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

/// nll of all tokens in sequence order (contiguous layout: ranks in order), for one sequence.
std::vector<double> gather_nll(const parallel::Ring& ring, const framework::Pass& pass) {
  kernels::Tensor all({ring.layout.length()}, kernels::DType::f64, kernels::Device::ref);
  const std::vector<std::int64_t> index = ring.layout.local_index(ring.comm.rank());
  for (std::size_t i = 0; i < index.size(); ++i) all.as<double>()[index[i]] = pass.nll.as<double>()[i];
  ring.comm.all_reduce(all);  // others add exact zeros
  return values_of(all);
}

class ModelOverRanks : public ::testing::TestWithParam<TinyCase> {};

TEST_P(ModelOverRanks, F64LossAndGradientsEqualOneRank) {
  TinyShape shape;
  shape.kind = GetParam().kind;
  shape.form = GetParam().form;
  for (const std::int64_t length : {1, 5, 37, 64}) {
    const std::vector<std::int64_t> documents =
        length == 37 ? std::vector<std::int64_t>{7, 3, 1} : std::vector<std::int64_t>{};
    const auto self = parallel::make_self_communicator();
    const parallel::Ring alone = tiny_ring(*self, length, shape.tile);
    const LossAndGradients expected =
        loss_and_gradients(*tiny_model(shape), alone, tiny_batch(alone.layout, 0, shape, 2, documents), shape.tile);
    for_rank_counts({1, 2, 3, 4, 8}, [&](parallel::Communicator& comm) {
      const parallel::Ring ring = tiny_ring(comm, length, shape.tile);
      const auto model = tiny_model(shape);
      for (const framework::Keep keep : {framework::Keep::ring, framework::Keep::inputs}) {
        const LossAndGradients got = loss_and_gradients(
            *model, ring, tiny_batch(ring.layout, comm.rank(), shape, 2, documents), shape.tile, keep);
        EXPECT_NEAR(got.loss, expected.loss, 1e-10 * std::abs(expected.loss));
        if (expected.loss > 0) {
          EXPECT_LE(relative_difference(got.gradients, expected.gradients), 1e-10) << "length " << length;
        }
      }
    });
  }
}

/// f32 on the fast kernels: rows never depend on which other rows are present, so each token's loss has the same bits on any ranks,
/// under every schedule that walks near → far.
TEST_P(ModelOverRanks, F32LossTermsAreBitEqual) {
  TinyShape shape;
  shape.kind = GetParam().kind;
  shape.form = GetParam().form;
  shape.device = kernels::Device::cpu;
  shape.type = kernels::DType::f32;
  shape.tile = 16;
  for (const std::int64_t length : {33, 150}) {
    const auto self = parallel::make_self_communicator();
    const parallel::Ring alone = tiny_ring(*self, length, shape.tile);
    const auto one = tiny_model(shape);
    const std::vector<double> expected = gather_nll(
        alone, one->forward(alone, tiny_batch(alone.layout, 0, shape, 1), shape.tile, framework::Keep::nothing));
    for_rank_counts({1, 2, 3, 4, 8}, [&](parallel::Communicator& comm) {
      const auto model = tiny_model(shape);
      for (const std::string schedule : {"contiguous", "ordered_pull", "allgather", "ulysses", "pass_q"}) {
        framework::GridConfig grid;
        grid.schedule = schedule;
        if (schedule == "ulysses") grid.heads = comm.size() % 2 == 0 ? 2 : 1;  // of two kv heads
        const parallel::Ring ring = model->make_ring(comm, length, shape.tile, grid);
        const framework::Pass pass =
            model->forward(ring, tiny_batch(ring.layout, comm.rank(), shape, 1), shape.tile, framework::Keep::nothing);
        EXPECT_EQ(gather_nll(ring, pass), expected) << schedule << " length " << length;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, ModelOverRanks, ::testing::ValuesIn(tiny_cases()),
                         [](const auto& each) { return each.param.text(); });

}  // namespace
}  // namespace capstan::tests
