// The GPU's rows of the performance table: gpu_bench [--card] [--toy] [--flash SECONDS] [--budget SECONDS] [--output FILE].
//
// Each row is a ratio within this run; times are medians, of CUDA events or, where ranks take part, of a clock between barriers. A row
// is printed when it is measured, and written to FILE as one JSON object per line: what a run that is cut short has done is there.
// --flash: seconds of FlashAttention-2 as PyTorch ships it, forward and backward of the row G5's shape (tests/bench/gpu_torch.py).
// --card: only the card's name, CUDA version of driver and program, commit, a line each.
// --budget: no row is begun after so many seconds. --toy: every row at a size that an emulated GPU bears, to see that it runs.
// Exit code 0, whatever was missed; 1 if a row failed; 78 without a GPU.

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/build_info.h"
#include "kernels/check_cuda.h"
#include "kernels/device_cuda.h"
#include "kernels/device_queue.h"
#include "kernels/linear.h"
#include "kernels/stream_cuda.h"
#include "parallel/ring_attention.h"
#include "tests/bench/gpu_problem.h"
#include "tests/bench/training_step.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::check_cuda;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

struct Options {
  bool card = false, toy = false;
  std::optional<double> flash;
  double budget = 1e9;
  std::string output;
};

// ---- time -----------------------------------------------------------------------------------------------------------

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of what the thread queues in f.
template <class F> double device_seconds(F&& f) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  check_cuda(cudaEventRecord(begin, kernels::stream_of_thread()), "cudaEventRecord");
  f();
  check_cuda(cudaEventRecord(end, kernels::stream_of_thread()), "cudaEventRecord");
  check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  check_cuda(cudaEventDestroy(begin), "cudaEventDestroy");
  check_cuda(cudaEventDestroy(end), "cudaEventDestroy");
  return 1e-3 * double(milliseconds);
}

void wait_for_gpu() {
  kernels::DeviceMark mark;
  mark.record();
  mark.wait();
}

/// Medians of two things that are measured in turn, so that both see the same clocks of the card.
struct Pair {
  double own, beside;
  template <class F, class G> static Pair of(int repeats, F&& f, G&& g) {
    std::vector<double> own, beside;
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first to warm up
      const double a = device_seconds(f), b = device_seconds(g);
      if (repeat < 0) continue;
      own.push_back(a);
      beside.push_back(b);
    }
    return {median(own), median(beside)};
  }
};

// ---- rows -----------------------------------------------------------------------------------------------------------

enum class Better { higher, lower };

struct Measured {
  std::optional<double> ratio;
  double seconds = 0;   ///< of what the row is about
  std::string missing;  ///< why there is no ratio
};

struct Row {
  std::string id, what;
  Better better;
  double floor, goal;
  std::function<Measured()> measure;
};

