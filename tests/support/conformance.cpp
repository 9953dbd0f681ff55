#include "tests/support/conformance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

#include "framework/rotary_frequencies.h"
#include "kernels/check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using framework::Keep;
using framework::PositionConfig;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

namespace {

EncodingCase with(const char* name, const char* kind, std::function<void(PositionConfig&)> set) {
  return {name, kind, std::move(set)};
}

EncodingCase plain(const char* kind) { return {kind, kind}; }

constexpr int schedules = 8, rank_counts[] = {1, 2, 3, 4, 8};
constexpr std::int64_t tiles[] = {4, 64};
constexpr Keep keeps[] = {Keep::everything, Keep::ring, Keep::inputs};

bool splits_heads(const Cell& cell) { return schedule_cases()[std::size_t(cell.schedule)].schedule == "ulysses"; }

/// H and G. Where ulysses splits the heads over more than two ranks, as many kv heads.
std::pair<std::int64_t, std::int64_t> heads_of(const Cell& cell) {
  const std::int64_t groups = splits_heads(cell) ? std::max(2, cell.ranks) : 2;
  return {cell.grouped ? 2 * groups : groups, groups};
}

}  // namespace

namespace {

std::vector<EncodingCase> make_encoding_cases() {
  std::vector<EncodingCase> cases{plain("none"), plain("sinusoidal"), plain("learned"), plain("rope")};
  for (const char* scaling : {"linear", "ntk", "dynamic", "yarn", "llama3"})
    cases.push_back({std::string("rope, ") + scaling, "rope", [scaling](PositionConfig& p) {
                       p.scaling = scaling;
                       p.factor = 2;
                     }});
  for (const char* kind : {"xpos", "randomized", "relative", "alibi", "t5", "fire"}) cases.push_back(plain(kind));
  cases.push_back(plain("cope"));
  cases.push_back(with("cope, separate gate keys", "cope", [](PositionConfig& p) { p.cope_gate = "separate"; }));
  cases.push_back(with("cope, values as gate keys", "cope", [](PositionConfig& p) { p.cope_gate = "values"; }));
  cases.push_back(with("cope, scaled table", "cope", [](PositionConfig& p) { p.cope_scaled = true; }));
  cases.push_back(with("cope, shared table", "cope", [](PositionConfig& p) { p.cope_shared = true; }));
  cases.push_back(with("cope, every second layer", "cope", [](PositionConfig& p) { p.cope_every = 2; }));
  cases.push_back(with("cope, gate floor", "cope", [](PositionConfig& p) { p.cope_floor = 0.05; }));
  cases.push_back(with("cope, alibi table", "cope", [](PositionConfig& p) { p.cope_table = "alibi"; }));
  cases.push_back(plain("rope+cope"));
  cases.push_back(with("rope+cope, unrotated gates", "rope+cope", [](PositionConfig& p) { p.cope_rotated = false; }));
  cases.push_back(
      with("rope+cope, separate gate keys", "rope+cope", [](PositionConfig& p) { p.cope_gate = "separate"; }));
  cases.push_back(
      with("rope+cope, values as gate keys", "rope+cope", [](PositionConfig& p) { p.cope_gate = "values"; }));
  cases.push_back(plain("cope+relative"));
  cases.push_back(plain("hierarchical_cope"));
  cases.push_back(
      with("hierarchical_cope, window 2", "hierarchical_cope", [](PositionConfig& p) { p.block_window = 2; }));
  cases.push_back(
      with("hierarchical_cope, token gates", "hierarchical_cope", [](PositionConfig& p) { p.block_gates = "token"; }));
  cases.push_back(plain("rope+hierarchical_cope"));
  cases.push_back(with("rope+hierarchical_cope, token gates", "rope+hierarchical_cope",
                       [](PositionConfig& p) { p.block_gates = "token"; }));
  cases.push_back(plain("forget"));
  cases.push_back(plain("rope+forget"));
  cases.push_back(plain("tape"));
  cases.push_back(with("tape, factor per head", "tape", [](PositionConfig& p) { p.tape_mix = "per_head"; }));
  for (const char* paths : {"attention", "mlp", "none"})
    cases.push_back(
        {std::string("tape, paths ") + paths, "tape", [paths](PositionConfig& p) { p.tape_paths = paths; }});
  cases.push_back(with("tape, yarn", "tape", [](PositionConfig& p) {
    p.scaling = "yarn";
    p.factor = 2;
  }));
  return cases;
}

}  // namespace

