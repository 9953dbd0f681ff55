#pragma once
// A model small enough to differentiate by hand, and batches for it that any ranks can make.

#include <memory>
#include <string>
#include <vector>

#include "framework/model.h"

namespace capstan::tests {

/// Tables of a few rows, so that a dozen tokens reach their ends.
framework::PositionConfig tiny_position();

/// What model.norm, model.bias and model.mlp make of the block.
struct BlockForm {
  std::string norm = "pre", bias = "false", mlp = "swiglu";
  std::string text() const { return norm + "_bias_" + bias + "_" + mlp; }
};
/// The block of the papers before Llama.
const BlockForm post_bias_gelu{"post", "true", "gelu"};
/// Every value and most pairs; Llama's block first.
const std::vector<BlockForm>& block_forms();

struct TinyShape {
  std::string kind = "rope";
  framework::PositionConfig position = tiny_position();  ///< all but the kind
  bool tied = true;
  std::int64_t layers = 2, heads = 4, kv_heads = 2, head_size = 4, vocabulary = 13, tile = 4;
  kernels::Device device = kernels::Device::ref;
  kernels::DType type = kernels::DType::f64;
  int ranks = 1;       ///< of the optimizer's shards
  double scale = 0.4;  ///< of matrices; large ones magnify rounding from layer to layer
  std::int64_t lora_rank = 0;
  std::string lora_targets = "*_proj";
  BlockForm form = {};
};

/// All parameters random, also those that begin at zero (CoPE's table, TAPE's alpha and W_d), so that every path is alive; those
/// with given values near these.
std::unique_ptr<framework::Model> tiny_model(const TinyShape& shape, std::uint64_t seed = 1);

/// A kind of every sort of term, state and rotation; conformance_test.cpp has them all.
std::vector<std::string> tiny_kinds();
/// A kind as part of a test's name.
std::string name_of_kind(const std::string& kind);

/// A kind in a block.
struct TinyCase {
  std::string kind;
  BlockForm form = {};
  std::string text() const;  ///< as part of a test's name
};
/// All tiny kinds in Llama's block, and some in others.
std::vector<TinyCase> tiny_cases();

/// `sequences` random sequences of `length` tokens, this rank's shard. documents: lengths of packed documents (the last one
/// takes the rest); empty: one document. Every seventh target counts nothing.
framework::Batch tiny_batch(const parallel::SequenceLayout& layout, int rank, const TinyShape& shape,
                            std::int64_t sequences, const std::vector<std::int64_t>& documents = {},
                            std::uint64_t seed = 5);

/// The ring of a model with blocks and kv heads such as the tiny ones'.
parallel::Ring tiny_ring(parallel::Communicator& comm, std::int64_t length, std::int64_t tile);

/// Sum of nll over all ranks, after forward and backward; gradients summed over the ranks too.
struct LossAndGradients {
  double loss = 0;
  std::vector<double> gradients;  ///< the trainable buffer, without padding
};
LossAndGradients loss_and_gradients(framework::Model& model, const parallel::Ring& ring, const framework::Batch& batch,
                                    std::int64_t tile, framework::Keep keep = framework::Keep::ring);

}  // namespace capstan::tests