/// Sizes of the rows; an emulated GPU gets small ones.
class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), repeats_(options.toy ? 1 : 5) {}

  std::vector<Row> rows() {
    const std::int64_t k16 = tokens(16384), k64 = tokens(65536);
    return {
        {"G1", "plain causal forward, D=128, 16K / cuBLAS bf16", Better::higher, 0.34, 0.42,
         [=, this] { return beside_product(k16, 128, false); }},
        {"G2", "backward, D=128, 16K / cuBLAS bf16", Better::higher, 0.24, 0.30,
         [=, this] { return beside_product(k16, 128, true); }},
        {"G3", "forward, D=64, 16K / cuBLAS bf16", Better::higher, 0.28, 0.36,
         [=, this] { return beside_product(k16, 64, false); }},
        {"G5", "CoPE never saturated, forward and backward, 16K / FlashAttention-2 of PyTorch", Better::lower, 2.8, 2.0,
         [=, this] { return beside_flash(k16); }},
        {"G6", "CoPE saturating / own plain, 16K", Better::lower, 1.20, 1.10,
         [=, this] { return beside_plain(Kind::cope_half, k16); }},
        {"G6", "the same, 64K", Better::lower, 1.10, 1.03, [=, this] { return beside_plain(Kind::cope_half, k64); }},
        {"hierarchical", "hierarchical CoPE / own plain, 16K", Better::lower, 1.15, 1.05,
         [=, this] { return beside_plain(Kind::hierarchical, k16); }},
        {"G7", "TAPE / own plain, forward and backward, 16K", Better::lower, 1.95, 1.7,
         [=, this] { return beside_plain(Kind::tape, k16); }},
        {"G8", "ring of 4 thread-ranks on one card / one kernel, 8K per rank", Better::lower, 1.08, 1.03,
         [this] { return ring(tokens(8192)); }},
        {"G8", "the same, 32K per rank", Better::lower, 1.03, 1.01, [this] { return ring(tokens(32768)); }},
        {"G11", "peak bytes per token, 8B-shaped layers, block_full / formula", Better::lower, 1.25, 1.10,
         [this] { return step_memory(tokens(8192)); }},
    };
  }

 private:
  std::int64_t tokens(std::int64_t of_gpu) const { return options_.toy ? 128 : of_gpu; }
  /// So many that there is as much work for any length, up to a bound.
  std::int64_t heads(std::int64_t tokens) const {
    return options_.toy ? 1 : std::max<std::int64_t>(2, 16 * 16384 / tokens);
  }

  /// FLOP/s of the attention over FLOP/s of a product.
  Measured beside_product(std::int64_t tokens, std::int64_t depth, bool backward) {
    const std::int64_t n = options_.toy ? 64 : 8192;
    const Tensor x = gpu_random(n, 1, n, DType::bf16, 1), w = gpu_random(n, 1, n, DType::bf16, 2), y = empty_like(x);
    const auto square = [n](const Tensor& t) { return t.view().reshape({n, n}); };
    GpuProblem problem(Kind::plain, tokens, heads(tokens), depth);
    problem.forward();
    const auto attention = [&] { backward ? problem.backward() : problem.forward(); };
    const Pair pair = Pair::of(repeats_, attention, [&] { kernels::linear_forward(square(y), square(x), square(w)); });
    const double rate = (backward ? 2.5 : 1) * problem.forward_flop() / pair.own;
    return {rate / (2.0 * double(n) * double(n) * double(n) / pair.beside), pair.own, {}};
  }

  /// The shape of tests/bench/gpu_torch.py.
  Measured beside_flash(std::int64_t tokens) {
    if (!options_.toy && !options_.flash) return {{}, 0, "no PyTorch with CUDA here"};
    GpuProblem problem(Kind::cope_unsaturated, tokens, heads(tokens), 128);
    if (problem.saturated() > 0) return {{}, 0, "some tiles were saturated"};
    const auto both = [&] {
      problem.forward();
      problem.backward();
    };
    const Pair pair = Pair::of(repeats_, both, [] {});
    return {pair.own / options_.flash.value_or(pair.own), pair.own, {}};
  }

  /// Forward and backward.
  Measured beside_plain(Kind kind, std::int64_t tokens) {
    GpuProblem problem(kind, tokens, heads(tokens), 128), plain(Kind::plain, tokens, heads(tokens), 128);
    const auto both = [](GpuProblem& p) {
      p.forward();
      p.backward();
    };
    const Pair pair = Pair::of(
        repeats_, [&] { both(problem); }, [&] { both(plain); });
    return {pair.own / pair.beside, pair.own, {}};
  }

  Measured ring(std::int64_t of_rank);
  Measured step_memory(std::int64_t tokens);

  Options options_;
  int repeats_;
};

// ---- ring -----------------------------------------------------------------------------------------------------------

constexpr int ring_ranks = 4;

/// Seconds of forward and backward of a rank's shard, all ranks together; the median.
double ring_seconds(parallel::Communicator& comm, std::int64_t tokens, std::int64_t heads, int repeats) {
  const kernels::UseDevice use(0);
  parallel::RingPlan plan = parallel::plan_ring({"auto", comm.size(), 0, int(heads), tokens, 64});
  const parallel::Ring ring{comm, std::move(plan.layout), std::move(plan.schedule)};
  const std::vector<std::int64_t> own = ring.layout.local_index(comm.rank());
  const std::int64_t n = std::ssize(own);
  const auto batch = [n](const Tensor& x) { return x.view().reshape({1, n, x.shape()[1], x.shape()[2]}); };
  const auto random = [&](std::uint64_t seed, DType type) { return gpu_random(n, heads, 128, type, seed); };
  const Tensor q = random(1, DType::bf16), k = random(2, DType::bf16), v = random(3, DType::bf16),
               d_o = random(4, DType::f32);
  const Tensor dq({1, n, heads, 128}, DType::f32, Device::cuda), dk = zeros_like(dq), dv = zeros_like(dq);
  const Tensor host({1, n}, DType::i64, Device::cpu);
  std::copy(own.begin(), own.end(), host.as<std::int64_t>());
  const Tensor index = on_device(host, Device::cuda), document = zeros_like(index);
  const parallel::RingInputs in{batch(q), batch(k), batch(v), {}, {index, index, document}, {}};
  std::vector<double> seconds;
  for (int repeat = -1; repeat < repeats; ++repeat) {
    wait_for_gpu();
    comm.barrier();
    const double begin = clock_seconds();
    {
      const parallel::RingSaved saved = ring_attention_forward(ring, in, {}, nullptr);
      ring_attention_backward(ring, {dq, dk, dv, {}, {}, {}}, in, saved, batch(d_o), {});
      wait_for_gpu();
    }
    comm.barrier();
    if (repeat >= 0) seconds.push_back(clock_seconds() - begin);
  }
  return median(seconds);
}

Measured Bench::ring(std::int64_t of_rank) {
  const std::int64_t all = of_rank * ring_ranks, heads_of_all = options_.toy ? 1 : 4;
  const int repeats = options_.toy ? 1 : 3;
  double together = 0;
  parallel::run_on_threads(ring_ranks, [&](parallel::Communicator& comm) {
    const double seconds = ring_seconds(comm, all, heads_of_all, repeats);
    if (comm.rank() == 0) together = seconds;
  });
  GpuProblem alone(Kind::plain, all, heads_of_all, 128);
  const Pair pair = Pair::of(
      repeats,
      [&] {
        alone.forward();
        alone.backward();
      },
      [] {});
  return {together / pair.own, together, {}};
}