const std::vector<EncodingCase>& encoding_cases() {
  static const std::vector<EncodingCase> cases = make_encoding_cases();
  return cases;
}

const std::vector<ScheduleCase>& schedule_cases() {
  static const std::vector<ScheduleCase> cases{
      {"contiguous", "contiguous"}, {"zigzag", "zigzag"},   {"ordered_pull", "ordered_pull"},
      {"allgather", "allgather"},   {"ulysses", "ulysses"}, {"ulysses x ring", "ulysses", 2},
      {"pass_q", "pass_q"},         {"auto", "auto"}};
  return cases;
}

std::string Cell::text() const {
  return fmt::format("{} | {} | {} ranks | {} | {} | recompute {} | tile {} | {}",
                     encoding_cases()[std::size_t(encoding)].name, schedule_cases()[std::size_t(schedule)].name, ranks,
                     packed ? "packed" : "plain", grouped ? "grouped" : "multi-head",
                     keep == Keep::everything ? "none"
                     : keep == Keep::ring     ? "block"
                                              : "block_full",
                     tile, block_forms()[std::size_t(form)].text());
}

std::string refusal_of(const Cell& cell) {
  const EncodingCase& encoding = encoding_cases()[std::size_t(cell.encoding)];
  const ScheduleCase& schedule = schedule_cases()[std::size_t(cell.schedule)];
  if (schedule.heads > 0 && (cell.ranks <= schedule.heads || cell.ranks % schedule.heads != 0))
    return fmt::format("{} ranks are no ring of groups of {}", cell.ranks, schedule.heads);
  PositionConfig position = tiny_position();
  position.kind = encoding.kind;
  encoding.set(position);
  if (const std::string reason = framework::refuse_pair(position, schedule.schedule); !reason.empty()) return reason;
  return parallel::refuse_ring({schedule.schedule, cell.ranks, schedule.heads, int(heads_of(cell).second), 64, 4});
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (int encoding = 0; encoding < int(encoding_cases().size()); ++encoding)
    for (int schedule = 0; schedule < schedules; ++schedule)
      for (int ranks : rank_counts)
        for (bool packed : {false, true})
          for (bool grouped : {false, true})
            for (Keep keep : keeps)
              for (std::int64_t tile : tiles) cells.push_back({encoding, schedule, ranks, packed, grouped, keep, tile});
  return cells;
}

std::vector<int> all_forms() {
  std::vector<int> forms(block_forms().size());
  std::iota(forms.begin(), forms.end(), 0);
  return forms;
}

int encoding_named(const std::string& name) {
  for (int at = 0; at < int(encoding_cases().size()); ++at)
    if (encoding_cases()[std::size_t(at)].name == name) return at;
  fail(ExitCode::internal, "no encoding case {}", name);
}

std::vector<Cell> covering_cells(const std::vector<int>& forms) {
  using Pair = std::tuple<int, int, int, int>;  // factor, value, factor, value
  const auto pairs_of = [](const Cell& c) {
    const int values[] = {c.encoding, c.schedule, c.ranks, c.packed, c.grouped, int(c.keep), int(c.tile), c.form};
    std::vector<Pair> pairs;
    for (int a = 0; a < 8; ++a)
      for (int b = a + 1; b < 8; ++b) pairs.emplace_back(a, values[a], b, values[b]);
    return pairs;
  };
  // Greedily, among the cells of each pair of encoding and schedule, the one that covers most pairs not covered yet; then
  // whatever is still missing.
  std::map<std::pair<int, int>, std::vector<Cell>> by_pair;
  std::set<Pair> missing;
  for (Cell cell : all_cells()) {
    if (!refusal_of(cell).empty()) continue;
    for (const int form : forms) {
      cell.form = form;
      by_pair[{cell.encoding, cell.schedule}].push_back(cell);
      for (const Pair& pair : pairs_of(cell)) missing.insert(pair);
    }
  }
  std::vector<Cell> chosen;
  const auto choose = [&](const std::vector<Cell>& candidates) {
    const Cell* best = nullptr;
    std::size_t most = 0;
    for (const Cell& cell : candidates) {
      const auto pairs = pairs_of(cell);
      const std::size_t gain =
          std::size_t(std::count_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return missing.contains(p); }));
      if (gain > most) {
        most = gain;
        best = &cell;
      }
    }
    if (!best) return;
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) missing.erase(pair);
  };
  for (const auto& [pair, cells] : by_pair) choose(cells);
  while (!missing.empty()) {
    const std::size_t before = chosen.size();
    for (const auto& [pair, cells] : by_pair) {
      const bool useful = std::any_of(cells.begin(), cells.end(), [&](const Cell& c) {
        const auto pairs = pairs_of(c);
        return std::any_of(pairs.begin(), pairs.end(), [&](const Pair& p) { return missing.contains(p); });
      });
      if (useful) choose(cells);
    }
    CAPSTAN_CHECK(chosen.size() > before, "{} pairs in no cell", missing.size());
  }
  return chosen;
}

