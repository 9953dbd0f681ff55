// Attention tiles on one thread, one sequence and one head. Each benchmark runs forward and backward in turn with what it is held
// against, plain attention or the matrix product that bounds it, and reports the best CPU seconds of each and their ratio. Causal FLOP of one head: 4 D N²/2 forward, 10 D N²/2 backward (TAPE: 6 and 14).
//
//   product of 2048 x 2048 matrices       2 n³ FLOP, in turn with attention_plain
//   attention_plain/D/N                   no term
//   attention_cope_unsaturated/D/N        CoPE, gates so small that no row reaches the table's end
//   attention_cope_half/D/N               gates about 0.5: most tiles are saturated
//   attention_cope_rare/D/N               gates about σ(-6)
//   attention_hierarchical/D/N            H-B, blocks of 256
//   attention_tape/D/N                    values twice as wide
//   …_bf16                                the same, inputs stored in bf16, arithmetic as the machine has it
//   …_amx, product_bf16/n/threads:2       the same on the tile unit; skipped where there is none. No number was ever taken: the
//                                         machine that this was written on has none.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>
#include <string>

#include "kernels/amx.h"
#include "kernels/attention_tile.h"
#include "kernels/linear.h"
#include "kernels/threads.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::Tensor;

constexpr std::int64_t positions = 64, tile = 64, block = 256;

enum class Kind { plain, cope_unsaturated, cope_half, cope_rare, hierarchical, tape };

bool has_gates(Kind kind) { return kind != Kind::plain && kind != Kind::tape; }

