// Relations between the options of a recipe. Each refusal says where, which values, what is allowed, and what to do.

#include <charconv>
#include <cmath>

#include "framework/config.h"
#include "framework/encoding.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

template <class... Args>
void need(bool holds, const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) fail(ExitCode::config, "{}: {}", where, fmt::format(text, std::forward<Args>(args)...));
}

/// A recipe may come from code or a checkpoint, not only through Option::set.
void check_ranges(const Recipe& recipe, const std::string& where) {
  Recipe copy = recipe;
  for (const Option& option : options(copy)) option.set(option.text(), where);
}

/// The claims of position.kind; its errors get `where`.
Claims claims(const PositionConfig& p, const std::string& where) {
  try {
    return claims_of(p);
  } catch (const Error& error) { fail(ExitCode::config, "{}: {}", where, error.what()); }
}

bool has_part(const PositionConfig& p, const std::string& name) {
  return ("+" + p.kind + "+").find("+" + name + "+") != std::string::npos;
}

void check_heads(const Recipe& recipe, const std::string& where) {
  const ModelConfig& m = recipe.model;
  need(m.head_size > 0 || m.hidden_size % m.heads == 0, where,
       "model.hidden_size = {} is not a multiple of model.heads = {}; choose a multiple, or give model.head_size",
       m.hidden_size, m.heads);
  const std::int64_t kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads;
  need(m.heads % kv_heads == 0, where, "model.heads = {} is not a multiple of model.kv_heads = {}; choose a divisor",
       m.heads, kv_heads);
  const std::int64_t head_size = m.head_size > 0 ? m.head_size : m.hidden_size / m.heads;
  need(!claims(recipe.position, where).rotation || head_size % 2 == 0, where,
       "the head size is {}, but position.kind = {} turns pairs of channels; choose an even model.head_size", head_size,
       recipe.position.kind);
}

/// What the GPU's kernels take. With model.from the sizes are those of the start model, where it was read.
void check_gpu(const Recipe& recipe, const std::string& where) {
  if (recipe.train.device != "cuda") return;
  constexpr std::int64_t largest = 128, step = 8;
  const ModelConfig& m = recipe.model;
  const std::int64_t head_size = m.head_size > 0 ? m.head_size : m.hidden_size / m.heads;
  need(
      head_size % step == 0 && head_size <= largest, where,
      "the head size is {}, but train.device = cuda takes multiples of {} up to {}; choose another model.head_size, or "
      "device = cpu",
      head_size, step, largest);
}

/// Shifted sparse attention cuts the heads in two halves, each with its own mask.
void check_shifted(const Recipe& recipe, const std::string& where) {
  const ModelConfig& m = recipe.model;
  if (recipe.train.shifted_groups == 0) return;
  const Claims c = claims(recipe.position, where);
  need(!c.state && !c.gates && !c.offset && !c.relative && !c.distance && !c.function, where,
       "train.shifted_groups = {} cuts the heads in two, and position.kind = {} has scores or states per head; choose "
       "a kind "
       "that only moves or rotates (none, rope, xpos, …), or shifted_groups = 0",
       recipe.train.shifted_groups, recipe.position.kind);
  const std::int64_t kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads;
  need(kv_heads % 2 == 0, where,
       "train.shifted_groups = {} cuts the heads in two halves, but there are {} kv heads; choose an even number, or "
       "shifted_groups = 0",
       recipe.train.shifted_groups, kv_heads);
  need(recipe.train.shifted_groups <= recipe.data.context / 2, where,
       "train.shifted_groups = {} makes groups of less than two tokens of data.context = {}; choose fewer",
       recipe.train.shifted_groups, recipe.data.context);
}