TinyShape Conformance::shape_of(const Cell& cell, const Arithmetic& arithmetic) const {
  const EncodingCase& encoding = encoding_cases()[std::size_t(cell.encoding)];
  TinyShape shape;
  shape.kind = encoding.kind;
  encoding.set(shape.position);
  shape.layers =
      3;  // TAPE: the first layer's states are made where they are needed, the second's travel, the last has none
  std::tie(shape.heads, shape.kv_heads) = heads_of(cell);
  shape.tile = cell.tile;
  shape.form = block_forms()[std::size_t(cell.form)];
  if (arithmetic_.device == Device::cuda) shape.head_size = 8;
  shape.device = arithmetic.device;
  shape.type = arithmetic.type;
  // Where rounding is compared, with parameters that do not magnify it from layer to layer.
  if (arithmetic_.type != DType::f64) shape.scale = 0.15;
  return shape;
}

std::vector<std::int64_t> Conformance::documents_of(const Cell& cell) const {
  return cell.packed ? std::vector<std::int64_t>{7, 3, 1} : std::vector<std::int64_t>{};
}

std::string Conformance::key_of(const Cell& cell) const {
  const auto [heads, groups] = heads_of(cell);
  return fmt::format("{} {} {} {} {}", cell.encoding, cell.packed, heads, groups, cell.form);
}

namespace {

std::vector<std::string> parts_of(const std::string& kind) {
  std::vector<std::string> parts;
  std::stringstream text(kind);
  for (std::string part; std::getline(text, part, '+');)
    if (part != "randomized") parts.push_back(part);  // the positions come as they are placed
  if (kind == "randomized") parts.push_back("rope");
  if (kind == "none") parts.clear();
  return parts;
}

OraclePosition oracle_position(const framework::Model& model, std::int64_t length) {
  const PositionConfig& p = model.position();
  const framework::RotaryFrequencies f =
      framework::rotary_frequencies(p, model.config().head_size, p.original_length, length);
  OraclePosition o;
  o.parts = parts_of(p.kind);
  o.theta = p.theta;
  o.frequency = f.frequency;
  o.amplitude = f.amplitude;
  o.xpos_scale = p.xpos_scale;
  o.centre = double(length) / 2;
  o.learned_length = model.config().max_length;
  o.relative_distance = p.relative_positions - 1;
  o.t5_buckets = p.t5_buckets;
  o.t5_max_distance = p.t5_distance;
  o.fire_width = p.fire_width;
  o.cope_positions = p.cope_positions;
  o.cope_gate = p.cope_gate;
  o.cope_gate_rotated = p.cope_rotated;
  o.cope_gate_floor = p.cope_floor;
  o.cope_table_scaled = p.cope_scaled;
  o.cope_table = p.cope_table;
  o.cope_table_shared = p.cope_shared;
  o.cope_every = p.cope_every;
  o.block_size = p.block_size;
  o.block_window = p.block_window;
  o.block_positions = p.block_positions;
  o.block_gate = p.block_gates == "query" ? "keys" : "tokens";
  o.tape_attention = p.tape_paths == "both" || p.tape_paths == "attention";
  o.tape_mlp = p.tape_paths == "both" || p.tape_paths == "mlp";
  o.tape_scalars = p.tape_mix == "per_head";
  o.tape_width = p.tape_width;
  return o;
}

OracleModel oracle_sizes(const framework::ModelConfig& c) {
  return {c.layers,     c.hidden_size, c.mlp_size, c.heads, c.kv_heads, c.head_size,
          c.vocabulary, c.norm_eps,    c.tied,     c.norm,  c.bias,     c.mlp};
}

OracleParameters oracle_parameters(const framework::Model& model) {
  OracleParameters out;
  for (const framework::Parameter& p : model.parameters().all()) {
    out[p.name] = values_of(p.value);
    // The oracle's FIRE has an output bias, which changes nothing.
    const std::size_t at = p.name.find("fire_scale");
    if (at != std::string::npos)
      out[p.name.substr(0, at) + "fire_out_bias"] = std::vector<double>(std::size_t(model.config().heads));
  }
  return out;
}

template <class T> std::vector<T> ints_of(const Tensor& x) {
  const std::vector<double> values = values_of(x);
  return std::vector<T>(values.begin(), values.end());
}

}  // namespace

