#include "parallel/process_grid.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace capstan::tests {
namespace {

using parallel::Communicator;
using parallel::ProcessGrid;

constexpr auto counts = {1, 2, 3, 4, 8};

TEST(ProcessGrid, RingRanksAreNeighbours) {
  for_rank_counts(counts, [](Communicator& world) {
    for (int ring_size = 1; ring_size <= world.size(); ++ring_size) {
      if (world.size() % ring_size != 0) continue;
      const ProcessGrid grid = make_process_grid(world, ring_size);
      EXPECT_EQ(&grid.world, &world);
      EXPECT_EQ(grid.ring_size, ring_size);
      EXPECT_EQ(grid.data_size, world.size() / ring_size);
      EXPECT_EQ(grid.data_rank * ring_size + grid.ring_rank, world.rank());
      EXPECT_EQ(grid.ring->rank(), grid.ring_rank);
      EXPECT_EQ(grid.ring->size(), grid.ring_size);
      EXPECT_EQ(grid.data->rank(), grid.data_rank);
      EXPECT_EQ(grid.data->size(), grid.data_size);
    }
  });
}

TEST(ProcessGrid, SumsOverRingsAndColumns) {
  for_rank_counts({4, 8}, [](Communicator& world) {
    const ProcessGrid grid = make_process_grid(world, 2);
    const std::int64_t in_ring = grid.ring->all_reduce(std::int64_t(world.rank()));
    EXPECT_EQ(in_ring, 4 * grid.data_rank + 1);  // 2d + (2d + 1)
    std::int64_t in_column = 0;
    for (int rank = grid.ring_rank; rank < world.size(); rank += 2) in_column += rank;
    EXPECT_EQ(grid.data->all_reduce(std::int64_t(world.rank())), in_column);
  });
}

TEST(ProcessGrid, RefusesRingsThatDoNotDivide) {
  for_rank_counts({8}, [](Communicator& world) {
    for (const int ring_size : {0, -1, 3, 16}) {
      try {
        make_process_grid(world, ring_size);
        ADD_FAILURE() << "a ring of " << ring_size << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::config);
        EXPECT_EQ(error.what(), fmt::format("a ring of {} ranks does not divide the 8 ranks of this run; allowed ring "
                                            "sizes: 1, 2, 4, 8",
                                            ring_size));
      }
    }
  });
}

TEST(ProcessGrid, ListsHosts) {
  for_rank_counts(counts, [](Communicator& world) {
    const std::vector<std::string> hosts = hosts_of_ranks(world);
    ASSERT_EQ(int(hosts.size()), world.size());
    EXPECT_EQ(hosts[std::size_t(world.rank())], parallel::host_name());
    EXPECT_FALSE(parallel::host_name().empty());
  });
  EXPECT_EQ(parallel::text_of_hosts({"a"}), "rank 0 on a");
  EXPECT_EQ(parallel::text_of_hosts({"a", "a", "b", "a", "a", "a"}), "rank 0-1 on a, 2 on b, 3-5 on a");
}

}  // namespace
}  // namespace capstan::tests
