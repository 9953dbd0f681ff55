#pragma once
// The recipe: everything that decides a run. One struct per section; every option is declared once, in options() (config.cpp),
// and visited from there for the command line, --help, recipe files, the saved effective config, and the reference in docs/.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::framework {

/// [model] The architecture: Llama (RMSNorm, SwiGLU, grouped-query attention) as long as norm, bias and mlp are at their defaults.
/// Ignored, but for `from`, when `from` is set.
struct ModelConfig {
  std::string from;               ///< model folder, checkpoint or run to start from; empty: from scratch
  std::int64_t hidden_size = 64;  ///< C
  std::int64_t mlp_size = 172;    ///< F (Hugging Face: intermediate_size)
  std::int64_t layers = 5;
  std::int64_t heads = 8;       ///< H
  std::int64_t kv_heads = 0;    ///< G; 0: as heads
  std::int64_t head_size = 0;   ///< D; 0: hidden_size / heads
  std::int64_t vocabulary = 0;  ///< V; 0: the data's
  std::string norm = "pre";     ///< pre, post: where the block's norms stand (framework/block.h)
  std::string bias = "false";   ///< linear layers with a learned bias: false (none), true (all), attention, mlp
  std::string mlp = "swiglu";   ///< swiglu, geglu; gelu without a gate
  double norm_eps = 1e-5;
  bool tied = true;  ///< output projection = token embedding
  double init_std = 0.02;
  std::int64_t lora_rank = 0;  ///< of low-rank adapters (framework/linear.h); 0: none
  double lora_alpha = 16;
  std::string lora_targets = "*.q_proj,*.k_proj,*.v_proj,*.o_proj";  ///< name patterns, separated by commas
  std::int64_t max_length =
      0;  ///< longest trained length so far (Hugging Face: max_position_embeddings); 0: data.context

  bool attention_bias() const { return bias == "true" || bias == "attention"; }
  bool mlp_bias() const { return bias == "true" || bias == "mlp"; }
  bool gated() const { return mlp != "gelu"; }
};

/// [position] The position encoding.
struct PositionConfig {
  std::string kind = "rope";         ///< parts joined by + (framework/encoding_registry.cpp)
  double theta = 10000;              ///< base of sines, RoPE, xPos; also TAPE's first phases
  std::string scaling = "none";      ///< none, linear, ntk, dynamic, yarn, llama3
  double factor = 1;                 ///< of the scaling
  std::int64_t original_length = 0;  ///< length the model was trained at before scaling; 0: model.max_length
  std::int64_t length = 0;  ///< declared total length, for dynamic; 0: data.context (training), the window (evaluation)
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  double attention_factor = 0;                       ///< yarn; 0: 0.1 ln(factor) + 1
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double xpos_scale = 512;                           ///< tokens over which xPos decays by zeta
  std::int64_t randomized_length = 2048;             ///< positions that RandPE draws from
  std::int64_t relative_positions = 64;              ///< R + 1 rows of Shaw's table
  bool relative_shared = false;                      ///< one table for all layers
  std::int64_t t5_buckets = 32, t5_distance = 128;   ///< buckets; distance from which all share the last
  std::int64_t fire_width = 32;                      ///< hidden width of FIRE's network
  std::int64_t fire_length = 512;                    ///< FIRE's first threshold L
  std::int64_t cope_positions = 64;                  ///< npos = P + 1 rows of CoPE's table
  std::string cope_gate = "keys";                    ///< gate keys: keys, separate, values
  bool cope_rotated = true;                          ///< gates see rotated q and keys, with rope+cope
  bool cope_scaled = false;                          ///< table logits q·e / sqrt(D)
  bool cope_shared = false;                          ///< one table for all layers
  std::string cope_table = "learned";                ///< learned, alibi (-slope · position)
  double cope_floor = 0;                             ///< least gate
  std::int64_t cope_every = 1;                       ///< CoPE in every k-th layer only
  std::int64_t block_size = 256;                     ///< B, tokens per block of hierarchical CoPE
  std::int64_t block_window = 1;                     ///< w, own and earlier blocks with token gates
  std::int64_t block_positions = 64;                 ///< rows of the block table
  std::string block_gates = "query";                 ///< query (H-B), token (H-C: not of the query)
  std::int64_t tape_width = 0;                       ///< I; 0: 4 G
  std::string tape_mix = "full";                     ///< alpha: full [G, G], per_head [G]
  std::string tape_zero = "down";   ///< the matrix that is zero at first: down (paper), up (released code)
  std::string tape_paths = "both";  ///< of the update: both, attention, mlp, none
};

