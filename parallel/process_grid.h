#pragma once
// The ranks as a grid: data × ring. A ring shares the sequences of one batch part; the ranks of one column, one from
// each ring, hold the same part of different sequences.
//
//   8 ranks, ring_size 4         ring_rank  0 1 2 3
//                     data_rank 0:          0 1 2 3    world rank = data_rank · ring_size + ring_rank:
//                     data_rank 1:          4 5 6 7    ring neighbours are world neighbours, mostly on one host

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/failure.h"  // host_name

namespace capstan::parallel {

struct ProcessGrid {
  Communicator& world;
  std::unique_ptr<Communicator> data;  ///< same ring_rank; rank in it = data_rank
  std::unique_ptr<Communicator> ring;  ///< same data_rank; rank in it = ring_rank
  int data_rank, ring_rank;
  int data_size, ring_size;
};

/// Called by all ranks. ring_size must divide the world's size, else Error(config).
ProcessGrid make_process_grid(Communicator& world, int ring_size);

/// The host of every rank.
std::vector<std::string> hosts_of_ranks(Communicator& world);

/// Threads that the calling rank should compute with (kernels/threads.h). wanted > 0: as many. 0: OMP_NUM_THREADS if it
/// is set, else the cores that the rank may use, shared out among the ranks that may use the same. Called by all ranks.
int threads_of_rank(Communicator& world, std::int64_t wanted);

/// For the start line: "rank 0-3 on alpha, 4-7 on beta".
std::string text_of_hosts(const std::vector<std::string>& hosts);

}  // namespace capstan::parallel
