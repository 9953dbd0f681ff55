#pragma once
// Update of the trainable parameters with the optimizer state cut evenly over all ranks of the grid (ZeRO-1, arXiv 1910.02054 §5.1):
//   gradients of sums → reduce-scatter → this rank's shard / N → global norm → clip → AdamW or SGD on the shard → all-gather values.
// Of a narrow model (bf16) each rank keeps the f32 values of its shard, the masters, and gathers what they round to.
// The trainer alone divides by N, once, here: after the reduction, before norm and clip.

#include "framework/config.h"
#include "framework/parameters.h"
#include "parallel/communicator.h"

namespace capstan::framework {

class Optimizer {
 public:
  /// Parameters must be allocated with gradients, for world.size() ranks.
  Optimizer(const OptimizerConfig& config, Parameters& parameters, parallel::Communicator& world);

  /// Makes the parameters, which are f32, narrow, and keeps the f32 values of this rank's shard.
  void narrow_parameters();

  /// Gradient norm of the mean loss, before clipping. Consumes the gradients (they are zero afterwards). counted = N of the whole step.
  /// Error (internal): norm not finite; then nothing was updated.
  double step(double learning_rate, std::int64_t counted);

  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }
  ShardRange shard() const { return shard_; }
  /// [shard] the values that updates are made on.
  View values() const { return piece().rows(0, shard_.end - shard_.begin); }
  /// [shard] moments; absent for SGD.
  const View& m() const { return m_.view(); }
  const View& v() const { return v_.view(); }

 private:
  void update_shard(double learning_rate, const View& gradient);
  void gather_values();
  View piece() const;  ///< [piece] values() and padding

  OptimizerConfig config_;
  Parameters& parameters_;
  parallel::Communicator& world_;
  ShardRange shard_;
  std::int64_t piece_;  // elements per rank, with padding
  std::int64_t updates_ = 0;
  Tensor masters_;  // of a narrow model
  Tensor m_, v_;
  Tensor reduced_;  // [piece] of the gradients; one rank has none
};

/// Learning rate of step (0-based) as a fraction of optimizer.lr. Warm-up rises linearly: (step + 1) / warmup.
double schedule_fraction(const ScheduleConfig& schedule, std::int64_t step, std::int64_t steps);

}  // namespace capstan::framework