// ---- memory ----------------------------------------------------------------------------------------------------------

/// What twice the tokens take more, over L layers of inputs (2 D bytes in bf16) and one live layer of (12 + 12/g) D bytes: the model
/// of Llama 3's 8B layers, D = 4096 and g = 4.
Measured Bench::step_memory(std::int64_t tokens) {
  StepShape shape{.precision = "bf16",
                  .width = 4096,
                  .mlp = 14336,
                  .heads = 32,
                  .kv_heads = 8,
                  .layers = 2,
                  .vocabulary = 512,
                  .tokens = tokens,
                  .keep = framework::Keep::inputs,
                  .device = Device::cuda};
  if (options_.toy) shape.width = 64, shape.mlp = 224, shape.heads = 4, shape.kv_heads = 1;
  const double begin = clock_seconds();
  const std::int64_t once = step_bytes(shape);
  shape.tokens = 2 * tokens;
  const double grown = double(step_bytes(shape) - once);
  const double group = double(shape.heads / shape.kv_heads);
  const double formula = (2 * double(shape.layers) + 12 + 12 / group) * double(shape.width);
  return {grown / (double(tokens) * formula), clock_seconds() - begin, {}};
}

// ---- results --------------------------------------------------------------------------------------------------------

std::string verdict(const Row& row, const Measured& m, bool toy) {
  if (!m.ratio) return "not measured";
  if (toy) return "toy size";
  const auto within = [&](double bound) {
    return row.better == Better::higher ? *m.ratio >= bound : *m.ratio <= bound;
  };
  return within(row.goal) ? "goal" : within(row.floor) ? "floor" : "missed";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '"' || c == '\\') out += {'\\', c};
    else out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  return out;
}

void print(const Row& row, const Measured& m, bool toy, std::FILE* json) {
  const std::string judged = verdict(row, m, toy);
  const std::string ratio = m.ratio ? fmt::format("{:.3f}", *m.ratio) : "-";
  fmt::print("{:12} {:78} {:>5.2f} {:>5.2f} {:>8}  {}{}{}\n", row.id, row.what, row.floor, row.goal, ratio, judged,
             m.missing.empty() ? "" : ": ", m.missing);
  std::fflush(stdout);
  if (json == nullptr) return;
  fmt::print(json,
             "{{\"id\": \"{}\", \"what\": \"{}\", \"better\": \"{}\", \"floor\": {}, \"goal\": {}, \"ratio\": {}, "
             "\"seconds\": {:.6f}, \"verdict\": \"{}\", \"missing\": \"{}\"}}\n",
             row.id, escaped(row.what), row.better == Better::higher ? "higher" : "lower", row.floor, row.goal,
             m.ratio ? fmt::format("{:.4f}", *m.ratio) : "null", m.seconds, judged, escaped(m.missing));
  std::fflush(json);
}

/// True if no row failed.
bool run(const Options& options) {
  const double begin = clock_seconds();
  std::FILE* const json = options.output.empty() ? nullptr : std::fopen(options.output.c_str(), "w");
  if (!options.output.empty() && json == nullptr) fail(ExitCode::io, "{}: cannot be written", options.output);
  bool good = true;
  Bench bench(options);
  for (const Row& row : bench.rows()) {
    Measured measured;
    if (clock_seconds() - begin > options.budget) {
      measured.missing = "no time was left";
    } else {
      try {
        measured = row.measure();
      } catch (const std::exception& error) {
        measured.missing = error.what();
        good = false;
      }
    }
    print(row, measured, options.toy, json);
  }
  if (json != nullptr) std::fclose(json);
  return good;
}

void print_card() {
  const kernels::GpuInfo info = kernels::gpu_info(0);
  int driver = 0, runtime = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  fmt::print("card {}\nmemory {}\ncapability {}.{}\ndriver_cuda {}\nbuilt_with {}\ncommit {}\n", info.name, info.memory,
             info.major, info.minor, version(driver), version(runtime), kernels::build_info().commit);
}

Options options_of(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--toy" || word == "--card") {
      (word == "--toy" ? options.toy : options.card) = true;
      continue;
    }
    if (i + 1 == count) fail(ExitCode::usage, "gpu_bench: unknown option, or one without its value: {}", word);
    const std::string value = words[++i];
    if (word == "--flash") options.flash = std::stod(value);
    else if (word == "--budget") options.budget = std::stod(value);
    else if (word == "--output") options.output = value;
    else fail(ExitCode::usage, "gpu_bench: unknown option {}", word);
  }
  return options;
}

}  // namespace
}  // namespace capstan::tests

int main(int count, char** words) {
  try {
    const capstan::tests::Options options = capstan::tests::options_of(count, words);
    capstan::kernels::require_device(0);
    if (options.card) return capstan::tests::print_card(), 0;
    return capstan::tests::run(options) ? 0 : 1;
  } catch (const capstan::Error& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