/// [data]
struct DataConfig {
  std::string train;                   ///< token files, separated by commas
  std::string weights;                 ///< one number per file, separated by commas; empty: by tokens
  std::string validation;              ///< token file; empty: none
  std::string tokenizer;               ///< that made them: as make_tokenizer takes it; empty: what the model has
  std::int64_t context = 512;          ///< S, tokens per sequence
  std::string documents = "separate";  ///< separate, joined
  std::string mix = "sequences";       ///< what goes to one file at a time: sequences, or whole steps
  std::int64_t seed = 1;               ///< order of the samples
};

/// [train]
struct TrainConfig {
  std::int64_t steps = 100;
  std::int64_t sequences = 8;       ///< per step, over all ranks
  std::int64_t micro_batch = 1;     ///< sequences that a data rank holds at once
  std::string recompute = "block";  ///< none, block, block_full
  std::string trainable = "*";      ///< name patterns, separated by commas
  std::string frozen;               ///< name patterns taken away again
  std::int64_t seed = 1;            ///< initialisation
  std::string device = "cpu";       ///< cpu, cuda, ref
  std::string precision = "f32";    ///< f32; bf16 on cpu and cuda; f64 on ref
  std::int64_t tile = 64;           ///< attention tile
  double dropout = 0;               ///< of the embedding and of what every sublayer adds
  double attention_dropout = 0;     ///< of attention weights
  std::int64_t shifted_groups = 0;  ///< shifted sparse attention in so many groups; 0: full attention
  std::int64_t validate_every = 0;  ///< steps; 0: only at the end
  std::int64_t validate_sequences = 8;
  double max_time = 0;  ///< seconds until a stop with a saved checkpoint; 0: none
};

/// [optimizer]
struct OptimizerConfig {
  std::string kind = "adamw";  ///< adamw, sgd
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
  double clip = 1.0;  ///< global gradient norm; 0: none
};

/// [schedule] Learning rate as a fraction of optimizer.lr.
struct ScheduleConfig {
  std::string kind = "cosine";  ///< constant, cosine, trapezoid
  std::int64_t warmup = 0;      ///< steps, linear from 0
  std::int64_t cooldown = 0;    ///< steps at the end, linear to `final` (trapezoid)
  double final = 0.1;           ///< last fraction
};

/// [grid] How ranks are used: data × ring = ranks.
struct GridConfig {
  std::int64_t threads = 0;       ///< of each rank; 0: the cores of its machine, shared out among its ranks
  std::int64_t ring = 0;          ///< ranks that share a sequence; 0: all
  std::string schedule = "auto";  ///< parallel/ring_schedule.h
  std::int64_t heads = 0;         ///< ulysses: ranks of a ring that split the heads; 0: all
};

/// [checkpoint]
struct CheckpointConfig {
  std::int64_t every = 0;  ///< steps; 0: only at the end
  std::int64_t keep = 2;   ///< newest checkpoints kept
};

/// The element type that a precision names.
kernels::DType type_of_precision(const std::string& precision);
/// The device of that name: cpu, cuda or ref.
kernels::Device device_of_name(const std::string& name);
/// Whether the device computes in that precision.
bool computes_in(const std::string& device, const std::string& precision);

struct Recipe {
  ModelConfig model;
  PositionConfig position;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  GridConfig grid;
  CheckpointConfig checkpoint;
};

/// One option, declared once. Numbers carry their range, texts their choices (none: free text).
struct Option {
  std::string name;  ///< "section.key"
  std::variant<std::int64_t*, double*, bool*, std::string*> value;
  double least = 0, most = 0;
  std::vector<std::string> choices;
  std::string unit;
  std::string help;
  bool may_change = false;  ///< on a rerun of a started run
  bool joins = false;       ///< several choices may be joined by +

  std::string text() const;  ///< the value as a recipe writes it; reading it back gives the same value, bit for bit
  /// Parses and checks the range; `where` ("recipes/x.cfg:12", "command line") begins the error line.
  void set(const std::string& text, const std::string& where) const;
  std::string allowed() const;  ///< "1 to 1048576 tokens", "none, rope or cope"
};

/// All options of the recipe, bound to its fields, in the order of the sections.
std::vector<Option> options(Recipe& recipe);

/// Reads a recipe file over `recipe`: INI sections, `key = value`, `#` comments. Unknown, repeated, or out-of-range keys are
/// errors with file:line and the nearest known name.
void read_recipe(Recipe& recipe, const std::string& path);
/// The effective config as a recipe; reading it gives the same recipe.
std::string write_recipe(const Recipe& recipe);
/// Relations between options (heads divisible, warm-up within steps, …). `where` begins the error line.
void check_recipe(const Recipe& recipe, const std::string& where);
/// A recipe with model.from may repeat what makes the shape of the start model, not change it.
void check_shape_of_start(const Recipe& recipe, const ModelConfig& start, const std::string& where);

/// The known name nearest to `name` by edit distance; empty if none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

/// Splits at commas and trims; an empty text gives an empty list.
std::vector<std::string> split_list(const std::string& text);

}  // namespace capstan::framework
