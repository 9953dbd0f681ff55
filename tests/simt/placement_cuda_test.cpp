// What a rank that asks for a GPU is given or told, on an emulated machine.

#include <gtest/gtest.h>

#include "kernels/device_cuda.h"
#include "parallel/placement.h"
#include "tests/simt/device_calls.h"
#include "tests/simt/gpu_ranks.h"

namespace capstan::tests {
namespace {

constexpr int version = 13000, older = 12040;

class PlacementOnGpu : public OnGpu {
 protected:
  ~PlacementOnGpu() override { simt::set_devices(1, version); }

  static std::string told(int ranks) {
    try {
      parallel::run_on_threads(ranks,
                               [](parallel::Communicator& comm) { parallel::OnDevice(comm, kernels::Device::cuda); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      return error.what();
    }
    return "";
  }
};

TEST_F(PlacementOnGpu, WithoutAGpuEveryRankIsTold) {
  simt::set_devices(0, version);
  EXPECT_NE(told(3).find("no GPU is to be seen here"), std::string::npos);
}

TEST_F(PlacementOnGpu, AnOldDriverIsNamed) {
  simt::set_devices(1, older);
  const std::string text = told(2);
  EXPECT_NE(text.find("needs a driver for CUDA 13.0"), std::string::npos) << text;
  EXPECT_NE(text.find("for CUDA 12.4"), std::string::npos) << text;
  simt::set_devices(1, 0);
  EXPECT_NE(told(1).find("this machine has none"), std::string::npos);
}

TEST_F(PlacementOnGpu, ThreadsShareOne) {
  parallel::run_on_threads(3, [](parallel::Communicator& comm) {
    const parallel::OnDevice place(comm, kernels::Device::cuda);
    EXPECT_EQ(&place.world(), &comm);
    const std::string table = place.table();
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
    EXPECT_NE(table.find("2  0: SIMT emulator"), std::string::npos) << table;
  });
}

/// Processes get a GPU each, by their place on the host; where they see one only, it must be another one for each.
TEST_F(PlacementOnGpu, ProcessesGetOneEach) {
  simt::set_devices(4, version);
  parallel::run_on_threads(3, [](parallel::Communicator& comm) {
    AsProcesses processes(comm);
    const parallel::OnDevice place(processes, kernels::Device::cuda);
    EXPECT_EQ(place.world().backend(), "nccl");
    for (const char* line : {"0  0: SIMT emulator", "1  1: SIMT emulator", "2  2: SIMT emulator"})
      EXPECT_NE(place.table().find(line), std::string::npos) << place.table();
  });
  const auto refused = [](int ranks) {
    try {
      parallel::run_on_threads(ranks, [](parallel::Communicator& comm) {
        AsProcesses processes(comm);
        parallel::OnDevice(processes, kernels::Device::cuda);
      });
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_NE(refused(5).find("5 ranks on host"), std::string::npos);
  simt::set_devices(1, version);
  EXPECT_NE(refused(2).find("ranks 0 and 1"), std::string::npos);
}

TEST_F(PlacementOnGpu, GpusAreNumbered) {
  simt::set_devices(4, version);
  EXPECT_EQ(kernels::gpu_info(3).bus, "0000:04:00.0");
  EXPECT_THROW(kernels::require_device(4), Error);
}

}  // namespace
}  // namespace capstan::tests
