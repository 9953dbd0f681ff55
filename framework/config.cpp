// The table of all recipe options, and the reading and writing of one value. Recipe files: recipe_file.cpp; relations
// between options: check_recipe.cpp.

#include "framework/config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "framework/encoding.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr std::int64_t longest = std::int64_t(1) << 30;  // tokens of one sequence
constexpr std::int64_t most_steps = 1'000'000'000;
constexpr std::int64_t largest_seed = 4'294'967'295;
constexpr std::int64_t largest_vocabulary = 2'147'483'647;  // token ids are int32
constexpr std::int64_t most_rows = 1 << 19;                 // of a table that score terms read
constexpr double below_one = 0.99999999;

/// Collects options under the section named last.
class Table {
 public:
  void section(const std::string& name) { section_ = name; }

  Option& integer(const char* key, std::int64_t& value, std::int64_t least, std::int64_t most, const char* unit,
                  const char* help) {
    return add(key, &value, double(least), double(most), {}, unit, help);
  }
  Option& real(const char* key, double& value, double least, double most, const char* unit, const char* help) {
    return add(key, &value, least, most, {}, unit, help);
  }
  Option& flag(const char* key, bool& value, const char* help) { return add(key, &value, 0, 0, {}, "", help); }
  Option& text(const char* key, std::string& value, const char* unit, const char* help) {
    return add(key, &value, 0, 0, {}, unit, help);
  }
  Option& choice(const char* key, std::string& value, std::vector<std::string> choices, const char* help) {
    return add(key, &value, 0, 0, std::move(choices), "", help);
  }

  std::vector<Option> take() { return std::move(options_); }

 private:
  template <class T>
  Option& add(const char* key, T* value, double least, double most, std::vector<std::string> choices, const char* unit,
              const char* help) {
    return options_.emplace_back(
        Option{section_ + "." + key, value, least, most, std::move(choices), unit, help, false, false});
  }

  std::string section_;
  std::vector<Option> options_;
};

void declare(Table& t, ModelConfig& m) {
  t.section("model");
  t.text("from", m.from, "DIR",
         "Model folder, checkpoint or run to start from; it gives all other keys of [model]. Empty: from scratch.");
  t.integer("hidden_size", m.hidden_size, 1, 1 << 20, "channels", "Width of the model.");
  t.integer("mlp_size", m.mlp_size, 1, 1 << 22, "channels", "Inner width of the feed-forward layer.");
  t.integer("layers", m.layers, 1, 4096, "layers", "Transformer blocks.");
  t.integer("heads", m.heads, 1, 65536, "heads", "Query heads.");
  t.integer("kv_heads", m.kv_heads, 0, 65536, "heads", "Key and value heads; 0: as many as query heads.");
  t.integer("head_size", m.head_size, 0, 65536, "channels", "Width of one head; 0: hidden_size / heads.");
  t.integer("vocabulary", m.vocabulary, 0, largest_vocabulary, "tokens",
            "Rows of the embedding; 0: the data's vocabulary.");
  t.choice(
      "norm", m.norm, {"pre", "post"},
      "Norms before attention and MLP and one before the output, or after each sum with the residual (Vaswani et al. "
      "2017) and none before the output.");
  t.choice("bias", m.bias, {"false", "true", "attention", "mlp"},
           "Learned biases in the linear layers: in none, in all, in those of attention, or of the MLP.");
  t.choice("mlp", m.mlp, {"swiglu", "geglu", "gelu"},
           "The MLP: gated by SiLU, gated by GELU, or GELU without a gate. GELU is the exact one.");
  t.real("norm_eps", m.norm_eps, 1e-12, 1, "", "Added to the mean square in RMSNorm.");
  t.flag("tied", m.tied, "The output projection is the token embedding.");
  t.real("init_std", m.init_std, 0, 10, "", "Standard deviation of the initial weights.");
  t.integer("lora_rank", m.lora_rank, 0, 65536, "channels",
            "Rank of the adapters (LoRA) of lora_targets; 0: none. They are merged on export.");
  t.real("lora_alpha", m.lora_alpha, 0, 1e6, "", "LoRA: adapters count lora_alpha / lora_rank.");
  t.text("lora_targets", m.lora_targets, "PATTERNS",
         "LoRA: name patterns of the linear layers that get an adapter, separated by commas (*.q_proj, *.up_proj, …).");
  t.integer("max_length", m.max_length, 0, longest, "tokens",
            "Longest length that the model was trained at so far; 0: data.context.");
}

