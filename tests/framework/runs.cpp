#include "tests/framework/runs.h"

#include <algorithm>
#include <cmath>

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

namespace {

double norm_of(const Numbers& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

double distance(const Numbers& a, const Numbers& b) {
  CAPSTAN_CHECK(a.size() == b.size(), "{} numbers against {}", a.size(), b.size());
  Numbers difference(a.size());
  for (std::size_t at = 0; at < a.size(); ++at) difference[at] = a[at] - b[at];
  return norm_of(difference);
}

}  // namespace

double relative_difference(const Numbers& got, const Numbers& expected) {
  const double norm = norm_of(expected);
  return distance(got, expected) / (norm > 0 ? norm : 1);
}

NamedDifference worst_difference(const NamedNumbers& got, const NamedNumbers& expected) {
  double largest = 0;
  for (const auto& [name, numbers] : expected) largest = std::max(largest, norm_of(numbers));
  NamedDifference worst;
  for (const auto& [name, numbers] : expected) {
    const auto found = got.find(name);
    if (found == got.end()) continue;
    const double difference = distance(found->second, numbers) / std::max(norm_of(numbers), largest / 1000);
    if (!(difference <= worst.difference)) worst = {difference, name};
  }
  return worst;
}

std::vector<std::string> unequal_names(const NamedNumbers& got, const NamedNumbers& expected) {
  std::vector<std::string> names;
  for (const auto& [name, numbers] : expected)
    if (const auto found = got.find(name); found != got.end() && found->second != numbers) names.push_back(name);
  return names;
}

std::vector<framework::GridConfig> ordered_grids(int ranks) {
  std::vector<framework::GridConfig> grids;
  const auto add = [&](const char* schedule, std::int64_t heads) {
    grids.emplace_back();
    grids.back().schedule = schedule;
    grids.back().heads = heads;
  };
  for (const char* schedule : {"contiguous", "ordered_pull", "allgather", "pass_q"}) add(schedule, 0);
  if (ranks == 2) add("ulysses", 0);
  if (ranks == 4 || ranks == 8) add("ulysses", 2);
  return grids;
}

Numbers gathered(const parallel::Ring& ring, const View& local, std::int64_t sequences, std::int64_t columns) {
  const Tensor all({sequences, ring.layout.length(), columns}, DType::f64, Device::ref);
  const Numbers mine = values_of(local);
  const std::vector<std::int64_t> index = ring.layout.local_index(ring.comm.rank());
  auto row = mine.begin();
  for (std::int64_t b = 0; b < sequences; ++b)
    for (const std::int64_t t : index) {
      std::copy_n(row, columns, all.view()[b][t].as<double>());
      row += columns;
    }
  ring.comm.all_reduce(all);  // the others add exact zeros
  return values_of(all);
}

std::int64_t row_of_token(const framework::Batch& batch, std::int64_t t) {
  const auto* index = batch.index.as<std::int64_t>();
  const auto* end = index + batch.index.view().elements();
  const auto* found = std::find(index, end, t);
  return found == end ? -1 : found - index;
}

// ---- model ----------------------------------------------------------------------------------------------------------

double ModelResult::loss() const {
  double sum = 0;
  for (const double value : nll) sum += value;
  return sum;
}

ModelResult run_model(parallel::Communicator& comm, const ModelRun& run) {
  const auto model = tiny_model(run.shape);
  run.set_model(*model);
  const parallel::Ring ring = model->make_ring(comm, run.length, run.shape.tile, run.grid);
  framework::Batch batch = tiny_batch(ring.layout, comm.rank(), run.shape, run.sequences, run.documents);
  run.set_batch(batch);

  ModelResult result;
  model->parameters().gradients().fill_zero();
  framework::Pass pass = model->forward(ring, batch, run.shape.tile, run.keep);
  result.nll = gathered(ring, pass.nll, run.sequences, 1);
  for (const framework::BlockSaved& block : pass.blocks)
    if (block.z)
      result.states.push_back(gathered(ring, block.z, run.sequences, block.z.shape()[1] * block.z.shape()[2]));
  if (!run.backward) return result;
  const Tensor d_input = model->backward(batch, pass);
  result.input_gradient = gathered(ring, d_input, run.sequences, model->config().hidden_size);
  const Tensor sum = converted(model->parameters().gradients(), DType::f64, Device::ref);
  comm.all_reduce(sum);
  for (const framework::Parameter& p : model->parameters().all())
    result.gradients[p.name] = values_of(sum.view().rows(p.offset, p.offset + p.shape.elements()));
  return result;
}

ModelResult run_model(int ranks, const ModelRun& run) {
  ModelResult result;
  parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
    ModelResult mine = run_model(comm, run);
    if (comm.rank() == 0) result = std::move(mine);
  });
  return result;
}

void copy_shared(framework::Model& to, const framework::Model& from) {
  for (const framework::Parameter& p : from.parameters().all())
    if (const framework::Parameter* same = to.parameters().find(p.name)) same->value.copy_from(p.value);
}

void zero_parameters(framework::Model& model, const std::string& ending) {
  for (const framework::Parameter& p : model.parameters().all())
    if (p.name.ends_with(ending)) p.value.fill_zero();
}

// ---- ring -----------------------------------------------------------------------------------------------------------

