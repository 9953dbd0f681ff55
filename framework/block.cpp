#include "framework/block.h"

#include <algorithm>

#include "kernels/converted.h"
#include "kernels/elementwise.h"
#include "kernels/host_view.h"
#include "kernels/position_mlp.h"

namespace capstan::framework {

using kernels::Into;
using kernels::WideView;

namespace {

Tensor rows_of(const View& like, std::int64_t columns) {
  return Tensor({like.dim(0), columns}, like.type(), like.device(), kernels::Fill::none);
}

void collect(LayerStats& stats, const SequenceContext& context, const parallel::RingSaved& ring, const View& z_next) {
  if (ring.horizon[0] && context.ring) {
    const parallel::SequenceLayout& layout = context.ring->layout;
    const kernels::HostView host(ring.horizon[0]);
    const View& horizon = host.view();  // [B, tiles, H]
    for (int chunk : layout.owned(context.ring->comm.rank())) {
      const parallel::Chunk& c = layout.chunks()[std::size_t(chunk)];
      const std::int64_t first = layout.local_offset(chunk, context.tile);
      for (std::int64_t b = 0; b < horizon.dim(0); ++b)
        for (std::int64_t tile = 0; tile < c.steps(context.tile); ++tile) {
          const std::int64_t last = std::min(c.end, c.begin + (tile + 1) * context.tile) - 1;
          for (std::int64_t h = 0; h < horizon.dim(2); ++h) {
            stats.horizon_sum += double(last - horizon[b][first + tile].as<std::int64_t>()[h]);
            stats.horizons += 1;
          }
        }
    }
  }
  if (z_next) {
    const kernels::MagnitudeSum magnitude = kernels::complex_magnitude(z_next);
    stats.z_sum += magnitude.sum;
    stats.z_max = std::max(stats.z_max, magnitude.max);
    stats.z_count += magnitude.count;
  }
}

}  // namespace

Block::Block(const ModelConfig& config, int layer, Encoding& encoding, Parameters& parameters)
    : layer_(layer), activation_(config.mlp == "swiglu" ? kernels::Activation::silu : kernels::Activation::gelu),
      encoding_(encoding), attention_(config, fmt::format("model.layers.{}", layer), layer, encoding, parameters),
      norm_(config, fmt::format("model.layers.{}.post_attention_layernorm", layer), parameters),
      gate_(config.gated()
                ? std::optional<Linear>(std::in_place, config, fmt::format("model.layers.{}.mlp.gate_proj", layer),
                                        config.mlp_size, config.hidden_size, config.mlp_bias(), parameters)
                : std::nullopt),
      up_(config, fmt::format("model.layers.{}.mlp.up_proj", layer), config.mlp_size, config.hidden_size,
          config.mlp_bias(), parameters),
      down_(config, fmt::format("model.layers.{}.mlp.down_proj", layer), config.hidden_size, config.mlp_size,
            config.mlp_bias(), parameters) {
  if (config.norm == "post")
    last_norm_.emplace(config, fmt::format("model.layers.{}.post_feedforward_layernorm", layer), parameters);
}

/// s = x + drop(W_o y)
Tensor Block::after_attention(const SequenceContext& context, const View& x, const parallel::RingSaved& ring) const {
  Tensor s = zeros_like(x);
  if (context.dropout.rate == 0) {
    s.view().copy_from(x);
    attention_.project(s, ring);
    return s;
  }
  attention_.project(s, ring);
  drop(s, context.rows.index, context.dropout, layer_, "attention");
  kernels::add(s, x);
  return s;
}

// m = W_down h,  h = f(W_gate y) · W_up y or f(W_up y),  y = norm(s)

MlpLocal Block::mlp_local(const View& s) const {
  const Tensor y = norm_.forward(s);
  const std::int64_t hidden = up_.outputs();
  MlpLocal local{gate_ ? rows_of(s, hidden) : Tensor(), rows_of(s, hidden), {}};
  if (gate_) gate_->forward(local.gate, y);
  up_.forward(local.up, y);
  return local;
}

void Block::activate(const View& h, const View& gate, const View& up) const {
  if (gate_) kernels::gated_forward(h, gate, up, activation_);
  else kernels::activation_forward(h, up, activation_);
}

/// dgate, dup may be the memory of gate, up.
void Block::activate_backward(const View& dgate, const View& dup, const View& dh, const View& gate,
                              const View& up) const {
  if (gate_) kernels::gated_backward(dgate, dup, dh, gate, up, activation_);
  else kernels::activation_backward(dup, dh, up, activation_);
}

Tensor Block::mlp_output(const MlpLocal& local) const {
  const Tensor h = empty_like(local.up);
  activate(h, local.gate, local.up);
  Tensor m = rows_of(h, down_.outputs());
  down_.forward(m, h);
  return m;
}

/// s + drop(m); post: norm(s) + drop(m), which the last norm reads
Tensor Block::after_mlp(const SequenceContext& context, const Tensor& s, const Tensor& m) const {
  Tensor sum = last_norm_ ? norm_.forward(s) : s.clone();
  if (context.dropout.rate == 0) {
    kernels::add(sum, m);
    return sum;
  }
  const Tensor dropped = m.clone();
  drop(dropped, context.rows.index, context.dropout, layer_, "mlp");
  kernels::add(sum, dropped);
  return sum;
}

/// From m's last line up, in blocks of rows, so that what was not kept is made again for one of them at a time. dx, the gradient
/// of what m is added to, becomes that of s; it may be dm.
void Block::mlp_backward(const View& dx, const View& dm, const View& s, const MlpLocal* kept) const {
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < s.dim(0); begin += block) {
    const auto rows = [&](const View& x) { return x ? x.rows(begin, std::min(begin + block, x.dim(0))) : View(); };
    const MlpLocal made = kept ? MlpLocal() : mlp_local(rows(s));
    const MlpLocal& local = kept ? *kept : made;
    const auto of = [&](const Tensor& x) { return !x ? View() : kept ? rows(x) : x.view(); };
    mlp_rows_backward(rows(dx), rows(dm), rows(s), of(local.gate), of(local.up));
  }
}

