#include "framework/block.h"

#include <algorithm>

#include "kernels/converted.h"
#include "kernels/elementwise.h"
#include "kernels/host_view.h"
#include "kernels/position_mlp.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

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
    : layer_(layer), norm_eps_(config.norm_eps), encoding_(encoding),
      attention_(config, fmt::format("model.layers.{}", layer), layer, encoding, parameters),
      norm_(parameters.declare(fmt::format("model.layers.{}.post_attention_layernorm.weight", layer),
                               {config.hidden_size}, Init::one)),
      gate_(config, fmt::format("model.layers.{}.mlp.gate_proj", layer), config.mlp_size, config.hidden_size,
            parameters),
      up_(config, fmt::format("model.layers.{}.mlp.up_proj", layer), config.mlp_size, config.hidden_size, parameters),
      down_(config, fmt::format("model.layers.{}.mlp.down_proj", layer), config.hidden_size, config.mlp_size,
            parameters) {}

/// x_mid = x + drop(W_o y)
Tensor Block::after_attention(const SequenceContext& context, const View& x, const parallel::RingSaved& ring) const {
  Tensor x_mid = zeros_like(x);
  if (context.dropout.rate == 0) {
    x_mid.view().copy_from(x);
    attention_.project(x_mid, ring);
    return x_mid;
  }
  attention_.project(x_mid, ring);
  drop(x_mid, context.rows.index, context.dropout, layer_, "attention");
  kernels::add(x_mid, x);
  return x_mid;
}

// m = W_down (silu(W_gate xn) · W_up xn), xn = norm(x_mid)

Tensor Block::normed(const View& x_mid) const {
  Tensor xn = empty_like(x_mid);
  kernels::rmsnorm_forward(xn, x_mid, norm_.value, norm_eps_);
  return xn;
}

MlpLocal Block::gates(const View& x_mid) const {
  const Tensor xn = normed(x_mid);
  const std::int64_t hidden = gate_.outputs();
  MlpLocal local{rows_of(x_mid, hidden), rows_of(x_mid, hidden), {}};
  gate_.forward(local.gate, xn);
  up_.forward(local.up, xn);
  return local;
}

Tensor Block::mlp_output(const MlpLocal& local) const {
  const Tensor h = empty_like(local.gate);
  kernels::swiglu_forward(h, local.gate, local.up);
  Tensor m = rows_of(h, down_.outputs());
  down_.forward(m, h);
  return m;
}

/// From m's last line up, in blocks of rows, so that what was not kept is made again for one of them at a time. dx takes the gradient
/// of x_mid, and may be dm.
void Block::mlp_backward(const View& dx, const View& dm, const View& x_mid, const MlpLocal* kept) const {
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < x_mid.dim(0); begin += block) {
    const auto rows = [&](const View& x) { return x.rows(begin, std::min(begin + block, x.dim(0))); };
    const MlpLocal made = kept ? MlpLocal() : gates(rows(x_mid));
    mlp_rows_backward(rows(dx), rows(dm), rows(x_mid), kept ? rows(kept->gate) : made.gate,
                      kept ? rows(kept->up) : made.up);
  }
}

/// Gradients take the memory of what they are of.
void Block::mlp_rows_backward(const View& dx, const View& dm, const View& x_mid, const View& gate,
                              const View& up) const {
  {
    const Tensor h = empty_like(gate);
    kernels::swiglu_forward(h, gate, up);
    down_.backward_weight(dm, h);
    const Tensor& dh = h;
    down_.backward_input(dh, dm);
    kernels::swiglu_backward(gate, up, dh, gate, up);
  }
  const View &dgate = gate, &dup = up;
  const Tensor xn = normed(x_mid);
  gate_.backward_weight(dgate, xn);
  up_.backward_weight(dup, xn);
  const Tensor& dxn = xn;
  gate_.backward_input(dxn, dgate);
  up_.backward_input(dxn, dup, Into::add);
  kernels::rmsnorm_backward(dx, norm_.grad, dxn, x_mid, norm_.value, norm_eps_, Into::add);
}

BlockOutput Block::forward(const SequenceContext& context, Tensor x, Tensor z, Keep keep, BlockSaved& saved,
                           LayerStats* stats) const {
  AttentionLocal local = attention_.local(x, z);
  parallel::RingSaved ring = attention_.attend(context, local, z, stats ? &stats->attention : nullptr);
  if (keep == Keep::everything) saved.attention = std::move(local);
  local = {};
  Tensor x_mid = after_attention(context, x, ring);
  MlpLocal hidden = gates(x_mid);
  Tensor m = mlp_output(hidden);

  BlockOutput out;
  out.x = x_mid.clone();
  if (context.dropout.rate == 0) {
    kernels::add(out.x, m);
  } else {
    const Tensor dropped = m.clone();
    drop(dropped, context.rows.index, context.dropout, layer_, "mlp");
    kernels::add(out.x, dropped);
  }
  if (encoding_.travels(layer_)) {
    out.z = encoding_.update(layer_, z, attention_.state_average(ring), WideView(m));
    hidden.m = std::move(m);
  }
  if (stats) collect(*stats, context, ring, out.z);

  if (keep == Keep::nothing) return out;
  saved.x = std::move(x);
  saved.z = std::move(z);
  if (keep != Keep::inputs) saved.ring = std::move(ring);
  if (keep == Keep::everything) {
    saved.x_mid = std::move(x_mid);
    saved.mlp = std::move(hidden);
  }
  return out;
}

/// Quotes forward from its last line up. What was not kept is computed again by the same functions, so the bits are the same.
void Block::backward(const SequenceContext& context, Tensor& dx, Tensor& dz, BlockSaved& saved) const {
  const AttentionLocal local = saved.attention ? std::move(*saved.attention) : attention_.local(saved.x, saved.z);
  const parallel::RingSaved ring =
      saved.ring ? std::move(*saved.ring) : attention_.attend(context, local, saved.z, nullptr);
  Tensor x_mid = saved.x_mid ? std::move(saved.x_mid) : after_attention(context, saved.x, ring);
  std::optional<MlpLocal> hidden = std::move(saved.mlp);

  // out.x = x_mid + drop(m), out.z = update(z, p, m)
  const auto dropped = [&](const char* site) {  // dx itself, where nothing is dropped
    Tensor d = context.dropout.rate > 0 ? dx.clone() : Tensor();
    if (d) drop(d, context.rows.index, context.dropout, layer_, site);
    return d;
  };
  Tensor dm = dropped("mlp"), dz_in, dp;
  if (!dm && encoding_.travels(layer_)) dm = dx.clone();
  if (saved.z) dz_in = zeros_like(saved.z);
  if (encoding_.travels(layer_)) {
    if (!hidden) hidden = gates(x_mid);
    if (!hidden->m) hidden->m = mlp_output(*hidden);
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
  mlp_backward(dx, dm ? dm : dx, x_mid, hidden ? &*hidden : nullptr);  // dx is now that of x_mid

  // x_mid = x + drop(W_o y(x, z))
  x_mid = {};
  hidden.reset();
  dm = {};
  const Tensor d_mid = dropped("attention");
  attention_.backward(context, dx, dz_in, d_mid ? d_mid : dx, dp, saved.x, saved.z, local, ring);
  dz = std::move(dz_in);
}

}  // namespace capstan::framework
