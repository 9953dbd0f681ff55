#include "tests/kernels/attention_runs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::AttentionGradients;
using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::gated_sums;
using kernels::Gates;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

namespace {

View part(const Tensor& x, std::int64_t begin, std::int64_t end) { return x ? x.view().rows(begin, end) : View(); }

/// Real numbers in the fixed-point unit of a type.
Tensor fixed_point(const Tensor& x, DType type, Device device) {
  std::vector<double> values = values_of(x);
  for (double& value : values) value = std::ldexp(value, kernels::gate_fraction_bits(type));
  return tensor_of(x.shape(), DType::i64, device, values);
}

}  // namespace

std::array<View, gated_sums> views_of(const std::array<Tensor, gated_sums>& tensors) {
  return {tensors[0], tensors[1]};
}

TileInputs::TileInputs(const AttentionProblem& problem, DType type, Device device, bool values_are_gates)
    : gates_(problem.gates), values_are_gates_(values_are_gates) {
  const auto narrow = [&](const Tensor& x) { return x ? converted(x, type, device) : Tensor(); };
  const auto cast = [&](const Tensor& x) { return x ? converted(x, kernels::wide(type), device) : Tensor(); };
  const std::int64_t tokens = problem.q.shape()[0];
  q_ = narrow(problem.q);
  k_ = narrow(problem.k);
  v_ = narrow(problem.v);
  z_ = cast(problem.z);
  table_ = cast(problem.table);
  d_o_ = narrow(problem.d_o);
  terms_ = problem.terms.map(cast);
  terms_.gate_q[0] = narrow(problem.terms.gate_q[0]);
  terms_.gate_k[0] = narrow(problem.terms.gate_k[0]);
  index_ = index_rows(0, tokens, device);
  document_ = document_rows(problem.document, 0, tokens, device);
  position_ = document_rows(problem.position, 0, tokens, device);
  if (!problem.terms.row_offset) return;
  row_offset_ = fixed_point(problem.terms.row_offset, kernels::wide(type), device);
  key_offset_ = fixed_point(problem.terms.key_offset, kernels::wide(type), device);
}

View TileInputs::gate_keys(int which) const { return values_are_gates_ && which == 0 ? v_ : terms_.gate_k[which]; }

QueryChunk TileInputs::queries(std::int64_t begin, std::int64_t end) const {
  const auto cut = [&](const Tensor& x) { return part(x, begin, end); };
  return {cut(q_),
          cut(index_),
          cut(position_),
          cut(document_),
          {{cut(table_), cut(terms_.table_1)},
           {cut(terms_.gate_q[0]), cut(terms_.gate_q[1])},
           cut(row_offset_),
           cut(terms_.offset_table),
           cut(terms_.relative)}};
}

KeyChunk TileInputs::keys(std::int64_t begin, std::int64_t end) const {
  const auto cut = [&](const Tensor& x) { return part(x, begin, end); };
  KeyChunk keys{cut(k_), cut(v_), cut(z_), cut(index_), cut(position_), cut(document_)};
  keys.terms.offset = cut(key_offset_);
  for (int w = 0; w < gated_sums; ++w) {
    const View gate_k = gate_keys(w);
    const std::int64_t step = gates_[w].gates == Gates::block_ends ? gates_[w].block : 1;
    if (gate_k) keys.terms.gate_k[w] = gate_k.rows(begin / step, (end + step - 1) / step);
  }
  return keys;
}

AttentionSettings TileInputs::settings(const AttentionSettings& wish) const {
  AttentionSettings settings = wish;
  settings.shared = {terms_.slope,
                     terms_.distance_table,
                     {terms_.fire_in, terms_.fire_in_bias, terms_.fire_out, terms_.fire_out_bias, terms_.fire_scale}};
  return settings;
}

