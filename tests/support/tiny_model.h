#pragma once
// A model small enough to differentiate by hand, and batches for it that any ranks can make.

#include <memory>
#include <string>
#include <vector>

#include "framework/model.h"

namespace capstan::tests {

struct TinyShape {
  std::string kind = "rope";
  bool tied = true;
  std::int64_t layers = 2, heads = 4, kv_heads = 2, head_size = 4, vocabulary = 13, tile = 4;
  kernels::Device device = kernels::Device::ref;
  kernels::DType type = kernels::DType::f64;
  int ranks = 1;  ///< of the optimizer's shards
};

/// All parameters random, also those that begin at zero (CoPE's table, TAPE's alpha and W_d), so that every path is alive.
std::unique_ptr<framework::Model> tiny_model(const TinyShape& shape, std::uint64_t seed = 1);

/// The encodings that recipes of the main job use.
std::vector<std::string> tiny_kinds();

/// `sequences` random sequences of `length` tokens, this rank's shard. documents: lengths of packed documents (the last one
/// takes the rest); empty: one document. Every seventh target counts nothing.
framework::Batch tiny_batch(const parallel::SequenceLayout& layout, int rank, const TinyShape& shape,
                            std::int64_t sequences, const std::vector<std::int64_t>& documents = {},
                            std::uint64_t seed = 5);

parallel::Ring tiny_ring(parallel::Communicator& comm, std::int64_t length, std::int64_t tile);

/// Sum of nll over all ranks, after forward and backward; gradients summed over the ranks too.
struct LossAndGradients {
  double loss = 0;
  std::vector<double> gradients;  ///< the trainable buffer, without padding
};
LossAndGradients loss_and_gradients(framework::Model& model, const parallel::Ring& ring, const framework::Batch& batch,
                                    std::int64_t tile, framework::Keep keep = framework::Keep::ring);

}  // namespace capstan::tests
