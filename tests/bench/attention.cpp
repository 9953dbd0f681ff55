// Attention tiles on one thread, in CPU time: GFLOP/s of forward and backward without a score term and with CoPE, and beside them the
// matrix product that bounds both on this machine. Causal FLOP of one head: 4 D T²/2 forward, 10 D T²/2 backward.

#include <benchmark/benchmark.h>

#include <cmath>

#include "kernels/attention_tile.h"
#include "kernels/linear.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

constexpr std::int64_t tokens = 4096, positions = 64, tile = 64;

/// One sequence, one head; with CoPE the gates are about 0.5, so that rows saturate after some 130 tokens.
struct Problem {
  std::int64_t depth;
  bool cope;
  Tensor q, k, v, table, index, document, o, m, l, carry, horizon;
  kernels::AttentionSettings settings;

  Problem(std::int64_t depth_in, bool cope_in) : depth(depth_in), cope(cope_in) {
    const auto random = [](kernels::Shape shape, std::uint64_t seed) {
      return random_tensor(shape, DType::f32, Device::cpu, seed);
    };
    const auto integers = [](kernels::Shape shape) { return Tensor(shape, DType::i64, Device::cpu); };
    q = random({tokens, 1, depth}, 1);
    k = random({tokens, 1, depth}, 2);
    v = random({tokens, 1, depth}, 3);
    o = random({tokens, 1, depth}, 4);
    m = random({tokens, 1}, 5);
    l = random({tokens, 1}, 6);
    index = integers({tokens});
    document = integers({tokens});
    for (std::int64_t t = 0; t < tokens; ++t) index.as<std::int64_t>()[t] = t;
    settings.tile = tile;
    if (!cope) return;
    settings.gates[0].gates = kernels::Gates::tokens;
    table = random({tokens, 1, positions}, 7);
    carry = integers({tokens, 1});
    horizon = integers({tokens / tile, 1});
  }

  kernels::QueryChunk queries() const { return {q, index, index, document, {{table, {}}, {}, {}, {}, {}}}; }
  kernels::KeyChunk keys() const { return {k, v, {}, index, index, document}; }
  void forward() const {
    const kernels::AttentionState state{o, m, l, {carry, {}}, {horizon, {}}};
    attention_begin(state);
    attention_forward(state, queries(), keys(), settings, nullptr);
    attention_finish(state);
  }
};

void set_rate(benchmark::State& state, double flop) {
  state.counters["GFLOP/s"] = benchmark::Counter(flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void attention_forward_rate(benchmark::State& state) {
  const Problem p(state.range(0), state.range(1) != 0);
  for (auto _ : state) p.forward();
  set_rate(state, 4.0 * double(p.depth) * tokens * tokens / 2);
}

void attention_backward_rate(benchmark::State& state) {
  const Problem p(state.range(0), state.range(1) != 0);
  p.forward();
  const Tensor d_o = random_tensor(p.o.shape(), DType::f32, Device::cpu, 9), delta = zeros_like(p.m),
               dq = zeros_like(p.q), dk = zeros_like(p.k), dv = zeros_like(p.v);
  Tensor dtable, carry, gate_grad;
  if (p.cope) {
    dtable = zeros_like(p.table);
    carry = zeros_like(p.carry);
    gate_grad = zeros_like(p.m);
  }
  kernels::attention_delta(delta, d_o, p.o);
  const kernels::AttentionSaved saved{p.m, delta, {p.carry, {}}, {p.horizon, {}}};
  const kernels::AttentionBackwardState back{{carry, {}}, {gate_grad, {}}};
  kernels::AttentionGradients out;
  out.dq = dq;
  out.dk = dk;
  out.dv = dv;
  out.rows.table[0] = dtable;
  for (auto _ : state) {
    kernels::attention_backward_begin(back, saved);
    kernels::attention_backward(out, back, p.queries(), p.keys(), d_o, saved, p.settings);
  }
  set_rate(state, 10.0 * double(p.depth) * tokens * tokens / 2);
}

void matrix_product_rate(benchmark::State& state) {
  constexpr std::int64_t n = 1024;
  const Tensor x = random_tensor({n, n}, DType::f32, Device::cpu, 1),
               w = random_tensor({n, n}, DType::f32, Device::cpu, 2), y = zeros_like(x);
  for (auto _ : state) kernels::linear_forward(y, x, w);
  set_rate(state, 2.0 * n * n * n);
}

void cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"D", "cope"})
      ->ArgsProduct({{8, 64, 128}, {0, 1}})
      ->MeasureProcessCPUTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(matrix_product_rate)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention_forward_rate)->Apply(cases);
BENCHMARK(attention_backward_rate)->Apply(cases);

}  // namespace
}  // namespace capstan::tests
