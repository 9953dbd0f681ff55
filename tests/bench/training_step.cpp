#include "tests/bench/training_step.h"

#include <algorithm>

#include "framework/random.h"
#include "kernels/host_view.h"
#include "kernels/memory.h"
#include "kernels/threads.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

namespace {

constexpr std::int64_t tile = 64;

framework::ModelConfig model_config(const StepShape& shape) {
  framework::ModelConfig config;
  config.hidden_size = shape.width;
  config.mlp_size = shape.mlp;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_size = shape.width / shape.heads;
  config.vocabulary = shape.vocabulary;
  config.tied = true;
  config.max_length = shape.tokens;
  return config;
}

framework::PositionConfig position_config(const StepShape& shape) {
  framework::PositionConfig position;
  position.kind = shape.encoding;
  position.original_length = shape.tokens;
  return position;
}

framework::Batch random_batch(const StepShape& shape) {
  const std::int64_t b = shape.sequences, t = shape.tokens;
  framework::Batch batch;
  batch.length = t;
  for (Tensor* x : {&batch.tokens, &batch.targets}) *x = Tensor({b, t}, DType::i32, Device::cpu);
  for (Tensor* x : {&batch.index, &batch.position, &batch.document}) *x = Tensor({b, t}, DType::i64, Device::cpu);
  for (std::int64_t i = 0; i < b * t; ++i) {
    const auto token = [&](std::uint64_t at) {
      return std::int32_t(framework::random_below(1, 2, at, shape.vocabulary));
    };
    batch.tokens.as<std::int32_t>()[i] = token(std::uint64_t(i));
    batch.targets.as<std::int32_t>()[i] = token(std::uint64_t(i) + 1);
    batch.index.as<std::int64_t>()[i] = batch.position.as<std::int64_t>()[i] = i % t;
  }
  for (Tensor* x : {&batch.tokens, &batch.targets, &batch.index, &batch.position, &batch.document})
    *x = kernels::moved_to(std::move(*x), shape.device);
  return batch;
}

}  // namespace

std::string StepShape::text() const {
  return fmt::format("{}/{}/layers:{}/{}x{}/threads:{}", encoding, precision, layers, sequences, tokens, threads);
}

TrainingStep::TrainingStep(const StepShape& shape)
    : shape_(shape), world_(parallel::make_self_communicator()), model_(model_config(shape), position_config(shape)) {
  kernels::set_threads(shape.threads);
  const DType type = framework::type_of_precision(shape.precision);
  model_.parameters().allocate(shape.device, kernels::wide(type), true, [](const std::string&) { return true; });
  model_.parameters().initialise(1, 0.02);
  optimizer_.emplace(framework::OptimizerConfig{}, model_.parameters(), *world_);
  if (type == DType::bf16) optimizer_->narrow_parameters();
  set_tokens(shape.tokens);
}

void TrainingStep::set_tokens(std::int64_t tokens) {
  shape_.tokens = tokens;
  ring_.emplace(model_.make_ring(*world_, tokens, tile));
  batch_ = random_batch(shape_);
}

void TrainingStep::run() {
  framework::Pass pass = model_.forward(*ring_, batch_, tile, shape_.keep);
  model_.backward(batch_, pass);
  optimizer_->step(1e-4, shape_.sequences * shape_.tokens);
}

std::int64_t step_bytes(const StepShape& shape) {
  const auto place = shape.device == Device::cuda ? kernels::MemoryPlace::gpu : kernels::MemoryPlace::host;
  TrainingStep step(shape);
  step.set_tokens(std::min<std::int64_t>(shape.tokens, 1024));
  step.run();  // all threads have their scratch memory from now on
  step.set_tokens(shape.tokens);
  kernels::restart_memory_peaks(place);
  const std::int64_t before = kernels::memory_report(place).now;
  step.run();
  kernels::set_threads(1);
  return kernels::memory_report(place).peak - before;
}

}  // namespace capstan::tests
