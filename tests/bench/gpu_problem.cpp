#include "tests/bench/gpu_problem.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::Tensor;
using kernels::View;

namespace {

constexpr std::int64_t positions = 64, block = 256;

std::array<View, kernels::gated_sums> views(const std::array<Tensor, kernels::gated_sums>& x) { return {x[0], x[1]}; }

Tensor gpu(const kernels::Shape& shape, DType type) { return Tensor(shape, type, Device::cuda); }

/// [tokens, …]: the rows of `some` again and again.
Tensor repeated(const Tensor& some, std::int64_t tokens) {
  std::vector<std::int64_t> extents{tokens};
  for (int axis = 1; axis < some.shape().rank(); ++axis) extents.push_back(some.shape()[axis]);
  Tensor all(kernels::Shape(extents), some.view().type(), Device::cuda, kernels::Fill::none);
  for (std::int64_t begin = 0; begin < tokens; begin += some.shape()[0]) {
    const std::int64_t count = std::min(some.shape()[0], tokens - begin);
    all.view().rows(begin, begin + count).copy_from(some.view().rows(0, count));
  }
  return all;
}

/// Mean of the gates' logits. Unsaturated: all gates of the last row sum to about 26 (the mean of e^x is e^½ for normal x).
double gate_mean(Kind kind, std::int64_t tokens) {
  return kind == Kind::cope_unsaturated ? -std::log(double(tokens) / 16) : 0;
}

/// Random rows whose first coordinate is `first` where that is not 0.
Tensor rows_with_first(std::int64_t tokens, std::int64_t heads, std::int64_t depth, std::uint64_t seed, double first) {
  const std::int64_t some = std::min(tokens, distinct_rows);
  Tensor host = random_tensor({some, heads, depth}, DType::f32, Device::cpu, seed);
  for (std::int64_t row = 0; first != 0 && row < some * heads; ++row) host.as<float>()[row * depth] = float(first);
  return repeated(converted(host, DType::bf16, Device::cpu), tokens);
}

}  // namespace

Tensor gpu_random(std::int64_t tokens, std::int64_t heads, std::int64_t depth, DType type, std::uint64_t seed) {
  const std::int64_t some = std::min(tokens, distinct_rows);
  return repeated(random_tensor({some, heads, depth}, type, Device::cpu, seed), tokens);
}

Tensor gpu_index(std::int64_t tokens) {
  const Tensor host({tokens}, DType::i64, Device::cpu);
  for (std::int64_t t = 0; t < tokens; ++t) host.as<std::int64_t>()[t] = t;
  return on_device(host, Device::cuda);
}

GpuProblem::GpuProblem(Kind kind_in, std::int64_t tokens_in, std::int64_t heads_in, std::int64_t depth_in)
    : kind(kind_in), tokens(tokens_in), heads(heads_in), depth(depth_in) {
  const double mean = gate_mean(kind, tokens), root = std::sqrt(std::abs(mean) * std::sqrt(double(depth)));
  q = rows_with_first(tokens, heads, depth, 1, root);
  k = rows_with_first(tokens, heads, depth, 2, -root);
  v = gpu_random(tokens, heads, depth, DType::bf16, 3);
  if (kind == Kind::tape) z = gpu_random(tokens, heads, depth, DType::f32, 4);
  index = gpu_index(tokens);
  document = gpu({tokens}, DType::i64);
  const std::int64_t columns = kind == Kind::tape ? 2 * depth : depth;
  o = gpu({tokens, heads, columns}, DType::f32);
  d_o = gpu_random(tokens, heads, columns, DType::bf16, 9);
  narrow_o = empty_like(d_o);
  for (Tensor* x : {&m, &l, &delta}) *x = gpu({tokens, heads}, DType::f32);
  for (Tensor* x : {&dq, &dk, &dv}) *x = gpu(q.shape(), DType::f32);
  if (z) dz = zeros_like(z);
  if (kind == Kind::plain || kind == Kind::tape) return;
  add_sum(0, {Gates::tokens});
  if (kind != Kind::hierarchical) return;
  add_sum(0, {Gates::tokens, 0, block, 1});
  add_sum(1, {Gates::block_ends, 0, block, 1});
  const std::int64_t blocks = (tokens + block - 1) / block;
  block_keys = gpu_random(blocks, heads, depth, DType::bf16, 5);
  d_block_keys = gpu(block_keys.shape(), DType::f32);
}

void GpuProblem::add_sum(int which, const kernels::GateRule& rule) {
  settings.gates[which] = rule;
  table[which] = gpu_random(tokens, heads, positions, DType::f32, std::uint64_t(7 + which));
  dtable[which] = zeros_like(table[which]);
  carry[which] = gpu({tokens, heads}, DType::i64);
  carry_back[which] = zeros_like(carry[which]);
  horizon[which] = gpu({(tokens + settings.tile - 1) / settings.tile, heads}, DType::i64);
  gate_grad[which] = zeros_like(m);
}

kernels::QueryChunk GpuProblem::queries() const { return {q, index, index, document, {views(table), {}, {}, {}, {}}}; }

kernels::KeyChunk GpuProblem::keys() const {
  kernels::KeyChunk chunk{k, v, z, index, index, document, {}};
  chunk.terms.gate_k[1] = block_keys;
  return chunk;
}

kernels::AttentionState GpuProblem::state() const { return {o, m, l, views(carry), views(horizon)}; }

void GpuProblem::forward() {
  attention_begin(state());
  attention_forward(state(), queries(), keys(), settings, nullptr);
  attention_finish(state());
}

void GpuProblem::backward() {
  const kernels::AttentionSaved saved{m, delta, views(carry), views(horizon)};
  const kernels::AttentionBackwardState back{views(carry_back), views(gate_grad)};
  kernels::AttentionGradients out{dq, {views(dtable), {}, {}, {}, {}}, dk, dv, dz, {}, {}};
  out.keys.gate_k[1] = d_block_keys;
  kernels::convert(narrow_o, o);
  attention_delta(delta, d_o, narrow_o);
  attention_backward_begin(back, saved);
  attention_backward(out, back, queries(), keys(), d_o, saved, settings);
}

double GpuProblem::forward_flop() const {
  const double pairs = double(tokens) * double(tokens) / 2 * double(heads);
  return (kind == Kind::tape ? 6 : 4) * double(depth) * pairs;
}

double GpuProblem::saturated() {
  kernels::AttentionStats stats;
  attention_begin(state());
  attention_forward(state(), queries(), keys(), settings, &stats);
  attention_finish(state());
  return double(stats.saturated_tiles) / double(std::max<std::int64_t>(1, stats.tiles));
}

}  // namespace capstan::tests
