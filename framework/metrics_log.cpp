#include "framework/metrics_log.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/stop_request.h"
#include "kernels/memory.h"

namespace capstan::framework {

namespace {

using Json = nlohmann::ordered_json;

Json layer_json(const LayerStats& s) {
  Json out = Json::object();
  if (s.attention.gates > 0) out["mean_gate"] = s.attention.gate_sum / double(s.attention.gates);
  if (s.horizons > 0) out["horizon"] = s.horizon_sum / double(s.horizons);
  if (s.horizons > 0 && s.attention.tiles > 0)
    out["saturated"] = double(s.attention.saturated_tiles) / double(s.attention.tiles);
  if (s.z_count > 0) out["mean_z"] = s.z_sum / double(s.z_count);
  if (s.z_count > 0) out["max_z"] = s.z_max;
  return out;
}

double median(std::deque<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::string duration_text(double seconds) {
  const std::int64_t s = std::int64_t(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return s >= 60 ? fmt::format("{}m{:02}s", s / 60, s % 60) : fmt::format("{}s", s);
}

}  // namespace

std::int64_t peak_resident_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t(usage.ru_maxrss) * 1024;
}

std::int64_t peak_memory(Device device) {
  return device == Device::cuda ? kernels::memory_report(kernels::MemoryPlace::gpu).peak : peak_resident_memory();
}

std::vector<LayerStats> sum_over_ranks(parallel::Communicator& world, const std::vector<LayerStats>& mine) {
  constexpr std::int64_t columns = 8;
  Tensor sums({std::int64_t(mine.size()), columns}, DType::f64, Device::ref),
      largest({std::int64_t(mine.size())}, DType::f64, Device::ref);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const LayerStats& s = mine[i];
    const double row[columns] = {s.attention.gate_sum,
                                 double(s.attention.gates),
                                 double(s.attention.tiles),
                                 double(s.attention.saturated_tiles),
                                 s.horizon_sum,
                                 double(s.horizons),
                                 s.z_sum,
                                 double(s.z_count)};
    std::copy_n(row, columns, sums.as<double>() + i * columns);
    largest.as<double>()[i] = s.z_max;
  }
  world.all_reduce(sums);
  world.all_reduce(largest, parallel::Reduce::max);
  std::vector<LayerStats> out(mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double* row = sums.as<double>() + i * columns;
    out[i].attention = {row[0], std::int64_t(row[1]), std::int64_t(row[2]), std::int64_t(row[3])};
    out[i].horizon_sum = row[4];
    out[i].horizons = std::int64_t(row[5]);
    out[i].z_sum = row[6];
    out[i].z_count = std::int64_t(row[7]);
    out[i].z_max = largest.as<double>()[i];
  }
  return out;
}

/// mpirun gives its ranks a terminal of its own even where it has none: TERM=dumb then says so (launch/setup.sh sets it).
static bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term && std::string(term) != "dumb";
}

MetricsLog::MetricsLog(const std::string& run_folder, std::int64_t step, std::int64_t steps, bool quiet)
    : path_(run_folder + "/metrics.jsonl"), steps_(steps), terminal_(is_terminal()), quiet_(quiet) {
  if (std::filesystem::exists(path_)) {
    std::string kept;
    std::stringstream lines(read_file(path_));
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line, nullptr, false);  // a torn last line parses to "discarded"
      if (json.is_object() && json.value("step", std::int64_t(0)) <= step) kept += line + "\n";
    }
    write_text_atomically(path_, kept);
  }
  file_ = std::fopen(path_.c_str(), "a");
  if (!file_) fail(ExitCode::io, "{}: cannot be opened for writing", path_);
}

MetricsLog::~MetricsLog() {
  if (line_open_) std::fputs("\n", stdout);
  std::fclose(file_);
}

void MetricsLog::write(const StepMetrics& m) {
  Json out = {{"step", m.step},
              {"loss", m.loss},
              {"gradient_norm", m.gradient_norm},
              {"learning_rate", m.learning_rate},
              {"counted_tokens", m.counted_tokens},
              {"tokens", m.tokens},
              {"seconds", m.seconds},
              {"tokens_per_second", m.seconds > 0 ? double(m.tokens) / m.seconds : 0},
              {"memory", m.memory},
              {"samples", m.samples}};
  if (m.validation_loss >= 0) out["validation_loss"] = m.validation_loss;
  Json layers = Json::array();
  for (const LayerStats& layer : m.layers) layers.push_back(layer_json(layer));
  out["layers"] = layers;
  const std::string line = out.dump() + "\n";
  if (std::fputs(line.c_str(), file_) < 0 || std::fflush(file_) != 0)
    fail(ExitCode::io, "{}: cannot be written: is the disk full?", path_);
  if (!quiet_) show_progress(m);
}

void MetricsLog::show_progress(const StepMetrics& m) {
  recent_seconds_.push_back(m.seconds);
  if (recent_seconds_.size() > 50) recent_seconds_.pop_front();
  const double typical = median(recent_seconds_), now = monotonic_seconds();
  const bool last = m.step == steps_;
  // A terminal gets one line that is written over; a log file gets a line every 10 s.
  if (!terminal_ && !last && m.step != 1 && now - last_shown_ < 10) return;
  last_shown_ = now;
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tok/s  {:.0f} MiB  ETA {}", m.step, steps_,
                  m.loss, m.gradient_norm, m.learning_rate, typical > 0 ? double(m.tokens) / typical : 0.0,
                  double(m.memory) / (1 << 20), duration_text(double(steps_ - m.step) * typical));
  if (m.validation_loss >= 0) line += fmt::format("  validation {:.4f}", m.validation_loss);
  fmt::print("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !last ? "" : "\n");
  std::fflush(stdout);
  line_open_ = terminal_ && !last;
}

void MetricsLog::say(const std::string& line) {
  if (quiet_) return;
  fmt::print("{}{}\n", line_open_ ? "\n" : "", line);
  std::fflush(stdout);
  line_open_ = false;
}

}  // namespace capstan::framework
