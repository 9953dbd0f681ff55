#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/host_view.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::DType;
using kernels::Tensor;

std::vector<std::string> tiny_kinds() {
  return {"none",   "learned", "rope", "xpos",      "cope+relative",
          "t5",     "fire",    "cope", "rope+cope", "rope+hierarchical_cope",
          "forget", "tape"};
}

std::string name_of_kind(const std::string& kind) {
  std::string name = kind;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
}

const std::vector<BlockForm>& block_forms() {
  static const std::vector<BlockForm> forms{
      {},
      post_bias_gelu,
      {"pre", "mlp", "geglu"},
      {"post", "attention", "swiglu"},
      {"pre", "true", "gelu"},
      {"post", "false", "geglu"},
  };
  return forms;
}

std::string TinyCase::text() const {
  const std::string name = name_of_kind(kind);
  return form.text() == BlockForm().text() ? name : name + "_" + form.text();
}

std::vector<TinyCase> tiny_cases() {
  std::vector<TinyCase> cases;
  for (const std::string& kind : tiny_kinds()) cases.push_back({kind});
  for (const char* kind : {"rope", "rope+cope", "tape"}) cases.push_back({kind, post_bias_gelu});
  cases.push_back({"xpos", {"pre", "true", "geglu"}});
  return cases;
}

framework::PositionConfig tiny_position() {
  framework::PositionConfig position;
  position.cope_positions = 6;  // P = 5: rows saturate within a dozen tokens
  position.block_size = 4;
  position.block_positions = 4;
  position.relative_positions = 7;
  position.t5_buckets = 8;
  position.t5_distance = 20;
  position.fire_width = 16;  // some of them bend between 0 and 1
  position.fire_length = 9;
  position.randomized_length = 600;
  return position;
}

std::unique_ptr<framework::Model> tiny_model(const TinyShape& shape, std::uint64_t seed) {
  framework::ModelConfig config;
  config.hidden_size = 12;
  config.mlp_size = 10;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_size = shape.head_size;
  config.vocabulary = shape.vocabulary;
  config.tied = shape.tied;
  config.max_length = 300;
  config.lora_rank = shape.lora_rank;
  config.lora_targets = shape.lora_targets;
  config.norm = shape.form.norm;
  config.bias = shape.form.bias;
  config.mlp = shape.form.mlp;
  framework::PositionConfig position = shape.position;
  position.kind = shape.kind;
  if (position.original_length == 0) position.original_length = 64;
  framework::resolve_sizes(config, position);
  auto model = std::make_unique<framework::Model>(config, position);
  model->parameters().allocate(
      shape.device, kernels::wide(shape.type), true, [](const std::string&) { return true; }, shape.ranks);
  std::uint64_t stream = seed * 1000;
  for (framework::Parameter& p : model->parameters().all()) {
    // Wide sums (many heads, TAPE's MLP over them) get smaller terms: activations stay of order one at every shape.
    const double scale = p.shape.rank() == 1 ? 0.1 : shape.scale * std::sqrt(std::min(1.0, 12.0 / double(p.shape[-1])));
    p.value.copy_from(random_tensor(p.shape, p.value.type(), shape.device, ++stream, scale));
    if (p.init != framework::Init::one && p.init != framework::Init::given) continue;
    kernels::update_on_host(p.value, [&](const kernels::View& host) {
      kernels::with_real(host.type(), [&](auto real) {
        using Real = decltype(real);
        for (std::int64_t i = 0; i < host.elements(); ++i) {
          Real& value = host.as<Real>()[i];
          value = p.init == framework::Init::one ? 1 + value : Real(p.given[std::size_t(i)]) * (1 + value);
        }
      });
    });
  }
  if (shape.type == DType::bf16) model->parameters().narrow();
  return model;
}

framework::Batch tiny_batch(const parallel::SequenceLayout& layout, int rank, const TinyShape& shape,
                            std::int64_t sequences, const std::vector<std::int64_t>& documents, std::uint64_t seed) {
  const std::vector<std::int64_t> index = layout.local_index(rank);
  const std::int64_t local = std::int64_t(index.size());
  framework::Batch batch;
  batch.length = layout.length();
  const kernels::Device filled = kernels::filled_on(shape.device);
  for (Tensor* ints : {&batch.tokens, &batch.targets}) *ints = Tensor({sequences, local}, DType::i32, filled);
  for (Tensor* longs : {&batch.index, &batch.position, &batch.document})
    *longs = Tensor({sequences, local}, DType::i64, filled);
  const auto token = [&](std::int64_t b, std::int64_t t) {
    return std::int32_t(random_bits(seed + std::uint64_t(b), std::uint64_t(t)) % std::uint64_t(shape.vocabulary));
  };
  for (std::int64_t b = 0; b < sequences; ++b)
    for (std::int64_t i = 0; i < local; ++i) {
      const std::int64_t t = index[i], at = b * local + i;
      std::int64_t document = 0, begin = 0;
      while (document < std::int64_t(documents.size()) && t >= begin + documents[document])
        begin += documents[document++];
      batch.tokens.as<std::int32_t>()[at] = token(b, t);
      batch.targets.as<std::int32_t>()[at] = t % 7 == 6 ? -1 : token(b, t + 1);
      batch.index.as<std::int64_t>()[at] = t;
      batch.position.as<std::int64_t>()[at] = t - begin;
      batch.document.as<std::int64_t>()[at] = document;
    }
  batch.move_to(shape.device);
  return batch;
}

parallel::Ring tiny_ring(parallel::Communicator& comm, std::int64_t length, std::int64_t tile) {
  parallel::RingPlan plan = parallel::plan_ring({"auto", comm.size(), 0, 2, length, std::lcm(tile, std::int64_t(4))});
  return {comm, std::move(plan.layout), std::move(plan.schedule)};
}

LossAndGradients loss_and_gradients(framework::Model& model, const parallel::Ring& ring, const framework::Batch& batch,
                                    std::int64_t tile, framework::Keep keep) {
  model.parameters().gradients().fill_zero();
  framework::Pass pass = model.forward(ring, batch, tile, keep);
  LossAndGradients out;
  for (const double of_token : kernels::host_values<double>(pass.nll)) out.loss += of_token;
  out.loss = ring.comm.all_reduce(out.loss);
  model.backward(batch, pass);
  Tensor sum = zeros_like(model.parameters().gradients());
  sum.view().copy_from(model.parameters().gradients());
  ring.comm.all_reduce(sum);
  out.gradients = values_of(sum);
  out.gradients.resize(std::size_t(model.parameters().trainable_elements()));
  return out;
}

}  // namespace capstan::tests