AttentionGradients TileInputs::gradients(const TileRun& run, std::int64_t begin, std::int64_t end, bool frozen) const {
  const auto cut = [&](const Tensor& x) { return part(x, begin, end); };
  const TermTensors& d = run.d_terms;
  AttentionGradients out;
  out.dq = run.dq;
  out.dk = cut(run.dk);
  out.dv = cut(run.dv);
  if (frozen) return out;
  out.dz = cut(run.dz);
  out.rows = {{run.dtable, d.table_1}, {d.gate_q[0], d.gate_q[1]}, d.row_offset, d.offset_table, d.relative};
  out.keys.offset = cut(d.key_offset);
  for (int w = 0; w < gated_sums; ++w) {
    const View d_gate = values_are_gates_ && w == 0 ? run.dv : d.gate_k[w];
    const std::int64_t step = gates_[w].gates == Gates::block_ends ? gates_[w].block : 1;
    if (d_gate) out.keys.gate_k[w] = d_gate.rows(begin / step, (end + step - 1) / step);
  }
  out.shared.distance_table = d.distance_table;
  out.shared.fire = {d.fire_in, d.fire_in_bias, d.fire_out, d.fire_out_bias, d.fire_scale};
  return out;
}

std::array<Tensor, gated_sums> TileInputs::per_sum(Shape shape, DType type) const {
  std::array<Tensor, gated_sums> tensors;
  for (int w = 0; w < gated_sums; ++w)
    if (gates_[w].gates != Gates::none) tensors[w] = Tensor(shape, type, q_.view().device());
  return tensors;
}

TileRun TileInputs::empty_run(std::int64_t begin, std::int64_t end, std::int64_t tile) const {
  const std::int64_t rows = end - begin, heads = q_.shape()[1];
  const DType type = kernels::wide(q_.view().type());
  const auto zeros = [=](const View& x) { return Tensor(x.shape(), type, x.device()); };
  TileRun run;
  run.o = Tensor({rows, heads, d_o_.shape()[2]}, type, q_.view().device());
  run.lse = Tensor({rows, heads}, type, q_.view().device());
  run.carry = per_sum({rows, heads}, DType::i64);
  run.carry_left = per_sum({rows, heads}, DType::i64);
  run.gate_grad = per_sum({rows, heads}, type);
  run.horizon = per_sum({(rows + tile - 1) / tile, heads}, DType::i64);
  const auto rows_like = [&](const Tensor& x) { return x ? zeros(part(x, begin, end)) : Tensor(); };
  run.dq = rows_like(q_);
  run.dk = zeros(k_);
  run.dv = zeros(v_);
  if (z_) run.dz = zeros_like(z_);
  run.dtable = rows_like(table_);
  run.d_terms = terms_.map([&](const Tensor& x) { return zeros(x); });
  TermTensors& d = run.d_terms;
  for (Tensor* x : {&d.table_1, &d.gate_q[0], &d.gate_q[1], &d.row_offset, &d.offset_table, &d.relative})
    if (*x) *x = zeros(part(*x, begin, end));
  d.slope = Tensor();
  return run;
}

AttentionSettings settings_for(const AttentionProblem& problem, std::int64_t tile) {
  AttentionSettings settings;
  settings.tile = tile;
  settings.gates = problem.gates;
  settings.dropout = problem.dropout;
  return settings;
}

TileRun run_tiles(const AttentionProblem& problem, DType type, Device device, const AttentionSettings& wish,
                  const TileCuts& cuts, const TileKernels& tile_kernels) {
  const TileInputs inputs(problem, type, device, cuts.values_are_gates);
  const AttentionSettings settings = inputs.settings(wish);
  const std::int64_t tokens = problem.q.shape()[0], begin = cuts.query_begin,
                     end = cuts.query_end < 0 ? tokens : cuts.query_end;
  TileRun run = inputs.empty_run(begin, end, std::max<std::int64_t>(1, settings.tile));
  std::vector<std::int64_t> edges{0};
  edges.insert(edges.end(), cuts.key_edges.begin(), cuts.key_edges.end());
  edges.push_back(tokens);
  const QueryChunk queries = inputs.queries(begin, end);
  const Tensor l = zeros_like(run.lse), delta = zeros_like(run.lse);
  const kernels::AttentionState state{run.o, run.lse, l, views_of(run.carry), views_of(run.horizon)};
  attention_begin(state);
  for (std::size_t c = edges.size() - 1; c-- > 0;)
    tile_kernels.forward(state, queries, inputs.keys(edges[c], edges[c + 1]), settings, &run.stats);
  attention_finish(state);

  const View d_rows = part(inputs.d_o(), begin, end);
  const kernels::AttentionSaved saved{run.lse, delta, views_of(run.carry), views_of(run.horizon)};
  const kernels::AttentionBackwardState back{views_of(run.carry_left), views_of(run.gate_grad)};
  // Of o before it is rounded to bf16, so that all that follows is f32 arithmetic on given numbers.
  kernels::attention_delta(delta, converted(d_rows, kernels::wide(type), device), run.o);
  kernels::attention_backward_begin(back, saved);
  for (std::size_t c = 0; c + 1 < edges.size(); ++c)
    tile_kernels.backward(inputs.gradients(run, edges[c], edges[c + 1], cuts.frozen), back, queries,
                          inputs.keys(edges[c], edges[c + 1]), d_rows, saved, settings);
  return run;
}