void declare(Table& t, PositionConfig& p) {
  t.section("position");
  t.choice("kind", p.kind, encoding_names(), "Position encoding, or several.").joins = true;
  t.real("theta", p.theta, 1, 1e12, "", "Base of the frequencies (sinusoidal, RoPE, xPos, and TAPE's first phases).");
  t.choice("scaling", p.scaling, {"none", "linear", "ntk", "dynamic", "yarn", "llama3"},
           "How rotations are stretched to longer sequences.");
  t.real("factor", p.factor, 1, 1e6, "", "Factor of the scaling.");
  t.integer("original_length", p.original_length, 0, longest, "tokens",
            "Length the model was trained at before scaling; 0: model.max_length.");
  t.integer("length", p.length, 0, longest, "tokens",
            "Declared total length for dynamic scaling; 0: data.context, in evaluation the window.");
  t.real("beta_fast", p.beta_fast, 0, 1e6, "rotations", "YaRN: dimensions that turn more often are not stretched.");
  t.real("beta_slow", p.beta_slow, 0, 1e6, "rotations", "YaRN: dimensions that turn less often are stretched fully.");
  t.real("attention_factor", p.attention_factor, 0, 1000, "",
         "YaRN: factor on queries and keys; 0: 0.1 ln(factor) + 1.");
  t.real("low_freq_factor", p.low_freq_factor, 1e-6, 1e6, "",
         "Llama 3: wavelengths over original_length / this are stretched fully.");
  t.real("high_freq_factor", p.high_freq_factor, 1e-6, 1e6, "",
         "Llama 3: wavelengths under original_length / this are not stretched.");
  t.real("xpos_scale", p.xpos_scale, 1, 1e9, "tokens",
         "xPos: distance over which a channel decays by its factor once.");
  t.integer("randomized_length", p.randomized_length, 1, longest, "positions",
            "RandPE: positions are drawn from this many; at least the length of a sequence.");
  t.integer("relative_positions", p.relative_positions, 1, most_rows, "rows",
            "Rows of the relative table; longer distances share the last.");
  t.flag("relative_shared", p.relative_shared, "One relative table for all layers.");
  t.integer("t5_buckets", p.t5_buckets, 2, 1 << 16, "buckets", "T5: distance buckets.");
  t.integer("t5_distance", p.t5_distance, 2, most_rows - 1, "tokens",
            "T5: distance from which all share the last bucket.");
  t.integer("fire_width", p.fire_width, 1, 1024, "channels", "FIRE: hidden width of its network.");
  t.integer("fire_length", p.fire_length, 1, longest, "tokens", "FIRE: the first value of its learned threshold.");
  t.integer("cope_positions", p.cope_positions, 2, most_rows, "rows",
            "Rows of CoPE's table: contextual positions 0 to this less 1.");
  t.choice("cope_gate", p.cope_gate, {"keys", "separate", "values"},
           "CoPE's gate keys: the attention's keys, a projection of their own, or the values.");
  t.flag("cope_rotated", p.cope_rotated, "With rope+cope: gates see queries and keys after the rotation.");
  t.flag("cope_scaled", p.cope_scaled, "CoPE: table logits are divided by sqrt(head size).");
  t.flag("cope_shared", p.cope_shared, "CoPE: one table for all layers.");
  t.choice("cope_table", p.cope_table, {"learned", "alibi"},
           "CoPE: a learned table, or ALiBi's slope times the contextual position.");
  t.real("cope_floor", p.cope_floor, 0, 0.999, "", "CoPE: least gate; bounds how far back positions can differ.");
  t.integer("cope_every", p.cope_every, 1, 4096, "layers", "CoPE in every so many layers only.");
  t.integer("block_size", p.block_size, 1, 1 << 20, "tokens", "Hierarchical CoPE: tokens per block.");
  t.integer("block_window", p.block_window, 1, 1 << 20, "blocks",
            "Hierarchical CoPE: the own block and earlier ones, so many in all, have gates per token.");
  t.integer("block_positions", p.block_positions, 2, most_rows, "rows", "Hierarchical CoPE: rows of the block table.");
  t.choice("block_gates", p.block_gates, {"query", "token"},
           "Hierarchical CoPE: block gates from query and pooled keys, or from the tokens alone.");
  t.integer("tape_width", p.tape_width, 0, 1 << 20, "channels", "Inner width of TAPE's position layer; 0: 4 kv_heads.");
  t.choice("tape_mix", p.tape_mix, {"full", "per_head"},
           "TAPE: averaged states mix across heads, or have a factor each.");
  t.choice("tape_zero", p.tape_zero, {"down", "up"},
           "TAPE: the matrix that begins as zero, as in the paper (down) or in its released code (up).");
  t.choice("tape_paths", p.tape_paths, {"both", "attention", "mlp", "none"}, "TAPE: what changes the states.");
}

