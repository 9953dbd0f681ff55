#include "tests/kernels/attention_runs.h"

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::TermKind;
using kernels::View;

AttentionSettings settings_for(const AttentionProblem& problem, std::int64_t tile) {
  return {problem.table ? TermKind::cope : TermKind::none, tile, true};
}

TileRun run_tiles(const AttentionProblem& problem, DType type, Device device, const AttentionSettings& settings,
                  const TileCuts& cuts) {
  const auto cast = [&](const Tensor& x) { return x ? converted(x, type, device) : Tensor(); };
  const Tensor q = cast(problem.q), k = cast(problem.k), v = cast(problem.v), z = cast(problem.z),
               table = cast(problem.table);
  const Tensor d_o = cast(problem.d_o);
  const std::int64_t tokens = q.shape()[0], begin = cuts.query_begin,
                     end = cuts.query_end < 0 ? tokens : cuts.query_end;
  const std::int64_t rows = end - begin, heads = q.shape()[1], columns = d_o.shape()[2];
  const Tensor index = index_rows(0, tokens, device), document = document_rows(problem.document, 0, tokens, device);
  const auto part = [](const Tensor& x, std::int64_t from, std::int64_t to) {
    return x ? x.view().rows(from, to) : View();
  };

  TileRun run;
  run.o = Tensor({rows, heads, columns}, type, device);
  run.lse = Tensor({rows, heads}, type, device);
  const Tensor l = zeros_like(run.lse), delta = zeros_like(run.lse);
  Tensor gate_grad;
  if (table) {
    run.carry = Tensor({rows, heads}, DType::i64, device);
    run.horizon = Tensor({(rows + settings.tile - 1) / settings.tile, heads}, DType::i64, device);
    run.horizon_carry = zeros_like(run.carry);
    run.carry_left = zeros_like(run.carry);
    gate_grad = zeros_like(run.lse);
    run.dtable = zeros_like(part(table, begin, end));
  }
  run.dq = zeros_like(part(q, begin, end));
  run.dk = zeros_like(k);
  run.dv = zeros_like(v);
  if (z) run.dz = zeros_like(z);

  std::vector<std::int64_t> edges{0};
  edges.insert(edges.end(), cuts.key_edges.begin(), cuts.key_edges.end());
  edges.push_back(tokens);
  const auto keys = [&](std::size_t c) {
    const auto cut = [&](const Tensor& x) { return part(x, edges[c], edges[c + 1]); };
    return KeyChunk{cut(k), cut(v), cut(z), cut(index), cut(document)};
  };
  const QueryChunk queries{part(q, begin, end), part(table, begin, end), part(index, begin, end),
                           part(document, begin, end)};
  const kernels::AttentionState state{run.o, run.lse, l, run.carry, run.horizon, run.horizon_carry};
  attention_begin(state);
  for (std::size_t c = edges.size() - 1; c-- > 0;) attention_forward(state, queries, keys(c), settings, &run.stats);
  attention_finish(state);

  const View d_rows = part(d_o, begin, end);
  const kernels::AttentionSaved saved{run.lse, delta, run.horizon, run.horizon_carry};
  const kernels::AttentionBackwardState back{run.carry_left, gate_grad};
  kernels::attention_delta(delta, d_rows, run.o);
  kernels::attention_backward_begin(back, saved);
  for (std::size_t c = 0; c + 1 < edges.size(); ++c) {
    const auto cut = [&](const Tensor& x) { return part(x, edges[c], edges[c + 1]); };
    attention_backward({run.dq, run.dtable, cut(run.dk), cut(run.dv), cut(run.dz)}, back, queries, keys(c), d_rows,
                       saved, settings);
  }
  return run;
}

Worst worst_error(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients) {
  Worst worst;
  const auto look = [&](const char* name, const Tensor& got, const Tensor& expected) {
    if (!expected) return;
    const double error = relative_error(got, expected);
    if (!(error <= worst.error)) worst = {error, name};
  };
  look("o", run.o, outputs.o);
  look("lse", run.lse, outputs.lse);
  look("dq", run.dq, gradients.dq);
  look("dk", run.dk, gradients.dk);
  look("dv", run.dv, gradients.dv);
  look("dz", run.dz, gradients.dz);
  // With one column each row's gradient is Σ_j dlogit_j = 0: there is only rounding to compare.
  if (run.dtable && run.dtable.shape()[2] > 1) look("dtable", run.dtable, gradients.dtable);
  return worst;
}

}  // namespace capstan::tests