void check_scaling(const Recipe& recipe, const std::string& where) {
  const PositionConfig& p = recipe.position;
  const bool scaled = p.scaling != "none";
  need(!scaled || claims(p, where).rotation, where,
       "position.scaling = {} needs rotations, but position.kind = {} has none; choose one with rope, xpos or tape, "
       "or scaling = none",
       p.scaling, p.kind);
  need(scaled || p.factor == 1, where,
       "position.factor = {} has no effect with position.scaling = none; choose a scaling, or factor = 1", p.factor);
  // Dynamic scaling grows with the length by itself; every other one does nothing at factor 1.
  need(!scaled || p.scaling == "dynamic" || p.factor > 1, where,
       "position.factor = {} stretches nothing with position.scaling = {}; give a factor over 1, or scaling = none",
       p.factor, p.scaling);
  need(p.length == 0 || p.scaling == "dynamic", where,
       "position.length = {} is for position.scaling = dynamic, not {}; take it out", p.length, p.scaling);
  need(p.scaling != "yarn" || p.beta_fast > p.beta_slow, where,
       "position.beta_fast = {} must be over position.beta_slow = {}", p.beta_fast, p.beta_slow);
  need(p.scaling != "llama3" || p.high_freq_factor > p.low_freq_factor, where,
       "position.high_freq_factor = {} must be over position.low_freq_factor = {}", p.high_freq_factor,
       p.low_freq_factor);

  const bool by_length = p.scaling == "dynamic" || p.scaling == "yarn" || p.scaling == "llama3";
  const bool known = p.original_length > 0 || recipe.model.max_length > 0 || !recipe.model.from.empty();
  need(!by_length || known, where,
       "position.scaling = {} needs the length before scaling; give position.original_length, model.max_length or "
       "model.from",
       p.scaling);
}

/// Options of one encoding that the others do not know.
void check_encoding(const Recipe& recipe, const std::string& where) {
  const PositionConfig& p = recipe.position;
  const std::int64_t context = recipe.data.context;
  need(!has_part(p, "randomized") || p.randomized_length >= context, where,
       "position.randomized_length = {} gives fewer positions than data.context = {} tokens need; raise it",
       p.randomized_length, context);
  need(
      !has_part(p, "t5") || p.t5_distance > p.t5_buckets / 2, where,
      "position.t5_distance = {} must be over half of position.t5_buckets = {}, whose first half has one distance each",
      p.t5_distance, p.t5_buckets);
  need(
      !has_part(p, "hierarchical_cope") || p.block_gates == "query" || p.block_window == 1, where,
      "position.block_window = {} is for block_gates = query; with token gates only the own block has gates per token: "
      "block_window = 1",
      p.block_window);
  need(!has_part(p, "hierarchical_cope") || p.block_gates == "query" || p.cope_floor == 0, where,
       "position.cope_floor = {} is for gates that depend on the query; take it out, or choose block_gates = query",
       p.cope_floor);
  need(recipe.model.layers == 0 || !recipe.model.from.empty() || p.cope_every <= recipe.model.layers, where,
       "position.cope_every = {} leaves none of model.layers = {} with CoPE; choose at most that", p.cope_every,
       recipe.model.layers);
  // xPos multiplies by zeta^(distance from the centre / scale), at its least channel 3.5 times per scale.
  const double range = recipe.train.precision == "f64" ? 700 : 80,
               most = 2 * range / std::log(1.4 / 0.4) * p.xpos_scale;
  need(!has_part(p, "xpos") || double(context) <= most, where,
       "xpos over data.context = {} tokens leaves the range of {}: at most {:.0f} with position.xpos_scale = {}; raise "
       "the "
       "scale, or choose rope",
       context, recipe.train.precision, most, p.xpos_scale);
  const bool fixed_point = claims(p, where).gates || claims(p, where).offset;
  need(!fixed_point || recipe.train.precision != "f64" || context < kernels::longest_f64_sequence, where,
       "data.context = {}: gate sums in f64 hold sequences below {} tokens; choose precision = f32", context,
       kernels::longest_f64_sequence);
}

/// Pairs of encoding and schedule that cannot be exact. `auto` always can.
void check_grid(const Recipe& recipe, const std::string& where) {
  const GridConfig& g = recipe.grid;
  const std::string pair = refuse_pair(recipe.position, g.schedule);
  need(pair.empty(), where, "{}", pair);
  need(g.heads == 0 || g.schedule == "ulysses", where,
       "grid.heads = {} is for grid.schedule = ulysses, not {}; take it out", g.heads, g.schedule);
}