void declare(Table& t, DataConfig& d) {
  t.section("data");
  t.text("train", d.train, "FILES", "Token files to train on, separated by commas.");
  t.text("weights", d.weights, "NUMBERS", "One weight per training file, separated by commas. Empty: by tokens.");
  t.text("validation", d.validation, "FILE", "Token file for the validation loss. Empty: none.");
  t.text(
      "tokenizer", d.tokenizer, "bytes|task:NAME|MODEL",
      "Tokenizer that made the files, checked and put into checkpoints. Empty: model.from's; bytes and task:NAME need "
      "no naming.");
  t.integer("context", d.context, 1, longest, "tokens", "Length of a training sequence.");
  t.choice("documents", d.documents, {"separate", "joined"},
           "separate: attention and positions stay within a document; joined: one stream of text.");
  t.choice("mix", d.mix, {"sequences", "steps"},
           "Several files: each sequence comes from one of them by its weight; or all of a step's, so that a file in "
           "which few tokens count has its share of the steps.");
  t.integer("seed", d.seed, 0, largest_seed, "", "Seed of the order of the samples.");
}

void declare(Table& t, TrainConfig& c) {
  t.section("train");
  t.integer("steps", c.steps, 0, most_steps, "steps", "Optimizer steps in all.").may_change = true;
  t.integer("sequences", c.sequences, 1, 1 << 24, "sequences", "Sequences per step, over all ranks.");
  t.integer("micro_batch", c.micro_batch, 1, 1 << 24, "sequences", "Sequences that a data rank holds at once.");
  t.choice("recompute", c.recompute, {"none", "block", "block_full"},
           "What backward computes again: nothing; each block but its attention; each block with its ring.");
  t.text("trainable", c.trainable, "PATTERNS", "Name patterns of the parameters to train, separated by commas.");
  t.text("frozen", c.frozen, "PATTERNS", "Name patterns taken away from trainable, separated by commas.");
  t.integer("seed", c.seed, 0, largest_seed, "", "Seed of the initialisation.");
  t.choice("device", c.device, {"cpu", "cuda", "ref"},
           "cpu: fast; cuda: a GPU for each rank; ref: the slow reference.");
  t.choice("precision", c.precision, {"f32", "bf16", "f64"},
           "Type of weights and activations; bf16 (on cpu and cuda) keeps f32 masters, sums and positions; f64 on ref "
           "only.");
  t.integer("tile", c.tile, 1, 64, "tokens", "Edge of an attention tile.").choices = {"1", "4", "16", "64"};
  t.real("dropout", c.dropout, 0, 0.99, "", "Dropout of the embedding and of what each sublayer adds.");
  t.real("attention_dropout", c.attention_dropout, 0, 0.99, "", "Dropout of attention weights.");
  t.integer("shifted_groups", c.shifted_groups, 0, 4096, "groups",
            "Train with shifted sparse attention (LongLoRA: 4) within so many groups; 0: full attention.");
  t.integer("validate_every", c.validate_every, 0, most_steps, "steps",
            "Steps between validations; 0: only at the end.")
      .may_change = true;
  t.integer("validate_sequences", c.validate_sequences, 1, 1 << 24, "sequences", "Sequences of a validation.")
      .may_change = true;
  t.real("max_time", c.max_time, 0, 1e9, "seconds", "Time until a stop with a saved checkpoint; 0: no limit.")
      .may_change = true;
}