namespace {
constexpr std::uint64_t own_seed = 5;  // of the tokens that cells are run with
}

Conformance::Results Conformance::oracle_results(const Cell& cell, OracleArithmetic arithmetic,
                                                 std::uint64_t seed) const {
  const TinyShape shape = shape_of(cell, arithmetic_);
  const auto model = tiny_model(shape);
  const std::int64_t tokens = tokens_of(cell);
  const parallel::SequenceLayout whole = parallel::SequenceLayout::contiguous(tokens, 1, 1);
  framework::Batch batch = tiny_batch(whole, 0, shape, 1, documents_of(cell), seed);
  model->encoding().place(batch.position, {}, tokens);
  OracleModel sizes = oracle_sizes(model->config());
  sizes.arithmetic = arithmetic;
  OracleResult result = oracle(sizes, oracle_position(*model, tokens), oracle_parameters(*model),
                               {{ints_of<int>(batch.tokens), ints_of<int>(batch.targets),
                                 ints_of<std::int64_t>(batch.position), ints_of<std::int64_t>(batch.document)}});
  Results out;
  out["nll"] = std::move(result.nll);
  out["gradient of the input"] = std::move(result.input_gradient);
  for (std::size_t layer = 0; layer < result.states.size(); ++layer)
    out[fmt::format("states of layer {}", layer)] = std::move(result.states[layer]);
  for (const framework::Parameter& p : model->parameters().all())
    out["gradient of " + p.name] = std::move(result.gradients.at(p.name));
  return out;
}

