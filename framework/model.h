#pragma once
// The whole model: embedding → blocks → norm → loss. Llama architecture, or with what the options of [model] have in its place.
// With model.norm = post there is no norm before the loss: the last block ends with one.

#include <memory>
#include <numeric>
#include <vector>

#include "framework/block.h"

namespace capstan::framework {

/// The local shard of B sequences of the same length. T = layout.local_tokens(rank).
struct Batch {
  std::int64_t length = 0;           ///< S, tokens of each whole sequence
  std::int64_t declared_length = 0;  ///< total length for scalings that depend on it; 0: length
  Tensor tokens;                     // [B, T] i32
  Tensor targets;                    // [B, T] i32, -1 counts nothing
  Tensor index, position, document;  // [B, T] i64; position: place in the document
  Dropout dropout;                   ///< of training; its draws also move random positions
  std::int64_t shifted_groups = 0;   ///< of training: shifted sparse attention in so many groups; 0: full attention
  std::int64_t sequences() const { return tokens.shape()[0]; }
  TokenRows rows() const { return {index, position, document}; }
  /// The host fills a batch; its model takes it from its own device.
  void move_to(Device device);
};

/// A forward pass: its loss terms and what backward needs.
struct Pass {
  SequenceContext context;
  Tensor position;                           // [B, T] as the encoding placed it, if it did
  std::unique_ptr<ShiftedSegments> shifted;  // of shifted sparse attention
  Tensor x_last;                             // [N, C] after the last block; empty without a final norm
  Tensor xn;                                 // [N, C] after the final norm, if there is one
  Tensor nll, lse;                           // [N] f64 per local token; nll is 0 where nothing counts
  std::vector<BlockSaved> blocks;
};

class Model {
 public:
  /// Declares the parameters; allocate() and a source of values come after. Sizes of 0 in the config must be resolved.
  Model(const ModelConfig& config, const PositionConfig& position);

  const ModelConfig& config() const { return config_; }
  const PositionConfig& position() const { return position_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  /// Of weights and activations: f64, f32 or bf16.
  DType type() const { return embed_.value.type(); }
  Device device() const { return embed_.value.device(); }
  int layers() const { return int(blocks_.size()); }
  Encoding& encoding() { return *encoding_; }
  const Encoding& encoding() const { return *encoding_; }
  /// Chunk edges lie at multiples of this: lcm(tile, block).
  std::int64_t unit(std::int64_t tile) const { return std::lcm(tile, encoding_->block()); }
  /// A ring for sequences of `length` tokens. shifted: also for halves of the heads (shifted_attention.h). Errors (config): as
  /// plan_ring, and pairs that refuse_pair names.
  parallel::Ring make_ring(parallel::Communicator& comm, std::int64_t length, std::int64_t tile,
                           const GridConfig& grid = {}, bool shifted = false) const;

  /// Loss terms of the local tokens. stats: one entry per layer, or null.
  Pass forward(const parallel::Ring& ring, const Batch& batch, std::int64_t tile, Keep keep,
               std::vector<LayerStats>* stats = nullptr);
  /// Adds the gradient of the *sum* of all nll to the parameters' gradients. Returns that of the residual stream [N, C]
  /// that enters layer 0.
  Tensor backward(const Batch& batch, Pass& pass);

  /// Hidden rows [N, C] that logits are of, with any attention behind (generation). tokens [B, T].
  Tensor hidden(SequenceContext context, const View& tokens, std::int64_t total_length);
  /// logits [N, V] of hidden rows [N, C].
  Tensor logits(const View& hidden_rows) const;

 private:
  const Parameter& output() const { return lm_head_ ? *lm_head_ : embed_; }
  Tensor embed(const View& tokens);
  TokenRows place(const TokenRows& rows, const std::vector<std::uint64_t>& draws, std::int64_t length,
                  Tensor& position);

  ModelConfig config_;
  PositionConfig position_;
  Parameters parameters_;
  std::unique_ptr<Encoding> encoding_;
  Parameter& embed_;
  std::vector<Block> blocks_;
  std::optional<Norm> norm_;      // pre
  Parameter* lm_head_ = nullptr;  // absent when tied
};

/// Fills sizes that are 0 by their rules (kv_heads, head_size, tape_width, original_length). V must be known.
void resolve_sizes(ModelConfig& model, PositionConfig& position);

}  // namespace capstan::framework
