// Whole training steps: forward, backward and AdamW of a model with the shape of GPT-2 124M (12 layers, width 768, 12 heads,
// a vocabulary of 50,304; its MLP as SwiGLU with the same number of weights), random weights and tokens. Rows C14 to C18 of
// docs/performance.md. Names: step/ENCODING/PRECISION/layers:L/BxT/threads:N, memory/…
//
// Times are of one step after a first one that is not counted (it takes the memory); steps of 8,192 tokens and more are
// measured the first time.

#include <benchmark/benchmark.h>

#include "framework/metrics_log.h"
#include "framework/model.h"
#include "framework/optimizer.h"
#include "framework/random.h"
#include "kernels/memory.h"
#include "kernels/threads.h"

namespace capstan::tests {
namespace {

using framework::Keep;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

struct StepShape {
  std::string encoding = "rope", precision = "f32";
  std::int64_t layers = 12, vocabulary = 50304, sequences = 1, tokens = 1024;
  int threads = 1;
  Keep keep = Keep::everything;
  std::string text() const {
    return fmt::format("{}/{}/layers:{}/{}x{}/threads:{}", encoding, precision, layers, sequences, tokens, threads);
  }
};

/// A model with its optimizer on one rank.
class Step {
 public:
  explicit Step(const StepShape& shape)
      : shape_(shape), world_(parallel::make_self_communicator()), model_(model_config(shape), position_config(shape)) {
    kernels::set_threads(shape.threads);
    const DType type = framework::type_of_precision(shape.precision);
    model_.parameters().allocate(Device::cpu, kernels::wide(type), true, [](const std::string&) { return true; });
    model_.parameters().initialise(1, 0.02);
    optimizer_.emplace(framework::OptimizerConfig{}, model_.parameters(), *world_);
    if (type == DType::bf16) optimizer_->narrow_parameters();
    ring_.emplace(model_.make_ring(*world_, shape.tokens, tile));
    make_batch();
  }

  void run() {
    framework::Pass pass = model_.forward(*ring_, batch_, tile, shape_.keep);
    model_.backward(batch_, pass);
    optimizer_->step(1e-4, shape_.sequences * shape_.tokens);
  }
  std::int64_t parameters() const { return model_.parameters().elements(); }

 private:
  static constexpr std::int64_t tile = 64;

  static framework::ModelConfig model_config(const StepShape& shape) {
    framework::ModelConfig config;
    config.hidden_size = 768;
    config.mlp_size = 2048;
    config.layers = shape.layers;
    config.heads = config.kv_heads = 12;
    config.head_size = 64;
    config.vocabulary = shape.vocabulary;
    config.tied = true;
    config.max_length = shape.tokens;
    return config;
  }
  static framework::PositionConfig position_config(const StepShape& shape) {
    framework::PositionConfig position;
    position.kind = shape.encoding;
    position.original_length = shape.tokens;
    return position;
  }

  void make_batch() {
    const std::int64_t b = shape_.sequences, t = shape_.tokens;
    batch_.length = t;
    for (Tensor* x : {&batch_.tokens, &batch_.targets}) *x = Tensor({b, t}, DType::i32, Device::cpu);
    for (Tensor* x : {&batch_.index, &batch_.position, &batch_.document}) *x = Tensor({b, t}, DType::i64, Device::cpu);
    for (std::int64_t i = 0; i < b * t; ++i) {
      const auto token = [&](std::uint64_t at) {
        return std::int32_t(framework::random_below(1, 2, at, shape_.vocabulary));
      };
      batch_.tokens.as<std::int32_t>()[i] = token(std::uint64_t(i));
      batch_.targets.as<std::int32_t>()[i] = token(std::uint64_t(i) + 1);
      batch_.index.as<std::int64_t>()[i] = batch_.position.as<std::int64_t>()[i] = i % t;
    }
  }

  StepShape shape_;
  std::unique_ptr<parallel::Communicator> world_;
  framework::Model model_;
  std::optional<framework::Optimizer> optimizer_;
  std::optional<parallel::Ring> ring_;
  framework::Batch batch_;
};

void measure_step(benchmark::State& state, const StepShape& shape) {
  constexpr std::int64_t long_step = 8192;
  Step step(shape);
  if (shape.sequences * shape.tokens < long_step) step.run();
  for (auto _ : state) step.run();
  state.counters["tokens"] = double(shape.sequences * shape.tokens);
  state.counters["parameters"] = double(step.parameters());
  state.counters["peak_resident_bytes"] = double(framework::peak_resident_memory());
  kernels::set_threads(1);
}

/// Peak of the memory that tensors held in a step, less what the parameters and their states take.
void measure_memory(benchmark::State& state, const StepShape& shape) {
  Step step(shape);
  const std::int64_t before = kernels::memory_report().now;
  for (auto _ : state) step.run();
  state.counters["tokens"] = double(shape.tokens);
  state.counters["step_bytes"] = double(kernels::memory_report().peak - before);
  kernels::set_threads(1);
}

void add(const std::string& name, void (*measure)(benchmark::State&, const StepShape&), const StepShape& shape) {
  benchmark::RegisterBenchmark((name + "/" + shape.text()).c_str(), measure, shape)
      ->Iterations(1)
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

/// Memory first: peaks are those of the process, so sizes rise.
void add_all() {
  for (const std::int64_t tokens : {8192, 16384, 32768})
    for (const Keep keep : {Keep::inputs, Keep::ring}) {
      if (keep == Keep::ring && tokens == 32768) continue;
      StepShape shape{.layers = 2, .vocabulary = 512, .tokens = tokens, .threads = 2, .keep = keep};
      add(keep == Keep::inputs ? "memory/block_full" : "memory/block", measure_memory, shape);
    }
  add("step", measure_step, {.sequences = 4, .tokens = 64, .threads = 2});
  add("step", measure_step, {.threads = 2});
  add("step", measure_step, {});
  add("step", measure_step, {.precision = "bf16"});
  add("step", measure_step, {.encoding = "rope+cope"});
  for (const char* encoding : {"rope", "rope+cope"})
    add("step", measure_step, {.encoding = encoding, .layers = 2, .tokens = 8192, .threads = 2});
}

}  // namespace
}  // namespace capstan::tests

int main(int count, char** words) {
  capstan::tests::add_all();
  benchmark::Initialize(&count, words);
  benchmark::RunSpecifiedBenchmarks();
}
