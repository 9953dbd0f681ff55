#pragma once
// metrics.jsonl, one flushed line per step, and the progress line of a terminal. Rank 0 only. A resumed run cuts the lines of steps
// that it will do again.

#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "framework/block.h"

namespace capstan::framework {

struct StepMetrics {
  std::int64_t step = 0;  ///< 1-based: after this many updates
  double loss = 0;        ///< mean NLL of the step's counted tokens
  double gradient_norm = 0, learning_rate = 0;
  std::int64_t counted_tokens = 0, tokens = 0;
  double seconds = 0;
  std::int64_t memory = 0;  ///< peak_memory() of the fullest rank
  std::vector<std::string> samples;
  std::vector<LayerStats> layers;
  double validation_loss = -1;  ///< below 0: not measured at this step
};

/// Peak resident memory of this process, bytes.
std::int64_t peak_resident_memory();
/// Peak so far where the model lies, bytes: resident memory of this process, or what its tensors hold on the GPU.
std::int64_t peak_memory(Device device);

/// Adds up the ranks' layer statistics; the same on all ranks.
std::vector<LayerStats> sum_over_ranks(parallel::Communicator& world, const std::vector<LayerStats>& mine);

class MetricsLog {
 public:
  /// Lines after `step` are cut. `steps`: of the whole run, for the ETA. `quiet`: nothing goes to stdout.
  MetricsLog(const std::string& run_folder, std::int64_t step, std::int64_t steps, bool quiet = false);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;

  void write(const StepMetrics& metrics);
  /// A line of its own on stdout ("saved …"), under the progress line.
  void say(const std::string& line);

 private:
  void show_progress(const StepMetrics& metrics);

  std::string path_;
  std::FILE* file_ = nullptr;
  std::int64_t steps_;
  bool terminal_, quiet_;
  bool line_open_ = false;
  std::deque<double> recent_seconds_;  // of the last steps, for tokens/s and ETA
  double last_shown_ = 0;
};

}  // namespace capstan::framework
