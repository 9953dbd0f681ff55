#pragma once
// Reasons to stop a run early with a saved checkpoint: SIGTERM, SIGUSR1, SIGUSR2 or SIGINT on any rank, a file named `stop` in the run
// folder, or --max-time. The decision is taken by all ranks together, between two steps.

#include <string>

#include "parallel/communicator.h"

namespace capstan::framework {

class StopRequest {
 public:
  /// Installs the signal handlers of this process. max_seconds 0: no limit. The first of those that exist at a time forgets
  /// earlier signals; to the others those that come from then on count.
  StopRequest(std::string run_folder, double max_seconds);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;

  /// Called by all ranks after each step; the same answer on all: why to stop, or empty.
  std::string reason(parallel::Communicator& world);

 private:
  std::string stop_file_;
  double max_seconds_, started_;
};

/// Seconds of the monotonic clock.
double monotonic_seconds();

}  // namespace capstan::framework