/// Mean of the gates' logits. Unsaturated: N gates sum to about 26 (the mean of e^x is e^½ for normal x).
double gate_mean(Kind kind, std::int64_t tokens) {
  if (kind == Kind::cope_unsaturated) return -std::log(double(tokens) / 16);
  return kind == Kind::cope_rare ? -6 : 0;
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

Tensor cast(const Tensor& x, DType type) { return converted(x, type, Device::cpu); }

/// One sequence, one head.
struct Problem {
  Kind kind;
  std::int64_t depth, tokens;
  kernels::AttentionSettings settings;
  kernels::AttentionStats stats;
  Tensor q, k, v, z, index, document, block_keys, d_o;
  std::array<Tensor, kernels::gated_sums> table, dtable, carry, horizon, carry_back, gate_grad;
  Tensor narrow_o;  ///< o as attention_delta reads it beside bf16
  Tensor o, m, l, delta, dq, dk, dv, dz, d_block_keys;

  Problem(Kind kind_in, std::int64_t depth_in, std::int64_t tokens_in, DType type)
      : kind(kind_in), depth(depth_in), tokens(tokens_in) {
    make_inputs(type);
    const std::int64_t columns = kind == Kind::tape ? 2 * depth : depth;
    o = Tensor({tokens, 1, columns}, DType::f32, Device::cpu);
    d_o = cast(random(o.shape(), 9), type);
    for (Tensor* x : {&m, &l, &delta}) *x = Tensor({tokens, 1}, DType::f32, Device::cpu);
    for (Tensor* x : {&dq, &dk, &dv}) *x = Tensor(q.shape(), DType::f32, Device::cpu);
    if (z) dz = zeros_like(z);
    settings.tile = tile;
    if (!has_gates(kind)) return;
    add_sum(0, {Gates::tokens});
    if (kind != Kind::hierarchical) return;
    add_sum(0, {Gates::tokens, 0, block, 1});
    add_sum(1, {Gates::block_ends, 0, block, 1});
    block_keys = cast(random({tokens / block, 1, depth}, 5), type);
    d_block_keys = Tensor(block_keys.shape(), DType::f32, Device::cpu);
  }

  static Tensor random(kernels::Shape shape, std::uint64_t seed) {
    return random_tensor(shape, DType::f32, Device::cpu, seed);
  }

  /// The first coordinate of q and k gives all logits the same mean.
  void make_inputs(DType type) {
    q = random({tokens, 1, depth}, 1);
    k = random({tokens, 1, depth}, 2);
    v = cast(random({tokens, 1, depth}, 3), type);
    if (kind == Kind::tape) z = random({tokens, 1, depth}, 4);
    const double mean = gate_mean(kind, tokens), root = std::sqrt(std::abs(mean) * std::sqrt(double(depth)));
    for (std::int64_t t = 0; mean != 0 && t < tokens; ++t) {
      q.as<float>()[t * depth] = float(root);
      k.as<float>()[t * depth] = float(-root);
    }
    q = cast(q, type);
    k = cast(k, type);
    index = Tensor({tokens}, DType::i64, Device::cpu);
    document = zeros_like(index);
    for (std::int64_t t = 0; t < tokens; ++t) index.as<std::int64_t>()[t] = t;
  }

  void add_sum(int which, const kernels::GateRule& rule) {
    settings.gates[which] = rule;
    table[which] = random({tokens, 1, positions}, std::uint64_t(7 + which));
    dtable[which] = zeros_like(table[which]);
    carry[which] = Tensor({tokens, 1}, DType::i64, Device::cpu);
    carry_back[which] = zeros_like(carry[which]);
    horizon[which] = Tensor({(tokens + tile - 1) / tile, 1}, DType::i64, Device::cpu);
    gate_grad[which] = zeros_like(m);
  }

  static std::array<kernels::View, kernels::gated_sums> views(const std::array<Tensor, kernels::gated_sums>& x) {
    return {x[0], x[1]};
  }
  kernels::QueryChunk queries() const { return {q, index, index, document, {views(table), {}, {}, {}, {}}}; }
  static kernels::KeyTerms key_terms(const kernels::View& blocks) {
    kernels::KeyTerms terms;
    terms.gate_k[1] = blocks;
    return terms;
  }
  kernels::KeyChunk keys() const { return {k, v, z, index, index, document, key_terms(block_keys)}; }

  void forward() {
    const kernels::AttentionState state{o, m, l, views(carry), views(horizon)};
    stats = {};
    attention_begin(state);
    attention_forward(state, queries(), keys(), settings, &stats);
    attention_finish(state);
  }
  void backward() {
    const kernels::AttentionSaved saved{m, delta, views(carry), views(horizon)};
    const kernels::AttentionBackwardState state{views(carry_back), views(gate_grad)};
    const kernels::AttentionGradients out{dq, {views(dtable), {}, {}, {}, {}}, dk, dv, dz, key_terms(d_block_keys), {}};
    kernels::attention_delta(delta, d_o, cast_output());
    kernels::attention_backward_begin(state, saved);
    attention_backward(out, state, queries(), keys(), d_o, saved, settings);
  }
  kernels::View cast_output() {
    if (d_o.view().type() == DType::f32) return o;
    if (!narrow_o) narrow_o = cast(o, DType::bf16);
    return narrow_o;
  }
};

/// True if there is none, with a line in the report.
bool skipped_without_tile_unit(benchmark::State& state) {
  if (kernels::has_amx()) return false;
  state.SkipWithError("this machine has no tile unit for bf16 (AMX)");
  return true;
}

/// Least CPU seconds so far.
struct Best {
  double forward = std::numeric_limits<double>::infinity(), backward = forward;
  void run(Problem& p) {
    const double begin = thread_seconds();
    p.forward();
    const double middle = thread_seconds();
    p.backward();
    forward = std::min(forward, middle - begin);
    backward = std::min(backward, thread_seconds() - middle);
  }
  double both() const { return forward + backward; }
};

/// y += xᵀ w of n x n matrices: the product without linear_forward's promise about rows, which costs a third where oneDNN has no
/// kernel that keeps it by itself.
class Product {
 public:
  explicit Product(std::int64_t n)
      : n_(double(n)), x_(random_tensor({n, n}, DType::f32, Device::cpu, 1)),
        w_(random_tensor({n, n}, DType::f32, Device::cpu, 2)), y_(zeros_like(x_)) {}
  void run() {
    const double begin = thread_seconds();
    kernels::linear_backward_weight(y_, x_, w_);
    best_ = std::min(best_, thread_seconds() - begin);
  }
  double giga() const { return 2e-9 * n_ * n_ * n_ / best_; }

 private:
  double n_, best_ = std::numeric_limits<double>::infinity();
  Tensor x_, w_, y_;
};

/// In turn with what the row is held against: the same without a term, or, where it has none, the product.
void attention(benchmark::State& state, Kind kind, DType type, bool on_tile_unit) {
  if (on_tile_unit && skipped_without_tile_unit(state)) return;
  Problem p(kind, state.range(0), state.range(1), type);
  std::optional<Problem> plain;
  if (kind != Kind::plain) plain.emplace(Kind::plain, state.range(0), state.range(1), type);
  Product product(2048);
  Best own, beside;
  for (auto _ : state) {
    own.run(p);
    if (plain) beside.run(*plain);
    else product.run();
  }
  if (kind == Kind::cope_unsaturated && p.stats.saturated_tiles > 0) state.SkipWithError("some tiles are saturated");
  const double pairs = double(p.tokens) * double(p.tokens) / 2, giga = 1e-9 * double(p.depth) * pairs;
  const double rate = (kind == Kind::tape ? 20 : 14) * giga / own.both();
  state.counters["forward_s"] = own.forward;
  state.counters["backward_s"] = own.backward;
  state.counters["both_s"] = own.both();
  state.counters["GFLOP/s"] = rate;
  state.counters["forward_GFLOP/s"] = (kind == Kind::tape ? 6 : 4) * giga / own.forward;
  state.counters["saturated"] = double(p.stats.saturated_tiles) / double(p.stats.tiles);
  if (plain) {
    state.counters["over_plain"] = own.both() / beside.both();
    state.counters["forward_over_plain"] = own.forward / beside.forward;
  } else {
    state.counters["product_GFLOP/s"] = product.giga();
    state.counters["of_product"] = rate / product.giga();
  }
}

/// On two threads: half its rate in wall time is what one thread's attention is held against.
void product_bf16(benchmark::State& state) {
  if (skipped_without_tile_unit(state)) return;
  const std::int64_t n = state.range(0);
  const auto random = [n](std::uint64_t seed) { return random_tensor({n, n}, DType::bf16, Device::cpu, seed); };
  const Tensor x = random(1), w = random(2), y = zeros_like(x);
  kernels::set_threads(int(state.range(1)));
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    kernels::linear_forward(y, x, w);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  kernels::set_threads(1);
  state.counters["half_GFLOP/s"] = 1e-9 * double(n) * double(n) * double(n) / best;
}

BENCHMARK(product_bf16)->ArgNames({"n", "threads"})->Args({2048, 2})->Iterations(8)->Unit(benchmark::kMillisecond);

/// Lengths: the middle one three times, for the best; long ones once.
void add(const std::string& name, Kind kind, DType type, std::initializer_list<std::int64_t> depths,
         std::initializer_list<std::int64_t> lengths, bool on_tile_unit = false) {
  for (std::int64_t depth : depths)
    for (std::int64_t length : lengths)
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { attention(state, kind, type, on_tile_unit); })
          ->ArgNames({"D", "N"})
          ->Args({depth, length})
          ->Iterations(length <= 8192    ? 4
                       : length <= 16384 ? 3
                       : length <= 32768 ? 2
                                         : 1)
          ->Unit(benchmark::kMillisecond);
}

const bool added = [] {
  add("attention_plain", Kind::plain, DType::f32, {128, 64}, {8192});
  add("attention_cope_unsaturated", Kind::cope_unsaturated, DType::f32, {128, 64}, {8192});
  add("attention_tape", Kind::tape, DType::f32, {128, 64}, {8192});
  add("attention_plain_bf16", Kind::plain, DType::bf16, {128, 64}, {8192});
  add("attention_cope_unsaturated_bf16", Kind::cope_unsaturated, DType::bf16, {128, 64}, {8192});
  add("attention_plain_amx", Kind::plain, DType::bf16, {128}, {8192}, true);
  add("attention_cope_unsaturated_amx", Kind::cope_unsaturated, DType::bf16, {128}, {8192}, true);
  add("attention_cope_half", Kind::cope_half, DType::f32, {64}, {4096, 16384, 32768});
  add("attention_cope_half_bf16", Kind::cope_half, DType::bf16, {64}, {4096});
  add("attention_cope_rare", Kind::cope_rare, DType::f32, {64}, {16384, 32768});
  add("attention_hierarchical", Kind::hierarchical, DType::f32, {64}, {16384, 65536});
  return true;
}();

}  // namespace
}  // namespace capstan::tests
