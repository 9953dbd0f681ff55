#pragma once
// Which device a rank works with, and how ranks talk about what lies there. Rank i of a host takes GPU i of those that it sees; a
// launcher that shows each rank another GPU (CUDA_VISIBLE_DEVICES per rank) is as good. Ranks that are threads of one process
// share one GPU.

#include <memory>
#include <string>
#include <vector>

#include "kernels/device_queue.h"
#include "parallel/communicator.h"

namespace capstan::parallel {

/// A rank on its device, until the end of the scope; tensors on it must be gone by then.
class OnDevice {
 public:
  /// Called by all ranks of `world`, which must outlive it. `cpu` and `ref` need no place. Errors (config), on every rank the
  /// same: no GPU or too old a driver on some host, more ranks than GPUs there, two ranks with one GPU.
  OnDevice(Communicator& world, kernels::Device device);

  /// The ranks of `world`, for data of that device, too.
  Communicator& world() const { return nccl_ ? *nccl_ : world_; }
  /// One line per rank: host, rank, GPU; empty without one.
  const std::string& table() const { return table_; }

 private:
  Communicator& world_;
  std::unique_ptr<kernels::UseDevice> gpu_;
  std::unique_ptr<Communicator> nccl_;
  std::string table_;
};

/// What a rank has found: for the table, and for the check that no two share a GPU.
struct PlacedRank {
  std::string host;
  int number = 0;    ///< as the rank's process counts
  std::string name;  ///< "NVIDIA H200"
  std::string bus;   ///< on the host: "0000:19:00.0"
  double gib = 0;
};
/// Error (config): two ranks with one GPU.
void refuse_shared_gpus(const std::vector<PlacedRank>& ranks);
std::string placement_table(const std::vector<PlacedRank>& ranks);

}  // namespace capstan::parallel
