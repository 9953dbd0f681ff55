#pragma once
// The training loop. One step:
//   batch → forward → backward (per micro-batch, gradients of sums) → optimizer (reduce, / N, norm, clip, update, gather) → log.
// Sequence i of a step goes to data rank i mod data; N = counted targets of the whole step, known beforehand from the documents.

#include <memory>
#include <string>
#include <vector>

#include "framework/checkpoint.h"
#include "framework/metrics_log.h"
#include "framework/optimizer.h"
#include "framework/stop_request.h"
#include "framework/training_data.h"
#include "parallel/placement.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

/// A model's shape and position encoding.
struct ModelShape {
  ModelConfig model;
  PositionConfig position;
};

/// Reads a recipe for training: file, then overrides ("section.key", value) in order. If model.from names a model, that model's
/// shape and position are the defaults under both; `shape`, if given, stands for it, and model.from is not opened.
Recipe read_training_recipe(const std::string& path, const std::vector<std::pair<std::string, std::string>>& overrides,
                            const ModelShape* shape = nullptr);

/// A rerun goes on with the run that it finds; Error (config) names what in `recipe`, whose sizes are resolved, would change
/// its results.
void refuse_changed_recipe(const Recipe& recipe, const std::string& run_folder);

/// How a run is part of something larger.
struct RunContext {
  StopRequest* stop = nullptr;  ///< stops the run, too; asked by all ranks of the run
  bool quiet = false;           ///< nothing on stdout
};

struct StepResult {
  double loss = 0;  ///< mean over the step's counted tokens
  double gradient_norm = 0, learning_rate = 0;
  std::int64_t counted = 0;
  std::vector<std::string> samples;
  std::vector<LayerStats> layers;
};

class Trainer {
 public:
  /// Checks the recipe against the data and the model, builds all, loads the start model. Every rank calls; ranks that differ in
  /// binary, recipe or data are refused.
  Trainer(const Recipe& recipe, parallel::Communicator& world);

  /// Trains to the end in a run folder, resuming what it finds there. done, or stopped (with a saved checkpoint).
  ExitCode run(const std::string& run_folder, const RunContext& context = {});

  // The pieces, for tests and `run`.
  std::int64_t step() const { return step_; }
  StepResult train_step();
  double validate();
  /// Continues from a checkpoint on any ranks.
  void load(const Checkpoint& checkpoint);
  std::string save(const std::string& parent);
  Model& model() { return *model_; }
  Optimizer& optimizer() { return *optimizer_; }
  Dataset& data() { return data_.train; }
  const Recipe& recipe() const { return recipe_; }
  /// Tests: a data rank goes through its micro-batches from the last to the first.
  void reverse_micro_batches() { reversed_ = true; }

 private:
  void require_same_start();
  void start_values();
  void narrow_if_asked();
  void announce(const std::string& run_folder, const std::string& resumed) const;
  void require_finite_values() const;
  CheckpointHeader header() const;
  Dropout dropout_of(const std::vector<SampleId>& ids) const;
  std::vector<std::vector<SampleId>> micro_batches(const std::vector<SampleId>& all) const;

  Recipe recipe_;
  parallel::OnDevice place_;  // before all that lies on the device
  parallel::Communicator& world_;
  parallel::ProcessGrid grid_;
  TrainingData data_;
  CheckpointExtras extras_;
  TextConventions text_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<parallel::Ring> ring_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::string> new_parameters_;  // not in the start model: begin at their initial values
  std::int64_t step_ = 0;
  bool reversed_ = false;
};

}  // namespace capstan::framework
