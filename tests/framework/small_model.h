#pragma once
// Small models with random, non-zero parameters, also those that an encoding begins with as zero.

#include <memory>
#include <string>

#include "framework/model.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_model.h"

namespace capstan::tests {

struct SmallModel {
  std::string kind = "rope";
  kernels::DType type = kernels::DType::f64;
  kernels::Device device = kernels::Device::ref;
  std::int64_t vocabulary = 37;
  double scale = 0.4;  ///< of every parameter; 0: all zero, so that every token is equally likely
  BlockForm form = {};
};

inline std::unique_ptr<framework::Model> small_model(const SmallModel& wish,
                                                     framework::PositionConfig position = tiny_position()) {
  framework::ModelConfig config;
  config.hidden_size = 24;
  config.mlp_size = 40;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.vocabulary = wish.vocabulary;
  config.max_length = 700;
  config.norm = wish.form.norm;
  config.bias = wish.form.bias;
  config.mlp = wish.form.mlp;
  if (position.original_length == 0) position.original_length = 128;
  position.kind = wish.kind;
  position.cope_positions = 9;
  framework::resolve_sizes(config, position);
  auto model = std::make_unique<framework::Model>(config, position);
  model->parameters().allocate(wish.device, wish.type, false, [](const std::string&) { return false; });
  std::uint64_t seed = 100;
  for (framework::Parameter& parameter : model->parameters().all())
    if (parameter.init == framework::Init::given) {
      parameter.value.copy_from(tensor_of(parameter.shape, wish.type, wish.device, parameter.given));
    } else {
      parameter.value.copy_from(random_tensor(parameter.shape, wish.type, wish.device, ++seed, wish.scale));
    }
  return model;
}

/// The whole sequence on this rank alone.
inline framework::Batch whole_batch(const std::vector<std::int32_t>& ids, kernels::Device device) {
  using kernels::DType;
  const kernels::Shape shape{1, std::int64_t(ids.size())};
  framework::Batch batch;
  batch.length = std::int64_t(ids.size());
  batch.tokens = kernels::Tensor(shape, DType::i32, device);
  batch.targets = kernels::Tensor(shape, DType::i32, device);
  for (kernels::Tensor* x : {&batch.index, &batch.position, &batch.document})
    *x = kernels::Tensor(shape, DType::i64, device);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    batch.tokens.as<std::int32_t>()[t] = ids[t];
    batch.targets.as<std::int32_t>()[t] = t + 1 < ids.size() ? ids[t + 1] : -1;
    batch.index.as<std::int64_t>()[t] = batch.position.as<std::int64_t>()[t] = std::int64_t(t);
  }
  return batch;
}

}  // namespace capstan::tests
