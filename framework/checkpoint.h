#pragma once
// Checkpoints and model folders: one format for both. A folder holds
//
//   manifest.json    format, step, model, position, recipe, tensors, and size + xxh3 of every other file; see
//                    checkpoint_manifest.h
//   weights-0003.h5  what writer 3 wrote: 1-D slices of tensors, as datasets value:NAME and while training m:NAME and
//                    v:NAME (moments); the manifest says which elements each slice holds
//   tokenizer.model  or tokenizer.json: copied along, if the model has such a tokenizer
//   hf_config.json   the Hugging Face config.json that the model was imported with, if any
//
// Writing: rank 0 names a temporary folder and broadcasts it; each writer writes, checksums and fsyncs its file; rank 0
// writes the manifest, fsyncs, renames the folder, fsyncs the parent. Only then may old checkpoints go
// (prune_checkpoints). Readers take only folders whose manifest and checksums verify. Any layout reads any other: reads
// are by tensor name and element range.

#include <memory>
#include <string>
#include <vector>

#include "framework/config.h"
#include "framework/model.h"
#include "framework/tokenizer.h"
#include "parallel/communicator.h"

namespace capstan::framework {

struct CheckpointHeader {
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;  ///< updates so far (Adam's bias correction)
  ModelConfig model;                 ///< resolved: no zero sizes
  PositionConfig position;           ///< resolved
  std::string recipe;                ///< effective config of the run; empty for an imported model
  std::string tokenizer;             ///< a built-in, "tokenizer.model", "tokenizer.json", or empty
  std::vector<std::int32_t> end_tokens;
  std::int32_t bos = -1;
};

/// A tensor of the safetensors file that a model was imported from.
struct SourceTensor {
  std::string name, dtype;
};

/// What goes along unchanged, from an import to every later checkpoint.
struct CheckpointExtras {
  std::string tokenizer_model;       ///< bytes of the tokenizer's file, or empty
  std::string hf_config;             ///< text, or empty
  std::vector<SourceTensor> source;  ///< in the file's order, so that an export writes the same file; empty: no import
};

/// This rank's piece of the optimizer state: elements [begin, end) of the trainable buffer. Absent views: no optimizer
/// state, and values as the parameters have them.
struct OptimizerShard {
  std::int64_t begin = 0, end = 0;
  View m, v, values = {};
};

/// Bytes that a checkpoint takes on disk, a little more rather than less. Needs the parameters' shapes and trainable
/// flags only. Errors: io if `folder` (or its nearest parent that exists) has less: both numbers are named.
std::int64_t checkpoint_bytes(const Parameters& parameters, bool with_optimizer);
void require_free_bytes(const std::string& folder, std::int64_t bytes);

/// Writes the folder `parent`/step-NNNNNN (or `parent`/`name` if given) over all ranks and returns its path. Every rank
/// calls. Values are the same on all ranks; rank r writes its shard of them, rank 0 also the frozen ones. A folder of
/// this name is replaced in one step. If one rank fails, all throw its error and nothing is left. Errors: io (no space:
/// needed and free bytes named).
std::string save_checkpoint(parallel::Communicator& world, const std::string& parent, const std::string& name,
                            const CheckpointHeader& header, const CheckpointExtras& extras,
                            const Parameters& parameters, const OptimizerShard& optimizer);

class Checkpoint {
 public:
  /// Verifies manifest, sizes, checksums. Errors: io (missing), bad_data (damaged: names the file and what differs;
  /// foreign; newer format).
  static Checkpoint open(const std::string& folder);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();
  const CheckpointHeader& header() const;
  const CheckpointExtras& extras() const;
  const std::string& folder() const;
  bool has_optimizer() const;
  struct TensorInfo {
    std::string name;
    std::vector<std::int64_t> shape;
    std::string dtype;
  };
  const std::vector<TensorInfo>& tensors() const;  ///< parameters, in order of declaration
  /// Elements [begin, end) of `kind`/name ("value", "m", "v") into out (f32 or f64). Errors: bad_data naming the
  /// tensor.
  void read(const std::string& kind, const std::string& name, std::int64_t begin, std::int64_t end,
            const View& out) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// `path`: model folder, checkpoint, or run folder (its newest checkpoint that verifies; damaged ones are named on
/// stderr and passed over).
std::string resolve_model_folder(const std::string& path);
/// The newest checkpoint in RUN/checkpoints that verifies, or empty. Decided by rank 0 and broadcast.
std::string newest_checkpoint(const std::string& run_folder);
/// Removes all but the `keep` newest step-… folders, and temporary leftovers. Rank 0 only. `saved`: the step that was
/// just saved. Folders of later steps did not verify when the run resumed (else it had gone on from them): they count
/// for nothing and go too.
void prune_checkpoints(const std::string& parent, std::int64_t keep, std::int64_t saved = -1);

/// Values from a checkpoint. Parameters that the checkpoint lacks are allowed only if their name contains ".position."
/// (a new encoding begins at its initial values): their names are returned. Any other mismatch is an error (bad_data)
/// naming the tensor.
std::vector<std::string> load_values(Parameters& parameters, const Checkpoint& checkpoint);

/// A model ready for evaluation: nothing is trainable.
struct LoadedModel {
  std::unique_ptr<Model> model;
  CheckpointHeader header;
  CheckpointExtras extras;
  std::unique_ptr<Tokenizer> tokenizer;  ///< absent if the model has none
};
/// `position`: another encoding or scaling than the checkpoint's own, or null. Parameters that it adds have their
/// initial values.
LoadedModel load_model(const std::string& path, Device device, DType type, const PositionConfig* position = nullptr);

}  // namespace capstan::framework