/// Gradients take the memory of what they are of.
void Block::mlp_rows_backward(const View& dx, const View& dm, const View& s, const View& gate, const View& up) const {
  {
    const Tensor h = empty_like(up);
    activate(h, gate, up);
    down_.backward_weight(dm, h);
    const Tensor& dh = h;
    down_.backward_input(dh, dm);
    activate_backward(gate, up, dh, gate, up);
  }
  const View &dgate = gate, &dup = up;
  const Tensor y = norm_.forward(s);
  if (gate_) gate_->backward_weight(dgate, y);
  up_.backward_weight(dup, y);
  const Tensor& dy = y;
  if (gate_) gate_->backward_input(dy, dgate);
  up_.backward_input(dy, dup, gate_ ? Into::add : Into::overwrite);
  if (last_norm_) kernels::add(dy, dx);  // m was added to y, not to s
  norm_.backward(dx, dy, s, last_norm_ ? Into::overwrite : Into::add);
}

BlockOutput Block::forward(const SequenceContext& context, Tensor x, Tensor z, Keep keep, BlockSaved& saved,
                           LayerStats* stats) const {
  AttentionLocal local = attention_.local(x, z);
  parallel::RingSaved ring = attention_.attend(context, local, z, stats ? &stats->attention : nullptr);
  if (keep == Keep::everything) saved.attention = std::move(local);
  local = {};
  Tensor s = after_attention(context, x, ring);
  MlpLocal hidden = mlp_local(s);
  Tensor m = mlp_output(hidden);

  BlockOutput out;
  out.x = after_mlp(context, s, m);
  if (last_norm_) out.x = last_norm_->forward(out.x);
  if (encoding_.travels(layer_)) out.z = encoding_.update(layer_, z, attention_.state_average(ring), WideView(m));
  if (reads_output()) hidden.m = std::move(m);
  if (stats) collect(*stats, context, ring, out.z);

  if (keep == Keep::nothing) return out;
  saved.x = std::move(x);
  saved.z = std::move(z);
  if (keep != Keep::inputs) saved.ring = std::move(ring);
  if (keep == Keep::everything) {
    saved.s = std::move(s);
    saved.mlp = std::move(hidden);
  }
  return out;
}

/// Quotes forward from its last line up. What was not kept is computed again by the same functions, so the bits are the same.
void Block::backward(const SequenceContext& context, Tensor& dx, Tensor& dz, BlockSaved& saved) const {
  const AttentionLocal local = saved.attention ? std::move(*saved.attention) : attention_.local(saved.x, saved.z);
  const parallel::RingSaved ring =
      saved.ring ? std::move(*saved.ring) : attention_.attend(context, local, saved.z, nullptr);
  Tensor s = saved.s ? std::move(saved.s) : after_attention(context, saved.x, ring);
  std::optional<MlpLocal> hidden = std::move(saved.mlp);
  if (reads_output() && !hidden) hidden = mlp_local(s);
  if (reads_output() && !hidden->m) hidden->m = mlp_output(*hidden);

  // out.x = sum, or norm(sum)
  if (last_norm_) {
    const Tensor sum = after_mlp(context, s, hidden->m);
    Tensor d_sum = empty_like(dx);
    last_norm_->backward(d_sum, dx, sum, Into::overwrite);
    dx = std::move(d_sum);
  }

  // sum = s + drop(m) or norm(s) + drop(m), out.z = update(z, p, m)
  const auto dropped = [&](const char* site) {  // dx itself, where nothing is dropped
    Tensor d = context.dropout.rate > 0 ? dx.clone() : Tensor();
    if (d) drop(d, context.rows.index, context.dropout, layer_, site);
    return d;
  };
  Tensor dm = dropped("mlp"), dz_in, dp;
  if (!dm && encoding_.travels(layer_)) dm = dx.clone();
  if (saved.z) dz_in = zeros_like(saved.z);
  if (encoding_.travels(layer_)) {
    const Tensor p = attention_.state_average(ring);
    dp = zeros_like(p);
    if (dm.view().type() == p.view().type()) {
      encoding_.update_backward(layer_, dz_in, dp, dm, dz, saved.z, p, hidden->m);
    } else {
      const WideView dm_sum(dm), m(hidden->m);
      encoding_.update_backward(layer_, dz_in, dp, dm_sum, dz, saved.z, p, m);
      kernels::convert(dm, dm_sum);
    }
  }
  mlp_backward(dx, dm ? dm : dx, s, hidden ? &*hidden : nullptr);  // dx is now that of s

  // s = x + drop(W_o y(x, z))
  s = {};
  hidden.reset();
  dm = {};
  const Tensor d_mid = dropped("attention");
  attention_.backward(context, dx, dz_in, d_mid ? d_mid : dx, dp, saved.x, saved.z, local, ring);
  dz = std::move(dz_in);
}

}  // namespace capstan::framework