namespace {

/// The rows of the rank's tokens, as one sequence [1, T, …].
Tensor shard(const Tensor& whole, const std::vector<std::int64_t>& index) {
  std::vector<std::int64_t> extents{1, std::int64_t(index.size())};
  for (int axis = 1; axis < whole.shape().rank(); ++axis) extents.push_back(whole.shape()[axis]);
  Tensor out(Shape(extents), whole.view().type(), whole.view().device());
  for (std::size_t t = 0; t < index.size(); ++t)
    out.view()[0].rows(std::int64_t(t), std::int64_t(t) + 1).copy_from(whole.view().rows(index[t], index[t] + 1));
  return out;
}

using Shards = std::map<std::string, Tensor>;

View of(const Shards& shards, const std::string& name) {
  const auto found = shards.find(name);
  return found == shards.end() ? View() : found->second.view();
}

parallel::RingTerms terms_of(const Shards& x) {
  return {{of(x, "table0"), of(x, "table1")},
          {of(x, "gate_q0"), of(x, "gate_q1")},
          {of(x, "gate_k0"), of(x, "gate_k1")},
          of(x, "offset_source"),
          of(x, "offset_table"),
          of(x, "relative")};
}

/// index, which is the position too, and document of the rank's tokens, [1, T].
std::pair<Tensor, Tensor> row_arrays(const RingRun& run, const std::vector<std::int64_t>& own, Device device) {
  std::pair<Tensor, Tensor> out;
  for (Tensor* x : {&out.first, &out.second}) *x = Tensor({1, std::int64_t(own.size())}, DType::i64, device);
  for (std::size_t t = 0; t < own.size(); ++t) {
    out.first.as<std::int64_t>()[t] = own[t];
    std::int64_t begin = 0;
    for (const std::int64_t tokens : run.documents) out.second.as<std::int64_t>()[t] += own[t] >= (begin += tokens);
  }
  return out;
}

RingResult run_shard(parallel::Communicator& comm, const RingRun& run) {
  const std::int64_t block = std::max<std::int64_t>({1, run.settings.gates[0].block, run.offset.block});
  parallel::RingPlan plan = parallel::plan_ring({run.grid.schedule, comm.size(), int(run.grid.heads), int(ring_groups),
                                                 run.tokens, std::lcm(run.settings.tile, block)});
  const parallel::Ring ring{comm, std::move(plan.layout), std::move(plan.schedule)};
  const std::vector<std::int64_t> own = ring.layout.local_index(comm.rank());
  Shards x, d;
  for (const auto& [name, whole] : run.x) {
    x[name] = shard(whole, own);
    d[name] = zeros_like(x[name]);
  }
  const auto [index, document] = row_arrays(run, own, x.at("q").view().device());
  parallel::RingInputs in{of(x, "q"), of(x, "k"), of(x, "v"), of(x, "z"), {index, index, document}, terms_of(x)};
  in.offset = run.offset;
  in.dropout_seeds = run.dropout_seeds;

  kernels::AttentionStats stats;
  const parallel::RingSaved saved = ring_attention_forward(ring, in, run.settings, &stats);
  parallel::RingGradients out{of(d, "q"), of(d, "k"), of(d, "v"), of(d, "z"), terms_of(d), {}};
  ring_attention_backward(ring, out, in, saved, of(x, "d_o"), run.settings);

  RingResult result;
  const auto keep = [&](NamedNumbers& to, const std::string& name, const Tensor& local) {
    std::int64_t columns = 1;
    for (int axis = 2; axis < local.shape().rank(); ++axis) columns *= local.shape()[axis];
    to[name] = gathered(ring, local, 1, columns);
  };
  keep(result.rows, "o", saved.o);
  keep(result.rows, "lse", saved.lse);
  for (int sum = 0; sum < kernels::gated_sums; ++sum)
    if (saved.carry[sum]) keep(result.rows, fmt::format("carry{}", sum), saved.carry[sum]);
  for (const auto& [name, gradient] : d)
    if (name != "d_o") keep(result.gradients, name, gradient);
  result.saturated_tiles = std::int64_t(comm.all_reduce(double(stats.saturated_tiles)));
  return result;
}

}  // namespace

RingResult run_ring(int ranks, const RingRun& run) {
  RingResult result;
  parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
    RingResult mine = run_shard(comm, run);
    if (comm.rank() == 0) result = std::move(mine);
  });
  return result;
}

void add_random(RingRun& run, DType type, Device device, bool z) {
  const auto add = [&](const char* name, std::int64_t heads, std::int64_t columns, std::uint64_t seed) {
    run.x[name] = random_tensor({run.tokens, heads, columns}, type, device, seed);
  };
  add("q", ring_heads, ring_depth, 31);
  add("k", ring_groups, ring_depth, 32);
  add("v", ring_groups, ring_depth, 33);
  add("d_o", ring_heads, z ? 2 * ring_depth : ring_depth, 34);
  if (z) add("z", ring_groups, ring_depth, 35);
}

void add_random(RingRun& run, const std::string& name, std::int64_t rows, std::int64_t columns, double scale) {
  const View q = run.x.at("q");
  run.x[name] = random_tensor({run.tokens, rows, columns}, q.type(), q.device(), 40 + run.x.size(), scale);
}

}  // namespace capstan::tests
