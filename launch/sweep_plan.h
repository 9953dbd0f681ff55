#pragma once
// What a sweep will do, checked before any of it is done: a run for every combination of values and every seed.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/config.h"

namespace capstan::launch {

/// --over KEY=V,…
struct SweepAxis {
  std::string key;                  ///< "position.kind"
  std::vector<std::string> values;  ///< as a recipe writes them
};

/// A file of --eval.
struct SweepSet {
  std::string data, task, set, checksum;
  std::string tokenizer, tokenizer_hash;
};

struct SweepRun {
  std::string name;                 ///< its folder's in the sweep's: "rope-s1"
  std::vector<std::string> values;  ///< one for each axis
  std::int64_t seed = 0;            ///< train.seed and data.seed
  framework::Recipe recipe;
};

struct SweepPlan {
  std::string recipe;                                          ///< its file
  std::string folder;                                          ///< of the sweep
  std::vector<std::pair<std::string, std::string>> overrides;  ///< "section.key" and value, for all runs
  std::vector<SweepAxis> axes;
  std::int64_t seeds = 0;
  std::vector<SweepSet> sets;  ///< none: runs are measured by their validation loss
  std::vector<SweepRun> runs;  ///< seed after seed of each combination; the last axis changes fastest

  std::string folder_of(const SweepRun& run) const { return folder + "/" + run.name; }
};

/// Reads the texts of --over. Errors: usage (not KEY=V,…; an unknown key, with the nearest; a key or a value twice; a key that
/// `overrides` or the seeds set); config (a value that the key does not allow).
std::vector<SweepAxis> sweep_axes(const std::vector<std::string>& texts,
                                  const std::vector<std::pair<std::string, std::string>>& overrides);

/// Opens the files of --eval, separated by commas. Errors: usage (none, one twice), io, bad_data (no loss mask).
std::vector<SweepSet> sweep_sets(const std::string& files);

/// Fills in `runs` from the rest. Errors: those of read_training_recipe, named with the combination; config: two combinations
/// would have one folder.
void plan_runs(SweepPlan& plan);

/// Checks every run as far as can be without running it, on so many ranks for each: data, grid, what its folder holds. Reads
/// much; errors: io, bad_data, config.
void check_runs(const SweepPlan& plan, int ranks);

/// A value as a part of a file name: characters but letters, digits, and . + - _ become _, and then a hash tells such values
/// apart.
std::string safe_name(const std::string& value);

}  // namespace capstan::launch
