#include "framework/model.h"

#include "kernels/converted.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/host_view.h"
#include "kernels/linear.h"
#include "kernels/memory.h"

namespace capstan::framework {

using kernels::Fill;
using kernels::WideView;

void resolve_sizes(ModelConfig& model, PositionConfig& position) {
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_size == 0) model.head_size = model.hidden_size / model.heads;
  if (position.tape_width == 0) position.tape_width = 4 * model.kv_heads;
  if (position.original_length == 0) position.original_length = model.max_length;
}

void Batch::move_to(Device device) {
  for (Tensor* each : {&tokens, &targets, &index, &position, &document})
    *each = kernels::moved_to(std::move(*each), device);
}

Model::Model(const ModelConfig& config, const PositionConfig& position)
    : config_(config), position_(position),
      encoding_(
          make_encoding(position, {config.layers, config.hidden_size, config.heads, config.kv_heads, config.head_size,
                                   position.original_length, std::max<std::int64_t>(1, config.max_length)})),
      embed_(parameters_.declare("model.embed_tokens.weight", {config.vocabulary, config.hidden_size}, Init::normal)) {
  CAPSTAN_CHECK(config.vocabulary > 0 && config.kv_heads > 0 && config.head_size > 0, "sizes are not resolved");
  for (int layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, layer, *encoding_, parameters_);
  if (config.norm == "pre") norm_.emplace(config, "model.norm", parameters_);
  if (!config.tied)
    lm_head_ = &parameters_.declare("lm_head.weight", {config.vocabulary, config.hidden_size}, Init::normal);
  encoding_->declare(parameters_);
}

Tensor Model::embed(const View& tokens) {
  Tensor x({tokens.elements(), config_.hidden_size}, type(), embed_.value.device(), Fill::none);
  kernels::embedding_forward(x, tokens.reshape({tokens.elements()}), embed_.value);
  const WideView sum(x);
  encoding_->embed(sum);
  if (x.view().type() != kernels::wide(type())) kernels::convert(x, sum);
  return x;
}

/// The rows with the positions that the encoding gives them, which `position` holds.
TokenRows Model::place(const TokenRows& rows, const std::vector<std::uint64_t>& draws, std::int64_t length,
                       Tensor& position) {
  if (!encoding_->claims().positions) return rows;
  position = zeros_like(rows.position);
  position.view().copy_from(rows.position);
  encoding_->place(position, draws, length);
  return {rows.index, position, rows.document};
}

parallel::Ring Model::make_ring(parallel::Communicator& comm, std::int64_t length, std::int64_t tile,
                                const GridConfig& grid, bool shifted) const {
  const std::string schedule = parallel::resolve_schedule(grid.schedule, comm.size());
  if (const std::string reason = refuse_pair(position_, schedule); !reason.empty())
    fail(ExitCode::config, "{}", reason);
  parallel::RingPlan plan = parallel::plan_ring(
      {schedule, comm.size(), int(grid.heads), heads_of_ring(config_.kv_heads, shifted), length, unit(tile)});
  return {comm, std::move(plan.layout), std::move(plan.schedule)};
}

Pass Model::forward(const parallel::Ring& ring, const Batch& batch, std::int64_t tile, Keep keep,
                    std::vector<LayerStats>* stats) {
  const Device device = embed_.value.device();
  const kernels::MemoryPurpose purpose("activations");
  Pass pass;
  const TokenRows rows = place(batch.rows(), batch.dropout.draws, batch.length, pass.position);
  if (batch.shifted_groups > 0)
    pass.shifted = std::make_unique<ShiftedSegments>(shifted_segments(rows, batch.length, batch.shifted_groups));
  const Attend attend = [&ring, shifted = pass.shifted.get()](int, const parallel::RingInputs& in,
                                                              const kernels::AttentionSettings& settings,
                                                              kernels::AttentionStats* counts) {
    return shifted ? shifted_attention_forward(ring, *shifted, in, settings, counts)
                   : ring_attention_forward(ring, in, settings, counts);
  };
  pass.context = {batch.sequences(), batch.tokens.shape()[1], rows, attend, &ring, tile,
                  batch.dropout,     pass.shifted.get()};
  encoding_->begin(rows, batch.declared_length ? batch.declared_length : batch.length, device, kernels::wide(type()));

  Tensor x = embed(batch.tokens), z = encoding_->first_state();
  drop(x, rows.index, batch.dropout, 0, "embedding");
  pass.blocks.resize(blocks_.size());
  if (stats) stats->resize(blocks_.size());
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    BlockOutput out = blocks_[layer].forward(pass.context, std::move(x), std::move(z), keep, pass.blocks[layer],
                                             stats ? &(*stats)[layer] : nullptr);
    x = std::move(out.x);
    z = std::move(out.z);
  }

  const std::int64_t n = x.shape()[0];
  if (norm_) {
    pass.xn = norm_->forward(x);
    pass.x_last = std::move(x);
  } else {
    pass.xn = std::move(x);
  }
  pass.nll = Tensor({n}, DType::f64, device);
  pass.lse = Tensor({n}, DType::f64, device);
  kernels::cross_entropy_forward(pass.nll, pass.lse, pass.xn, output().value, batch.targets.view().reshape({n}));
  return pass;
}

/// From the last line of forward up.
Tensor Model::backward(const Batch& batch, Pass& pass) {
  const kernels::MemoryPurpose purpose("backward");
  const std::int64_t n = pass.xn.shape()[0];
  Tensor dxn = empty_like(pass.xn), dx, dz;
  kernels::cross_entropy_backward(dxn, output().grad, pass.lse, pass.xn, output().value,
                                  batch.targets.view().reshape({n}));
  if (norm_) {
    dx = std::move(pass.xn);  // its memory
    norm_->backward(dx, dxn, pass.x_last, kernels::Into::overwrite);
    dxn = {};
    pass.x_last = {};
  } else {
    pass.xn = {};
    dx = std::move(dxn);
  }
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    blocks_[layer].backward(pass.context, dx, dz, pass.blocks[layer]);
    pass.blocks[layer] = {};
  }
  Tensor d_input = dx.clone();
  drop(dx, batch.index, batch.dropout, 0, "embedding");
  encoding_->embed_backward(WideView(dx));
  if (embed_.grad) kernels::embedding_backward(embed_.grad, batch.tokens.view().reshape({n}), dx);
  return d_input;
}

Tensor Model::hidden(SequenceContext context, const View& tokens, std::int64_t total_length) {
  const kernels::MemoryPurpose purpose("activations");
  Tensor position;
  context.rows = place(context.rows, {}, total_length, position);
  encoding_->begin(context.rows, total_length, embed_.value.device(), kernels::wide(type()));
  Tensor x = embed(tokens), z = encoding_->first_state();
  BlockSaved unused;
  for (const Block& block : blocks_) {
    BlockOutput out = block.forward(context, std::move(x), std::move(z), Keep::nothing, unused, nullptr);
    x = std::move(out.x);
    z = std::move(out.z);
  }
  return norm_ ? norm_->forward(x) : std::move(x);
}

Tensor Model::logits(const View& hidden_rows) const {
  Tensor out({hidden_rows.dim(0), config_.vocabulary}, kernels::wide(type()), hidden_rows.device(), Fill::none);
  kernels::linear_forward(out, hidden_rows, output().value);
  return out;
}

}  // namespace capstan::framework