void check_data(const DataConfig& d, const std::string& where) {
  const auto files = split_list(d.train), weights = split_list(d.weights);
  for (const std::string& file : files)
    need(!file.empty(), where, "data.train = {} has an empty name between its commas; take it out", d.train);
  need(weights.empty() || weights.size() == files.size(), where,
       "data.weights has {} numbers for {} files in data.train; give one per file, or none", weights.size(),
       files.size());
  double sum = 0;
  for (const std::string& weight : weights) {
    double value = 0;
    const auto [stop, error] = std::from_chars(weight.data(), weight.data() + weight.size(), value);
    const bool number = error == std::errc() && stop == weight.data() + weight.size() && !std::isnan(value);
    need(number && value >= 0 && value <= 1e9, where, "data.weights = {} holds {}; give numbers from 0 to 1e9",
         d.weights, weight.empty() ? "an empty place" : weight);
    sum += value;
  }
  need(weights.empty() || sum > 0, where, "data.weights = {} are all 0; give at least one number over 0", d.weights);
}

void check_patterns(const std::string& name, const std::string& list, const std::string& where) {
  for (const std::string& pattern : split_list(list))
    need(!pattern.empty(), where, "{} = {} has an empty pattern between its commas; take it out", name, list);
}

void check_training(const TrainConfig& t, const std::string& where) {
  need(t.micro_batch <= t.sequences, where, "train.micro_batch = {} is over train.sequences = {}; give at most that",
       t.micro_batch, t.sequences);
  need(computes_in(t.device, t.precision), where,
       "train.precision = {} is not there on train.device = {}; choose device = {}, or precision = f32", t.precision,
       t.device, t.precision == "f64" ? "ref" : "cpu or cuda");
  need(!split_list(t.trainable).empty(), where,
       "train.trainable is empty, so nothing would be trained; give * for all parameters");
  check_patterns("train.trainable", t.trainable, where);
  check_patterns("train.frozen", t.frozen, where);
}

void check_schedule(const Recipe& recipe, const std::string& where) {
  const ScheduleConfig& s = recipe.schedule;
  need(s.cooldown == 0 || s.kind == "trapezoid", where,
       "schedule.cooldown = {} is for schedule.kind = trapezoid, not {}; take it out", s.cooldown, s.kind);
  need(s.warmup + s.cooldown <= recipe.train.steps, where,
       "schedule.warmup = {} and schedule.cooldown = {} are together more than train.steps = {}; make them shorter, or "
       "give more steps",
       s.warmup, s.cooldown, recipe.train.steps);
}

}  // namespace

void check_recipe(const Recipe& recipe, const std::string& where) {
  check_ranges(recipe, where);
  if (recipe.model.from.empty()) check_heads(recipe, where);
  check_shifted(recipe, where);
  check_gpu(recipe, where);
  check_scaling(recipe, where);
  check_encoding(recipe, where);
  check_grid(recipe, where);
  check_data(recipe.data, where);
  check_training(recipe.train, where);
  check_schedule(recipe, where);
  const bool validates = recipe.train.validate_every > 0;
  need(!validates || !recipe.data.validation.empty(), where,
       "train.validate_every = {} has no data.validation to read; give a token file, or validate_every = 0",
       recipe.train.validate_every);
}

void check_shape_of_start(const Recipe& recipe, const ModelConfig& start, const std::string& where) {
  Recipe given = recipe, held;
  held.model = start;
  const std::vector<Option> ours = options(given), theirs = options(held);
  for (const char* key :
       {"hidden_size", "mlp_size", "layers", "heads", "kv_heads", "head_size", "norm", "bias", "mlp", "tied"})
    for (std::size_t i = 0; i < ours.size(); ++i)
      need(ours[i].name != std::string("model.") + key || ours[i].text() == theirs[i].text(), where,
           "{} = {}, but the model of model.from = {} has {}; take it out", ours[i].name, ours[i].text(),
           recipe.model.from, theirs[i].text());
}

}  // namespace capstan::framework