namespace {

double norm_of(const std::vector<double>& x) {
  double squares = 0;
  for (const double each : x) squares += each * each;
  return std::sqrt(squares);
}

/// ‖a − b‖ / ‖b‖ of the result `name`. A gradient that is zero, as where only an unused layer has it, must be zero. Where nothing
/// turns keys, their bias adds one number to all logits of a row, and its gradient is what rounding leaves of sums that cancel: it
/// counts as at least as large as the gradient of the values' bias.
double error_of(const std::string& name, const std::map<std::string, std::vector<double>>& got,
                const std::map<std::string, std::vector<double>>& expected) {
  const std::vector<double>&a = got.at(name), &b = expected.at(name);
  CAPSTAN_CHECK(a.size() == b.size(), "{} numbers, the oracle has {}", a.size(), b.size());
  std::vector<double> difference;
  for (std::size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  double norm = norm_of(b);
  const std::size_t at = name.find("k_proj.bias");
  if (at != std::string::npos) norm = std::max(norm, norm_of(expected.at(std::string(name).replace(at, 1, "v"))));
  return norm_of(difference) == 0 ? 0 : norm_of(difference) / norm;
}

/// Local rows [T, n] put in their places of a whole [S, n], zeros elsewhere, summed over the ranks.
std::vector<double> gathered(const parallel::Ring& ring, const kernels::View& local, std::int64_t columns) {
  Tensor all({ring.layout.length(), columns}, DType::f64, Device::ref);
  const std::vector<std::int64_t> index = ring.layout.local_index(ring.comm.rank());
  const std::vector<double> values = values_of(local);
  for (std::size_t t = 0; t < index.size(); ++t)
    std::copy_n(values.data() + std::int64_t(t) * columns, columns, all.as<double>() + index[t] * columns);
  ring.comm.all_reduce(all);
  return values_of(all);
}

}  // namespace

Conformance::Results Conformance::model_results(parallel::Communicator& comm, const Cell& cell,
                                                const Arithmetic& arithmetic, const ScheduleCase& schedule) const {
  const TinyShape shape = shape_of(cell, arithmetic);
  const auto model = tiny_model(shape);
  framework::GridConfig grid;
  grid.schedule = schedule.schedule;
  grid.heads = schedule.heads;
  const parallel::Ring ring = model->make_ring(comm, tokens_of(cell), cell.tile, grid);
  const framework::Batch batch = tiny_batch(ring.layout, comm.rank(), shape, 1, documents_of(cell), own_seed);

  Results out;
  model->parameters().gradients().fill_zero();
  framework::Pass pass = model->forward(ring, batch, cell.tile, cell.keep);
  out["nll"] = gathered(ring, pass.nll, 1);
  if (model->encoding().claims().state)
    for (int layer = 0; layer < model->layers(); ++layer)
      out[fmt::format("states of layer {}", layer)] =
          gathered(ring, pass.blocks[std::size_t(layer)].z, shape.kv_heads * shape.head_size);
  const Tensor d_input = model->backward(batch, pass);
  out["gradient of the input"] = gathered(ring, d_input, model->config().hidden_size);
  Tensor sum = zeros_like(model->parameters().gradients());
  sum.view().copy_from(model->parameters().gradients());
  comm.all_reduce(sum);
  for (const framework::Parameter& p : model->parameters().all())
    out["gradient of " + p.name] = values_of(sum.view().rows(p.offset, p.offset + p.shape.elements()));
  return out;
}

namespace {

void raise(std::map<std::string, double>& errors, const std::map<std::string, std::vector<double>>& naive,
           const std::map<std::string, std::vector<double>>& exact) {
  for (const auto& [name, values] : exact) errors[name] = std::max(errors[name], error_of(name, naive, exact));
}

}  // namespace

/// Worst errors of plain implementations.
Conformance::Bounds Conformance::naive_errors(const Cell& cell, const Results& exact) const {
  const bool narrow = arithmetic_.type == DType::bf16;
  Bounds errors;
  const std::uint64_t texts = cell.form == 0 ? 4 : 8;
  for (std::uint64_t seed = own_seed; seed < own_seed + texts; ++seed) {
    const Results same = seed == own_seed ? exact : oracle_results(cell, OracleArithmetic::f64, seed);
    if (narrow) raise(errors, oracle_results(cell, OracleArithmetic::f64_stored_bf16, seed), same);
    raise(errors, oracle_results(cell, narrow ? OracleArithmetic::f32_stored_bf16 : OracleArithmetic::f32, seed), same);
  }
  for (Cell tiled = cell; const std::int64_t tile : {1, 4, 16, 64}) {
    if (narrow) break;
    tiled.tile = tile;
    raise(errors,
          model_results(*parallel::make_self_communicator(), tiled, {Device::ref, DType::f32},
                        {"contiguous", "contiguous"}),
          exact);
  }
  return errors;
}

void Conformance::prepare(const Cell& cell) {
  constexpr double f64_bound = 1e-10;
  const std::string key = key_of(cell);
  if (expected_.contains(key)) return;
  Expected& expected = expected_[key];
  expected.exact = oracle_results(cell, OracleArithmetic::f64, own_seed);
  if (arithmetic_.type == DType::f64) {
    for (const auto& [name, values] : expected.exact) expected.bounds[name] = f64_bound;
    return;
  }
  expected.bounds = naive_errors(cell, expected.exact);
  const double floor = arithmetic_.type == DType::f32 ? f32_floor : bf16_floor;
  double mean = 0;
  for (auto& [name, bound] : expected.bounds) {
    bound = std::max(bound, floor);
    mean += bound / double(expected.bounds.size());
  }
  for (auto& [name, bound] : expected.bounds) bound = 2 * std::max(bound, mean);
}

Conformance::Worst Conformance::run(parallel::Communicator& comm, const Cell& cell) const {
  const Expected& expected = expected_.at(key_of(cell));
  const Results got = model_results(comm, cell, arithmetic_, schedule_cases()[std::size_t(cell.schedule)]);
  CAPSTAN_CHECK(got.size() == expected.exact.size(), "{} results, the oracle has {}", got.size(),
                expected.exact.size());
  Worst worst;
  for (const auto& [name, exact] : expected.exact) {
    const double error = error_of(name, got, expected.exact), bound = expected.bounds.at(name);
    if (!(error / bound <= worst.error / worst.bound)) worst = {error, bound, name};
  }
  return worst;
}

}  // namespace capstan::tests
