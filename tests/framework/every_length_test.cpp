// Every length from one token to some beyond eight per rank, at tiles of 1, 4 and 64: the whole model over a ring gives what one
// rank gives. None is refused, and ranks past the end join in.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_model.h"

namespace capstan::tests {
namespace {

struct Case {
  std::string kind, schedule;
};

class EveryLengthCovering : public testing::TestWithParam<Case> {};

TEST_P(EveryLengthCovering, EqualsOneRank) {
  constexpr int ranks = 4;
  framework::GridConfig grid;
  grid.schedule = GetParam().schedule;
  for (const std::int64_t tile : {1, 4, 64}) {
    TinyShape shape;
    shape.kind = GetParam().kind;
    shape.tile = tile;
    if (tile == 1) shape.position.block_size = 1;  // chunk edges at every token
    std::vector<LossAndGradients> expected;
    for (std::int64_t length = 1; length <= 8 * ranks + 3; ++length) {
      const auto self = parallel::make_self_communicator();
      const auto model = tiny_model(shape);
      const parallel::Ring alone = model->make_ring(*self, length, tile);
      expected.push_back(loss_and_gradients(*model, alone, tiny_batch(alone.layout, 0, shape, 1, {3, 5}), tile));
    }
    parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
      const auto model = tiny_model(shape);
      for (std::int64_t length = 1; length <= std::ssize(expected); ++length) {
        const parallel::Ring ring = model->make_ring(comm, length, tile, grid);
        const LossAndGradients got =
            loss_and_gradients(*model, ring, tiny_batch(ring.layout, comm.rank(), shape, 1, {3, 5}), tile);
        const LossAndGradients& one = expected[std::size_t(length - 1)];
        ASSERT_NEAR(got.loss, one.loss, 1e-12 * std::abs(one.loss)) << "length " << length << " tile " << tile;
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < one.gradients.size(); ++i) {
          difference += (got.gradients[i] - one.gradients[i]) * (got.gradients[i] - one.gradients[i]);
          norm += one.gradients[i] * one.gradients[i];
        }
        ASSERT_LE(std::sqrt(difference), 1e-12 * std::sqrt(norm)) << "length " << length << " tile " << tile;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, EveryLengthCovering,
                         testing::Values(Case{"rope+hierarchical_cope", "ordered_pull"},
                                         Case{"rope+hierarchical_cope", "pass_q"}, Case{"forget", "zigzag"},
                                         Case{"forget", "allgather"}, Case{"tape", "ordered_pull"}),
                         [](const auto& test) { return name_of_kind(test.param.kind + "+" + test.param.schedule); });

}  // namespace
}  // namespace capstan::tests
