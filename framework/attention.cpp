#include "framework/attention.h"

#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"

namespace capstan::framework {

using kernels::Into;

namespace {

/// [N, heads, D] as a matrix [N, heads·D].
View matrix(const View& x) { return x.reshape({x.dim(0), x.dim(1) * x.dim(2)}); }

/// y = x w^T as [N, heads, D].
Tensor project_heads(const View& x, const Parameter& w, std::int64_t heads, std::int64_t head_size) {
  Tensor y({x.dim(0), heads, head_size}, x.type(), x.device());
  kernels::linear_forward(matrix(y), x, w.value);
  return y;
}

}  // namespace

std::int64_t AttentionLocal::bytes() const {
  std::int64_t sum = 0;
  for (const Tensor* t : {&xn, &q, &k, &v, &q_rot, &k_rot, &table}) sum += t->view().bytes();
  return sum;
}

Attention::Attention(const ModelConfig& config, const std::string& prefix, int layer, Encoding& encoding,
                     Parameters& parameters)
    : layer_(layer), heads_(config.heads), kv_heads_(config.kv_heads), head_size_(config.head_size),
      norm_eps_(config.norm_eps), encoding_(encoding),
      norm_(parameters.declare(prefix + ".input_layernorm.weight", {config.hidden_size}, Init::one)),
      q_(parameters.declare(prefix + ".self_attn.q_proj.weight", {heads_ * head_size_, config.hidden_size},
                            Init::normal)),
      k_(parameters.declare(prefix + ".self_attn.k_proj.weight", {kv_heads_ * head_size_, config.hidden_size},
                            Init::normal)),
      v_(parameters.declare(prefix + ".self_attn.v_proj.weight", {kv_heads_ * head_size_, config.hidden_size},
                            Init::normal)),
      o_(parameters.declare(prefix + ".self_attn.o_proj.weight", {config.hidden_size, heads_ * head_size_},
                            Init::normal)) {}

AttentionLocal Attention::local(const SequenceContext&, const View& x, const View& z) const {
  AttentionLocal local;
  local.xn = zeros_like(x);
  kernels::rmsnorm_forward(local.xn, x, norm_.value, norm_eps_);
  local.q = project_heads(local.xn, q_, heads_, head_size_);
  local.k = project_heads(local.xn, k_, kv_heads_, head_size_);
  local.v = project_heads(local.xn, v_, kv_heads_, head_size_);
  if (encoding_.rotates()) {
    local.q_rot = zeros_like(local.q);
    local.k_rot = zeros_like(local.k);
    encoding_.rotate(layer_, local.q_rot, local.k_rot, local.q, local.k, z);
  }
  local.table = encoding_.prepare(layer_, local.q);
  return local;
}

kernels::AttentionSettings Attention::settings(const SequenceContext& context) const {
  return {encoding_.term(), context.tile, true};
}

parallel::RingInputs Attention::inputs(const SequenceContext& context, const AttentionLocal& local,
                                       const View& z) const {
  const std::int64_t b = context.batch, t = context.tokens;
  const auto sequences = [&](const View& x) { return x.reshape({b, t, x.dim(1), x.dim(2)}); };
  parallel::RingInputs in;
  in.q = sequences(local.q_rot ? local.q_rot.view() : local.q.view());
  in.k = sequences(local.k_rot ? local.k_rot.view() : local.k.view());
  in.v = sequences(local.v);
  if (encoding_.travels(layer_)) in.z = sequences(z);
  if (in.z && layer_ == 0)
    in.make_z = [this](const View& made, const View& position) { encoding_.make_first_state(made, position); };
  if (local.table) in.table = sequences(local.table);
  in.rows = context.rows;
  return in;
}

parallel::RingSaved Attention::attend(const SequenceContext& context, const AttentionLocal& local, const View& z,
                                      kernels::AttentionStats* stats) const {
  return context.attend(layer_, inputs(context, local, z), settings(context), stats);
}

void Attention::project(const View& out, const parallel::RingSaved& ring) const {
  const std::int64_t n = out.dim(0);
  const View o = ring.o.view().reshape({n, heads_, ring.o.shape()[3]});
  if (o.dim(2) == head_size_) return kernels::linear_forward(out, matrix(o), o_.value, Into::add);
  Tensor y({n, heads_, head_size_}, o.type(), o.device());
  kernels::take_columns(y, o, 0);
  kernels::linear_forward(out, matrix(y), o_.value, Into::add);
}

Tensor Attention::state_average(const parallel::RingSaved& ring) const {
  const std::int64_t n = ring.o.shape()[0] * ring.o.shape()[1];
  Tensor p({n, heads_, head_size_}, ring.o.view().type(), ring.o.view().device());
  kernels::take_columns(p, ring.o.view().reshape({n, heads_, 2 * head_size_}), head_size_);
  return p;
}

void Attention::backward(const SequenceContext& context, const View& dx, const View& dz, const View& d_out,
                         const View& dp, const View& x, const View& z, const AttentionLocal& local,
                         const parallel::RingSaved& ring) const {
  const std::int64_t n = d_out.dim(0);
  const kernels::DType type = d_out.type();
  const kernels::Device device = d_out.device();
  const auto heads_tensor = [&](std::int64_t heads, std::int64_t columns) {
    return Tensor({n, heads, columns}, type, device);
  };

  // project: out += y W_o^T, so dy = d_out W_o and dW_o += d_out^T y; p's gradient fills the state's columns.
  Tensor d_o = zeros_like(ring.o);
  Tensor dy = heads_tensor(heads_, head_size_);
  kernels::linear_backward_input(matrix(dy), d_out, o_.value);
  const View o = ring.o.view().reshape({n, heads_, ring.o.shape()[3]}), d_o_rows = d_o.view().reshape(o.shape());
  kernels::put_columns(d_o_rows, dy, 0);
  if (dp) kernels::put_columns(d_o_rows, dp, head_size_);
  if (o_.grad) {
    Tensor y = heads_tensor(heads_, head_size_);
    kernels::take_columns(y, o, 0);
    kernels::linear_backward_weight(o_.grad, d_out, matrix(y));
  }

  // attend
  const parallel::RingInputs in = inputs(context, local, z);
  Tensor dq = zeros_like(local.q), dk = zeros_like(local.k), dv = zeros_like(local.v), dtable, dz_values;
  if (local.table) dtable = zeros_like(local.table);
  if (in.z && !in.make_z) dz_values = zeros_like(z);
  const auto like = [](const Tensor& gradient, const View& value) {
    return value ? gradient.view().reshape(value.shape()) : View();
  };
  ring_attention_backward(*context.ring,
                          {like(dq, in.q), like(dk, in.k), like(dv, in.v), dz_values ? like(dz_values, in.z) : View(),
                           like(dtable, in.table)},
                          in, ring, d_o, settings(context));
  if (dz_values) kernels::add(dz, dz_values);

  // local: prepare and rotate, then the projections and the norm
  if (encoding_.rotates()) encoding_.rotate_backward(layer_, dq, dk, dz, local.q, local.k, z);
  if (local.table) encoding_.prepare_backward(layer_, dq, dtable, local.q);
  Tensor dxn = zeros_like(local.xn);
  const auto back = [&](const Tensor& d, const Parameter& w) {
    kernels::linear_backward_input(dxn, matrix(d), w.value, Into::add);
    if (w.grad) kernels::linear_backward_weight(w.grad, matrix(d), local.xn);
  };
  back(dq, q_);
  back(dk, k_);
  back(dv, v_);
  kernels::rmsnorm_backward(dx, norm_.grad, dxn, x, norm_.value, norm_eps_, Into::add);
}

}  // namespace capstan::framework
