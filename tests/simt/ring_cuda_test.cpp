// Models on rings whose messages go from one emulated GPU to another. They compute on the host, exactly: what is tried is that the
// messages of every schedule, of the collectives and of encodings' own exchanges keep the rules of a GPU's (communicator.h).

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/simt/device_array.h"
#include "tests/simt/gpu_ranks.h"
#include "tests/simt/through_gpu.h"
#include "tests/support/conformance.h"

namespace capstan::tests {
namespace {

using parallel::Communicator;

/// The first of the covering cells for every schedule and number of ranks.
std::vector<Cell> a_cell_of_every_ring() {
  std::vector<Cell> cells;
  std::set<std::pair<int, int>> rings;
  for (const Cell& cell : covering_cells({0}))
    if (rings.emplace(cell.schedule, cell.ranks).second) cells.push_back(cell);
  return cells;
}

class SimtRing : public testing::TestWithParam<GpuBackend> {};

TEST_P(SimtRing, AgreesWithTheDenseOracle) {
  const std::vector<Cell> cells = a_cell_of_every_ring();
  Conformance conformance(61, 70);
  for (const Cell& cell : cells) conformance.prepare(cell);
  std::size_t ran = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const simt::Session session(all_orders()[std::size_t(ranks) % all_orders().size()]);
    for_gpu_rank_counts(GetParam(), {ranks}, [&](Communicator& gpu) {
      const auto comm = through_gpu(gpu);
      for (const Cell& cell : cells) {
        if (cell.ranks != ranks) continue;
        const Conformance::Worst worst = conformance.run(*comm, cell);
        EXPECT_LE(worst.error, worst.bound) << cell.text() << ": " << worst.name;
        if (gpu.rank() == 0) ++ran;
      }
    });
  }
  EXPECT_EQ(ran, cells.size());
  EXPECT_GE(ran, schedule_cases().size() * 3);
}

TEST_P(SimtRing, Reduces) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    for_gpu_rank_counts(GetParam(), {2, 3, 8}, [](Communicator& gpu) {
      const auto comm = through_gpu(gpu);
      for (const std::size_t length : {1, 20001}) {  // one round of messages, and two
        const int sum = comm->size() * (comm->size() + 1) / 2, below = comm->rank() * (comm->rank() + 1) / 2;
        std::vector<double> all(length, comm->rank() + 1), scanned = all;
        const auto view = [](std::vector<double>& x) {
          return kernels::View(x.data(), kernels::DType::f64, kernels::Device::ref, {std::int64_t(x.size())});
        };
        comm->all_reduce(view(all));
        comm->exclusive_scan(view(scanned));
        EXPECT_EQ(all, std::vector<double>(length, sum));
        EXPECT_EQ(scanned, std::vector<double>(length, below));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(On, SimtRing, testing::Values(GpuBackend::threads, GpuBackend::nccl),
                         [](const auto& given) { return name_of(given.param); });

}  // namespace
}  // namespace capstan::tests
