#include "parallel/placement.h"

#include <gtest/gtest.h>

namespace capstan::tests {
namespace {

using parallel::PlacedRank;

const std::vector<PlacedRank> two_hosts{{"alpha", 0, "NVIDIA H200", "0000:19:00.0", 139.8},
                                        {"alpha", 1, "NVIDIA H200", "0000:3b:00.0", 139.8},
                                        {"beta-7", 0, "NVIDIA H200", "0000:19:00.0", 139.8}};

TEST(Placement, TableNamesHostRankAndGpu) {
  EXPECT_EQ(placement_table(two_hosts),
            "host    rank  GPU\n"
            "alpha      0  0: NVIDIA H200, 140 GiB, 0000:19:00.0\n"
            "alpha      1  1: NVIDIA H200, 140 GiB, 0000:3b:00.0\n"
            "beta-7     2  0: NVIDIA H200, 140 GiB, 0000:19:00.0\n");
}

TEST(Placement, TwoRanksOnOneGpuAreRefused) {
  parallel::refuse_shared_gpus(two_hosts);  // the same bus on two hosts is two GPUs
  std::vector<PlacedRank> ranks = two_hosts;
  ranks[1].bus = ranks[0].bus;
  try {
    parallel::refuse_shared_gpus(ranks);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_STREQ(
        error.what(),
        "ranks 0 and 1 on host alpha have the same GPU (NVIDIA H200, 0000:19:00.0): start as many ranks there as it "
        "has GPUs, or show each rank another one (CUDA_VISIBLE_DEVICES)");
  }
}

TEST(Placement, HostDevicesNeedNoPlace) {
  const auto alone = parallel::make_self_communicator();
  for (const kernels::Device device : {kernels::Device::ref, kernels::Device::cpu}) {
    const parallel::OnDevice place(*alone, device);
    EXPECT_EQ(&place.world(), alone.get());
    EXPECT_EQ(place.table(), "");
  }
}

}  // namespace
}  // namespace capstan::tests