void declare(Table& t, OptimizerConfig& o) {
  t.section("optimizer");
  t.choice("kind", o.kind, {"adamw", "sgd"}, "Optimizer.");
  t.real("lr", o.lr, 0, 1000, "", "Highest learning rate.");
  t.real("beta1", o.beta1, 0, below_one, "", "AdamW: decay of the first moment.");
  t.real("beta2", o.beta2, 0, below_one, "", "AdamW: decay of the second moment.");
  t.real("eps", o.eps, 1e-30, 1, "", "AdamW: added to the root of the second moment.");
  t.real("weight_decay", o.weight_decay, 0, 100, "", "Decoupled weight decay, times the learning rate.");
  t.real("clip", o.clip, 0, 1e9, "", "Largest global gradient norm; 0: no clipping.");
}

void declare(Table& t, ScheduleConfig& s) {
  t.section("schedule");
  t.choice("kind", s.kind, {"constant", "cosine", "trapezoid"}, "Course of the learning rate after the warm-up.");
  t.integer("warmup", s.warmup, 0, most_steps, "steps", "Steps of linear rise from 0.");
  t.integer("cooldown", s.cooldown, 0, most_steps, "steps", "Trapezoid: steps of linear fall at the end.");
  t.real("final", s.final, 0, 1, "", "Last learning rate as a fraction of optimizer.lr (cosine, trapezoid).");
}

void declare(Table& t, GridConfig& g) {
  t.section("grid");
  t.integer("threads", g.threads, 0, 1024, "threads",
            "Threads of each rank; 0: the cores of a machine, shared out among its ranks. Results do not depend on it.")
      .may_change = true;
  t.integer("ring", g.ring, 0, 65536, "ranks", "Ranks that share a sequence; 0: all.").may_change = true;
  t.choice("schedule", g.schedule, {"auto", "contiguous", "zigzag", "ordered_pull", "allgather", "ulysses", "pass_q"},
           "How the ranks of a ring share the work of attention; auto: ordered_pull.")
      .may_change = true;
  t.integer("heads", g.heads, 0, 65536, "ranks", "ulysses: ranks of a ring that split the heads; 0: all.").may_change =
      true;
}

void declare(Table& t, CheckpointConfig& c) {
  t.section("checkpoint");
  t.integer("every", c.every, 0, most_steps, "steps", "Steps between checkpoints; 0: only at the end.").may_change =
      true;
  t.integer("keep", c.keep, 1, 1'000'000, "checkpoints", "Newest checkpoints that are kept.").may_change = true;
}

std::string number_text(double value) {
  char digits[64];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

/// A value of a bad line, fit for an error message: one line, not too long.
std::string shown(const std::string& text) {
  constexpr std::size_t most = 80;
  std::string result;
  for (const char c : text.substr(0, most)) result += std::iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  return result.empty() ? "empty" : text.size() > most ? result + "…" : result;
}

/// Texts that a recipe line cannot hold as they are: see unquote.
bool needs_quotes(const std::string& text) {
  if (text.empty()) return false;
  const bool comment = text.front() == '#' || text.find(" #") != std::string::npos;
  return comment || text.front() == ' ' || text.back() == ' ' || text.front() == '"';
}

std::string quote(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

/// Inverse of quote; false if the closing quote is not the last character.
bool unquote(const std::string& text, std::string& result) {
  result.clear();
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1 == text.size();
    if (text[i] == '\\' && ++i == text.size()) return false;
    result += text[i];
  }
  return false;
}

// read(): the text as a value; false if it is not one. Nothing may follow the value.
template <class Number> bool read(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

bool read(const std::string& text, bool& value) {
  value = text == "true";
  return value || text == "false";
}

bool read(const std::string& text, std::string& value) {
  const bool control = std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
  if (control) return false;
  if (!text.empty() && text.front() == '"') return unquote(text, value);
  value = text;
  return true;
}

std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return number_text(value); }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::string& value) { return needs_quotes(value) ? quote(value) : value; }

