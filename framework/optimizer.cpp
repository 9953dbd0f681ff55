#include "framework/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"
#include "kernels/memory.h"

namespace capstan::framework {

Optimizer::Optimizer(const OptimizerConfig& config, Parameters& parameters, parallel::Communicator& world)
    : config_(config), parameters_(parameters), world_(world),
      shard_(shard_range(parameters.trainable_elements(), world.rank(), world.size())),
      piece_(parameters.trainable_values().elements() / world.size()) {
  const View& values = parameters.trainable_values();
  const kernels::MemoryPurpose purpose("optimizer");
  if (world.size() > 1) reduced_ = Tensor({piece_}, values.type(), values.device());
  if (config.kind != "adamw") return;
  m_ = Tensor({shard_.end - shard_.begin}, values.type(), values.device());
  v_ = Tensor({shard_.end - shard_.begin}, values.type(), values.device());
}

double Optimizer::step(double learning_rate, std::int64_t counted) {
  CAPSTAN_CHECK(counted > 0, "N = {}", counted);
  const View gradient = reduced_ ? reduced_.view() : parameters_.gradients();  // one rank: its gradients are the sums
  if (reduced_) world_.reduce_scatter(parameters_.gradients(), gradient);
  kernels::scale(gradient, 1.0 / double(counted));
  const double norm = std::sqrt(world_.all_reduce(kernels::sum_of_squares(gradient)));
  if (!std::isfinite(norm))
    fail(ExitCode::internal,
         "the gradient norm of update {} is {}: nothing was updated; lower optimizer.lr or look at the data of this "
         "step",
         updates_ + 1, norm);
  if (config_.clip > 0 && norm > config_.clip) kernels::scale(gradient, config_.clip / norm);
  ++updates_;
  update_shard(learning_rate, gradient);
  parameters_.gradients().fill_zero();
  gather_values();
  return norm;
}

void Optimizer::narrow_parameters() {
  const kernels::MemoryPurpose purpose("optimizer");
  masters_ = {};  // piece() is the parameters' own
  Tensor masters = empty_like(piece());
  masters.view().copy_from(piece());
  parameters_.narrow();
  masters_ = std::move(masters);
  kernels::release_kept_memory();
}

View Optimizer::piece() const {
  if (masters_) return masters_;
  const std::int64_t begin = world_.rank() * piece_;
  return parameters_.trainable_values().rows(begin, begin + piece_);
}

/// Every rank's piece to all. What stays f32 in a narrow model is little: one sum over ranks, each with its own parts.
void Optimizer::gather_values() {
  const View& values = parameters_.trainable_values();
  const View mine = values.rows(world_.rank() * piece_, (world_.rank() + 1) * piece_);
  if (masters_) kernels::convert(mine, masters_);
  world_.all_gather(mine, values);
  if (!masters_) return;
  const View wide = parameters_.wide_trainable_values();
  wide.fill_zero();
  for (const Parameter& p : parameters_.all()) {
    const std::int64_t begin = std::max(p.offset, shard_.begin),
                       end = std::min(p.offset + p.shape.elements(), shard_.end), to = p.wide_offset + begin - p.offset;
    if (!p.trainable || p.wide_offset < 0 || begin >= end) continue;
    wide.rows(to, to + end - begin).copy_from(masters_.view().rows(begin - shard_.begin, end - shard_.begin));
  }
  world_.all_reduce(wide);
}

/// The shard crosses parameters with and without weight decay: one call per parameter.
void Optimizer::update_shard(double learning_rate, const View& gradient) {
  for (const Parameter& p : parameters_.all()) {
    if (!p.trainable) continue;
    const std::int64_t begin = std::max(p.offset, shard_.begin),
                       end = std::min(p.offset + p.shape.elements(), shard_.end);
    if (begin >= end) continue;
    const auto local = [&](const View& x) { return x.rows(begin - shard_.begin, end - shard_.begin); };
    if (config_.kind == "adamw")
      kernels::adamw_step(
          local(piece()), local(m_), local(v_), local(gradient),
          {learning_rate, config_.beta1, config_.beta2, config_.eps, p.decay ? config_.weight_decay : 0.0, updates_});
    else kernels::sgd_step(local(piece()), local(gradient), learning_rate);
  }
}

double schedule_fraction(const ScheduleConfig& schedule, std::int64_t step, std::int64_t steps) {
  if (step < schedule.warmup) return double(step + 1) / double(schedule.warmup);
  if (schedule.kind == "cosine") {
    const double length = double(std::max<std::int64_t>(1, steps - 1 - schedule.warmup));
    const double done = std::min(1.0, double(step - schedule.warmup) / length);
    return schedule.final + (1 - schedule.final) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  if (schedule.kind == "trapezoid" && schedule.cooldown > 0 && step >= steps - schedule.cooldown) {
    const double left = double(steps - step) / double(schedule.cooldown + 1);
    return schedule.final + (1 - schedule.final) * std::clamp(left, 0.0, 1.0);
  }
  return 1;
}

}  // namespace capstan::framework
