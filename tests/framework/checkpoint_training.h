#pragma once
// A small model in training, for the tests of checkpoints.

#include <memory>
#include <string>

#include "framework/checkpoint.h"
#include "tests/framework/test_folder.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using framework::CheckpointExtras;
using framework::CheckpointHeader;
using framework::Model;
using framework::OptimizerShard;
using framework::Parameter;
using framework::Parameters;
using framework::ShardRange;
using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using parallel::Communicator;

inline const std::string frozen_name = "model.layers.0.mlp.up_proj.weight";

/// A small model in training: one tensor frozen, moments for the rest. The same on every rank.
struct Training {
  explicit Training(DType type = DType::f32, std::int64_t step = 7, const std::string& kind = "rope+cope") {
    header.step = header.optimizer_steps = step;
    header.model.from = "runs/base, \"quoted\" é";
    header.model.hidden_size = 12;
    header.model.mlp_size = 20;
    header.model.layers = 2;
    header.model.heads = 2;
    header.model.vocabulary = 260;  // room for the byte tokenizer
    header.model.max_length = 32;
    header.model.norm_eps = 0.1 + 0.2;  // needs all its digits
    header.model.init_std = 1.0 / 3;
    header.position.kind = kind;
    header.position.theta = 12345.678901234567;
    header.position.cope_positions = 5;
    resolve_sizes(header.model, header.position);
    header.recipe = "[train]\nsteps = 7\n";
    header.tokenizer = "bytes";
    header.end_tokens = {3, 1};
    header.bos = 2;
    model = std::make_unique<Model>(header.model, header.position);
    parameters().allocate(Device::ref, type, false, [](const std::string& name) { return name != frozen_name; });
    std::uint64_t seed = std::uint64_t(100 * step);
    for (Parameter& p : parameters().all()) p.value.copy_from(random_tensor(p.shape, type, Device::ref, ++seed));
    const Shape moments{parameters().trainable_elements()};
    m = random_tensor(moments, type, Device::ref, ++seed);
    v = random_tensor(moments, type, Device::ref, ++seed);
  }

  Parameters& parameters() { return model->parameters(); }
  OptimizerShard shard(int rank, int ranks) const {
    const ShardRange range = framework::shard_range(m.view().elements(), rank, ranks);
    return {range.begin, range.end, m.view().rows(range.begin, range.end), v.view().rows(range.begin, range.end)};
  }
  std::string save(Communicator& world, const std::string& parent, const std::string& name = "") {
    return save_checkpoint(world, parent, name, header, extras, parameters(), shard(world.rank(), world.size()));
  }
  std::string save_alone(const std::string& parent, const std::string& name = "") {
    return save(*parallel::make_self_communicator(), parent, name);
  }

  CheckpointHeader header;
  CheckpointExtras extras{"", "{\"model_type\": \"llama\"}", {{"b", "BF16"}, {"a", "F32"}}};
  std::unique_ptr<Model> model;
  Tensor m, v;
};

inline void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace capstan::tests
