#include "framework/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"

namespace capstan::framework {

Optimizer::Optimizer(const OptimizerConfig& config, Parameters& parameters, parallel::Communicator& world)
    : config_(config), parameters_(parameters), world_(world),
      shard_(shard_range(parameters.trainable_elements(), world.rank(), world.size())),
      piece_(parameters.trainable_values().elements() / world.size()) {
  const View& values = parameters.trainable_values();
  gradient_ = Tensor({piece_}, values.type(), values.device());
  if (config.kind != "adamw") return;
  m_ = Tensor({shard_.end - shard_.begin}, values.type(), values.device());
  v_ = Tensor({shard_.end - shard_.begin}, values.type(), values.device());
}

double Optimizer::step(double learning_rate, std::int64_t counted) {
  CAPSTAN_CHECK(counted > 0, "N = {}", counted);
  world_.reduce_scatter(parameters_.gradients(), gradient_);
  parameters_.gradients().fill_zero();
  kernels::scale(gradient_, 1.0 / double(counted));
  const double norm = std::sqrt(world_.all_reduce(kernels::sum_of_squares(gradient_)));
  if (!std::isfinite(norm))
    fail(ExitCode::internal,
         "the gradient norm of update {} is {}: nothing was updated; lower optimizer.lr or look at the data of this "
         "step",
         updates_ + 1, norm);
  if (config_.clip > 0 && norm > config_.clip) kernels::scale(gradient_, config_.clip / norm);
  ++updates_;
  update_shard(learning_rate, gradient_);
  const std::int64_t begin = world_.rank() * piece_;
  world_.all_gather(parameters_.trainable_values().rows(begin, begin + piece_), parameters_.trainable_values());
  return norm;
}

/// The shard crosses parameters with and without weight decay: one call per parameter.
void Optimizer::update_shard(double learning_rate, const View& gradient) {
  for (const Parameter& p : parameters_.all()) {
    if (!p.trainable) continue;
    const std::int64_t begin = std::max(p.offset, shard_.begin),
                       end = std::min(p.offset + p.shape.elements(), shard_.end);
    if (begin >= end) continue;
    const View w = parameters_.trainable_values().rows(begin, end);
    const auto local = [&](const View& x) { return x.rows(begin - shard_.begin, end - shard_.begin); };
    if (config_.kind == "adamw")
      kernels::adamw_step(
          w, local(m_), local(v_), local(gradient),
          {learning_rate, config_.beta1, config_.beta2, config_.eps, p.decay ? config_.weight_decay : 0.0, updates_});
    else kernels::sgd_step(w, local(gradient), learning_rate);
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