/// Range and choices. NaN is outside every range.
template <class T> bool permitted(const Option& option, const T& value) {
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>)
    if (std::isnan(double(value)) || double(value) < option.least || double(value) > option.most) return false;
  const auto& choices = option.choices;
  const auto known = [&](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end();
  };
  if (choices.empty()) return true;
  const std::string text = text_of(value);
  if (!option.joins) return known(text);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t plus = std::min(text.find('+', begin), text.size());
    if (!known(text.substr(begin, plus - begin))) return false;
    begin = plus + 1;
  }
  return true;
}

std::string folded(const std::string& name) {
  std::string result;
  for (const char c : name) result += c == '_' ? '-' : char(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Edit distance with swaps of neighbours (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t(0));
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before = last;
    last = now;
  }
  return last.back();
}

}  // namespace

std::string Option::text() const {
  return std::visit([](const auto* held) { return text_of(*held); }, value);
}

void Option::set(const std::string& text, const std::string& where) const {
  const auto assign = [&](auto* held) {
    std::remove_pointer_t<decltype(held)> parsed{};
    if (!read(text, parsed) || !permitted(*this, parsed))
      fail(ExitCode::config, "{}: {} = {} is not allowed; give {}", where, name, shown(text), allowed());
    *held = std::move(parsed);
  };
  std::visit(assign, value);
}

std::string Option::allowed() const {
  const std::string of_unit = unit.empty() ? "" : " " + unit;
  if (!choices.empty()) {
    std::string list = choices.front();
    for (std::size_t i = 1; i < choices.size(); ++i) list += (i + 1 < choices.size() ? ", " : " or ") + choices[i];
    return list + of_unit + (joins ? ", or several joined by +" : "");
  }
  if (std::holds_alternative<bool*>(value)) return "true or false";
  if (std::holds_alternative<std::string*>(value)) return "a text on one line";
  if (std::holds_alternative<double*>(value)) return number_text(least) + " to " + number_text(most) + of_unit;
  return fmt::format("{} to {}{}", std::int64_t(least), std::int64_t(most), of_unit);
}

kernels::DType type_of_precision(const std::string& precision) {
  return precision == "f64" ? kernels::DType::f64 : precision == "bf16" ? kernels::DType::bf16 : kernels::DType::f32;
}

kernels::Device device_of_name(const std::string& name) {
  return name == "ref" ? kernels::Device::ref : name == "cuda" ? kernels::Device::cuda : kernels::Device::cpu;
}

bool computes_in(const std::string& device, const std::string& precision) {
  return precision == "f32" || (precision == "f64") == (device == "ref");
}

std::vector<Option> options(Recipe& recipe) {
  Table table;
  declare(table, recipe.model);
  declare(table, recipe.position);
  declare(table, recipe.data);
  declare(table, recipe.train);
  declare(table, recipe.optimizer);
  declare(table, recipe.schedule);
  declare(table, recipe.grid);
  declare(table, recipe.checkpoint);
  return table.take();
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  const std::string wanted = folded(name);
  // One mistake per three characters; a name of one or two letters may have one, but not be all mistakes.
  std::size_t best = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  std::string nearest;
  const auto consider = [&](const std::string& candidate, const std::string& result) {
    const std::size_t mistakes = distance(wanted, folded(candidate));
    if (mistakes >= best || mistakes >= wanted.size()) return;
    best = mistakes;
    nearest = result;
  };
  for (const std::string& candidate : known) {
    consider(candidate, candidate);
    // "lr" finds "optimizer.lr".
    const auto dot = candidate.rfind('.');
    if (dot != std::string::npos && name.find('.') == std::string::npos) consider(candidate.substr(dot + 1), candidate);
  }
  return nearest;
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> result;
  if (text.find_first_not_of(" \t") == std::string::npos) return result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    const auto first = part.find_first_not_of(" \t");
    result.push_back(first == std::string::npos ? "" : part.substr(first, part.find_last_not_of(" \t") + 1 - first));
    begin = comma + 1;
  }
  return result;
}

}  // namespace capstan::framework