std::vector<std::pair<std::string, View>> arrays_of(const TileRun& run) {
  std::vector<std::pair<std::string, View>> arrays;
  const auto add = [&](const char* name, const Tensor& x) {
    if (x) arrays.emplace_back(name, x);
  };
  add("o", run.o);
  add("lse", run.lse);
  for (int w = 0; w < gated_sums; ++w) {
    add("carry", run.carry[w]);
    add("horizon", run.horizon[w]);
    add("carry left", run.carry_left[w]);
    add("gate_grad", run.gate_grad[w]);
  }
  add("dq", run.dq);
  add("dk", run.dk);
  add("dv", run.dv);
  add("dz", run.dz);
  add("dtable", run.dtable);
  for (const auto& [name, gradient] : run.d_terms.all()) add(name, *gradient);
  return arrays;
}

void expect_same_run(const TileRun& a, const TileRun& b) {
  const auto of_a = arrays_of(a), of_b = arrays_of(b);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t n = 0; n < of_a.size(); ++n) EXPECT_TRUE(same_bits(of_a[n].second, of_b[n].second)) << of_a[n].first;
  EXPECT_EQ(a.stats.gate_sum, b.stats.gate_sum);
  EXPECT_EQ(a.stats.gates, b.stats.gates);
  EXPECT_EQ(a.stats.tiles, b.stats.tiles);
  EXPECT_EQ(a.stats.saturated_tiles, b.stats.saturated_tiles);
}

Tensor gentle_table(const Tensor& table) {
  Tensor gentle = table.clone();
  const std::int64_t npos = table.shape()[2];
  for (std::int64_t at = 0; at < table.view().elements(); at += npos)
    for (std::int64_t n = 1; n < npos; ++n)
      gentle.as<double>()[at + n] =
          float(table.as<double>()[at] + 0.2 * table.as<double>()[at + 1] * double(n) / double(npos));
  return gentle;
}

AttentionProblem rounded_to_bf16(const AttentionProblem& problem) {
  AttentionProblem copy = problem.cast(DType::f64);
  const auto round = [](Tensor& x) {
    if (x) x = converted(converted(x, DType::bf16, Device::cpu), DType::f64, Device::ref);
  };
  for (Tensor* x : {&copy.q, &copy.k, &copy.v, &copy.d_o, &copy.terms.gate_q[0], &copy.terms.gate_k[0]}) round(*x);
  return copy;
}

void for_each_result(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients,
                     const std::function<void(const char*, const Tensor&, const Tensor&)>& body) {
  body("o", run.o, outputs.o);
  body("lse", run.lse, outputs.lse);
  body("dq", run.dq, gradients.dq);
  body("dk", run.dk, gradients.dk);
  body("dv", run.dv, gradients.dv);
  if (run.dz) body("dz", run.dz, gradients.dz);
  if (run.dtable) body("dtable", run.dtable, gradients.dtable);
  const auto got = run.d_terms.all(), expected = gradients.terms.all();
  for (std::size_t n = 0; n < got.size(); ++n)
    if (*got[n].second) body(got[n].first, *got[n].second, *expected[n].second);
}

bool vanishes(const Tensor& gradient) {
  for (double value : values_of(gradient))
    if (!(std::abs(value) < 1e-12)) return false;
  return true;
}

Worst worst_error(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients) {
  Worst worst;
  for_each_result(run, outputs, gradients, [&](const char* name, const Tensor& got, const Tensor& expected) {
    const double error = vanishes(expected) ? relative_error(got, zeros_like(got)) : relative_error(got, expected);
    if (!(error <= worst.error)) worst = {error, name};
  });
  return worst;
}

}  // namespace capstan::tests
