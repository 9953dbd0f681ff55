// Whole training steps of a model with the shape of GPT-2 124M. Rows C14 to C18 of docs/performance.md. Names:
// step/ENCODING/PRECISION/layers:L/BxT/threads:N, memory/…
//
// Times are of one step after a first one that is not counted (it takes the memory); steps of 8,192 tokens and more are
// measured the first time.

#include <benchmark/benchmark.h>

#include "framework/metrics_log.h"
#include "kernels/threads.h"
#include "tests/bench/training_step.h"

namespace capstan::tests {
namespace {

using framework::Keep;

void measure_step(benchmark::State& state, const StepShape& shape) {
  constexpr std::int64_t long_step = 8192;
  TrainingStep step(shape);
  if (shape.sequences * shape.tokens < long_step) step.run();
  for (auto _ : state) step.run();
  state.counters["tokens"] = double(shape.sequences * shape.tokens);
  state.counters["parameters"] = double(step.parameters());
  state.counters["peak_resident_bytes"] = double(framework::peak_resident_memory());
  kernels::set_threads(1);
}

void measure_memory(benchmark::State& state, const StepShape& shape) {
  for (auto _ : state) state.counters["step_bytes"] = double(step_bytes(shape));
  state.counters["tokens"] = double(shape.tokens);
}

void add(const std::string& name, void (*measure)(benchmark::State&, const StepShape&), const StepShape& shape) {
  benchmark::RegisterBenchmark((name + "/" + shape.text()).c_str(), measure, shape)
      ->Iterations(1)
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

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
