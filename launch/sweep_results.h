#pragma once
// What the runs of a sweep came to: read from their folders, noted there, and put together into two files.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/sweep_plan.h"

namespace capstan::launch {

struct SetFigure {
  std::string data, task, set, checksum;  ///< of the file
  std::int64_t examples = 0, right = 0;
  double accuracy = 0;  ///< 0 to 1
};

struct RunResult {
  std::string failure;                 ///< one line; empty: it went well
  std::int64_t steps = 0, tokens = 0;  ///< trained
  std::optional<double> loss,
      validation_loss;          ///< of the last step, nat per token; absent: not measured, or not finite
  std::vector<SetFigure> sets;  ///< as in the plan; none after a failure
  double seconds = 0;           ///< of its training steps, all starts together
};

/// What a run has trained so far, by its metrics.jsonl; without sets.
RunResult trained_so_far(const std::string& run_folder);

/// Writes RUN/result.json, atomically. Error: io.
void note_result(const SweepPlan& plan, const SweepRun& run, const RunResult& result);
/// Reads it back; nothing if there is none or it cannot be read.
std::optional<RunResult> noted_result(const SweepPlan& plan, const SweepRun& run);
/// Whether the result is what the plan asks for: no failure, all steps, the sets' files as they are now.
bool is_finished(const SweepPlan& plan, const SweepRun& run, const RunResult& result);
/// Of every run of the plan what its folder says: a finished result or a failure; else nothing.
std::vector<std::optional<RunResult>> noted_results(const SweepPlan& plan);

/// Mean and sample standard deviation (n - 1) of n values.
struct Summary {
  std::int64_t n = 0;
  double mean = 0;           ///< 0 if n = 0
  std::optional<double> sd;  ///< from two values on
};
Summary summary_of(const std::vector<double>& values);
/// "93.80 ± 1.25 (3)", of values times `factor`; "93.80 (1)"; "-" without values.
std::string text_of(const Summary& summary, double factor, int digits);

/// results.json. `results`: one for each run.
std::string sweep_json(const SweepPlan& plan, const std::vector<std::optional<RunResult>>& results);
/// results.md: a row for each combination, a column for each set, or one for the validation loss.
std::string sweep_table(const SweepPlan& plan, const std::vector<std::optional<RunResult>>& results);
/// Writes both into the sweep's folder, from what the runs' folders say. Error: io.
void write_sweep(const SweepPlan& plan);

}  // namespace capstan::launch
