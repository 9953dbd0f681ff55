#include "framework/attention.h"

#include "kernels/elementwise.h"

namespace capstan::framework {

using kernels::Fill;
using kernels::Into;
using kernels::WideView;

namespace {

std::optional<Norm> norm_before(const ModelConfig& config, const std::string& name, Parameters& parameters) {
  return config.norm == "pre" ? std::optional<Norm>(std::in_place, config, name, parameters) : std::nullopt;
}

/// [N, heads, D] as a matrix [N, heads·D].
View matrix(const View& x) { return x.reshape({x.dim(0), x.dim(1) * x.dim(2)}); }

/// y = x w^T (+ b) as [N, heads, D].
Tensor project_heads(const View& x, const Linear& w, std::int64_t heads, std::int64_t head_size) {
  Tensor y({x.dim(0), heads, head_size}, x.type(), x.device(), Fill::none);
  w.forward(matrix(y), x);
  return y;
}

}  // namespace

Attention::Attention(const ModelConfig& config, const std::string& prefix, int layer, Encoding& encoding,
                     Parameters& parameters)
    : layer_(layer), heads_(config.heads), kv_heads_(config.kv_heads), head_size_(config.head_size),
      encoding_(encoding), norm_(norm_before(config, prefix + ".input_layernorm", parameters)),
      q_(config, prefix + ".self_attn.q_proj", heads_ * head_size_, config.hidden_size, config.attention_bias(),
         parameters),
      k_(config, prefix + ".self_attn.k_proj", kv_heads_ * head_size_, config.hidden_size, config.attention_bias(),
         parameters),
      v_(config, prefix + ".self_attn.v_proj", kv_heads_ * head_size_, config.hidden_size, config.attention_bias(),
         parameters),
      o_(config, prefix + ".self_attn.o_proj", config.hidden_size, heads_ * head_size_, config.attention_bias(),
         parameters) {}

/// What the projections read: norm(x), which `made` holds, or x itself.
View Attention::projected(const View& x, Tensor& made) const {
  if (!norm_) return x;
  made = norm_->forward(x);
  return made;
}

AttentionLocal Attention::local(const View& x, const View& z) const {
  AttentionLocal local;
  Tensor made;
  const View xn = projected(x, made);
  local.q = project_heads(xn, q_, heads_, head_size_);
  local.k = project_heads(xn, k_, kv_heads_, head_size_);
  local.v = project_heads(xn, v_, kv_heads_, head_size_);
  if (prepares()) {
    const WideView wide_xn(xn), q(local.q), k(local.k), v(local.v);
    local.prepared = encoding_.prepare(layer_, {wide_xn, q, k, v});
  }
  if (!rotates()) return local;
  const auto rotated = [&](Side side, const Tensor& plain) {
    Tensor out = empty_like(plain);
    encoding_.rotate(layer_, side, out, plain, z);
    return out;
  };
  local.q_rot = rotated(Side::queries, local.q);
  local.k_rot = rotated(Side::keys, local.k);
  if (local.prepared.gate_k[0] && encoding_.terms(layer_).rotated_gates)
    local.gate_k_rot = rotated(Side::keys, local.prepared.gate_k[0]);
  if (!prepares() && !z) {
    local.q = {};
    local.k = {};
  }
  return local;
}

kernels::AttentionSettings Attention::settings(const SequenceContext& context) const {
  const Terms terms = encoding_.terms(layer_);
  kernels::AttentionSettings settings;
  settings.tile = context.tile;
  settings.gates = terms.gates;
  settings.shared = terms.shared;
  settings.dropout.rate = context.dropout.attention_rate;
  return settings;
}

parallel::RingInputs Attention::inputs(const SequenceContext& context, const AttentionLocal& local,
                                       const View& z) const {
  const std::int64_t b = context.batch, t = context.tokens;
  const auto sequences = [&](const View& x) {
    if (!x) return View();
    return x.shape().rank() == 2 ? x.reshape({b, t, x.dim(1)}) : x.reshape({b, t, x.dim(1), x.dim(2)});
  };
  const auto tensor = [&](const Tensor& x) { return x ? sequences(x) : View(); };
  const Terms terms = encoding_.terms(layer_);
  const Prepared& prepared = local.prepared;
  parallel::RingInputs in;
  in.q = sequences(local.q_rot ? local.q_rot.view() : local.q.view());
  in.k = sequences(local.k_rot ? local.k_rot.view() : local.k.view());
  in.v = sequences(local.v);
  if (encoding_.travels(layer_)) in.z = sequences(z);
  if (in.z && layer_ == 0)
    in.make_z = [this](const View& made, const View& position) { encoding_.make_first_state(made, position); };
  in.rows = context.rows;
  in.terms.table = {tensor(prepared.table[0]), tensor(prepared.table[1])};
  in.terms.gate_k = {tensor(local.gate_k_rot ? local.gate_k_rot : prepared.gate_k[0]), tensor(prepared.gate_k[1])};
  in.terms.offset_source = tensor(prepared.offset_source);
  in.terms.offset_table = tensor(prepared.offset_table);
  in.terms.relative = tensor(prepared.relative);
  in.offset = terms.offset;
  in.gates_on_values = terms.gate_keys == GateKeys::values;
  if (rotates()) {  // where gates are of unrotated keys, their queries are, too
    if (prepared.table[0] && !terms.rotated_gates) {
      in.terms.gate_q[0] = sequences(local.q);
      if (terms.gate_keys == GateKeys::keys) in.terms.gate_k[0] = sequences(local.k);
    }
    if (prepared.gate_k[1]) in.terms.gate_q[1] = sequences(local.q);
  }
  if (context.dropout.attention_rate > 0)
    for (std::uint64_t draw : context.dropout.draws) in.dropout_seeds.push_back(dropout_seed(draw, layer_, "weights"));
  return in;
}

parallel::RingSaved Attention::attend(const SequenceContext& context, const AttentionLocal& local, const View& z,
                                      kernels::AttentionStats* stats) const {
  return context.attend(layer_, inputs(context, local, z), settings(context), stats);
}

void Attention::project(const View& out, const parallel::RingSaved& ring) const {
  const std::int64_t n = out.dim(0);
  const View o = ring.o.view().reshape({n, heads_, ring.o.shape()[3]});
  Tensor copy;
  o_.forward(out, matrix(value_average(o, copy)), Into::add);
}

/// y [N, H, D], the first D columns of O, in the type of the values: O itself, or a copy.
View Attention::value_average(const View& o, Tensor& copy) const {
  const kernels::DType type = o_.type();
  if (o.dim(2) == head_size_ && o.type() == type) return o;
  copy = Tensor({o.dim(0), heads_, head_size_}, o.type(), o.device(), Fill::none);
  kernels::take_columns(copy, o, 0);
  if (o.type() != type) copy = kernels::converted(copy, type);
  return copy;
}

Tensor Attention::state_average(const parallel::RingSaved& ring) const {
  const std::int64_t n = ring.o.shape()[0] * ring.o.shape()[1];
  Tensor p({n, heads_, head_size_}, ring.o.view().type(), ring.o.view().device(), Fill::none);
  kernels::take_columns(p, ring.o.view().reshape({n, heads_, 2 * head_size_}), head_size_);
  return p;
}

void Attention::backward(const SequenceContext& context, const View& dx, const View& dz, const View& d_out,
                         const View& dp, const View& x, const View& z, const AttentionLocal& local,
                         const parallel::RingSaved& ring) const {
  const std::int64_t n = d_out.dim(0);
  const kernels::DType type = d_out.type(), sums = kernels::wide(type);

  // project: out += y W_o^T, so dy = d_out W_o and dW_o += d_out^T y; p's gradient fills the state's columns.
  Tensor d_o = empty_like(ring.o);
  const View o = ring.o.view().reshape({n, heads_, ring.o.shape()[3]}), d_o_rows = d_o.view().reshape(o.shape());
  if (!dp) {
    o_.backward_input(matrix(d_o_rows), d_out);
  } else {
    const Tensor dy({n, heads_, head_size_}, d_o.view().type(), d_o.view().device(), Fill::none);
    o_.backward_input(matrix(dy), d_out);
    kernels::put_columns(d_o_rows, dy, 0);
    kernels::put_columns(d_o_rows, dp, head_size_);
  }
  if (o_.is_trained()) {
    Tensor copy;
    o_.backward_weight(d_out, matrix(value_average(o, copy)));
  }

  // attend
  const parallel::RingInputs in = inputs(context, local, z);
  const auto sum_like = [&](const View& like) { return Tensor(like.shape(), sums, like.device(), Fill::none); };
  const Tensor &q = local.q ? local.q : local.q_rot, &k = local.k ? local.k : local.k_rot;
  Tensor dq = sum_like(q), dk = sum_like(k), dv = sum_like(local.v), dz_values;
  if (in.z && !in.make_z) dz_values = zeros_like(z);
  std::vector<Tensor> held;  // gradients of what the terms brought
  const auto like = [&](const View& value) { return value ? held.emplace_back(sum_like(value)).view() : View(); };
  parallel::RingGradients out;
  out.dq = dq.view().reshape(in.q.shape());
  out.dk = dk.view().reshape(in.k.shape());
  out.dv = dv.view().reshape(in.v.shape());
  if (dz_values) out.dz = dz_values.view().reshape(in.z.shape());
  out.terms = {{like(in.terms.table[0]), like(in.terms.table[1])},
               {like(in.terms.gate_q[0]), like(in.terms.gate_q[1])},
               {like(in.terms.gate_k[0]), like(in.terms.gate_k[1])},
               like(in.terms.offset_source),
               like(in.terms.offset_table),
               like(in.terms.relative)};
  out.shared = encoding_.shared_gradients(layer_);
  if (context.shifted)
    shifted_attention_backward(*context.ring, *context.shifted, out, in, ring, d_o, settings(context));
  else ring_attention_backward(*context.ring, out, in, ring, d_o, settings(context));
  if (dz_values) kernels::add(dz, dz_values);

  // local: rotate and prepare, then the projections and the norm
  if (rotates()) {
    encoding_.rotate_backward(layer_, Side::queries, dq, dz, local.q ? local.q.view() : View(), z);
    encoding_.rotate_backward(layer_, Side::keys, dk, dz, local.k ? local.k.view() : View(), z);
  }
  Tensor made;
  const View xn = projected(x, made);
  const Tensor dxn(x.shape(), sums, x.device());
  terms_backward({dxn, dq, dk, dv}, out.terms, local, xn, dz, z);
  const auto back = [&](const Tensor& d_wide, const Linear& w) {
    const Tensor narrow = type == sums ? Tensor() : kernels::converted(d_wide, type);
    const View d = matrix(narrow ? narrow : d_wide);
    w.backward_input(dxn, d, Into::add);
    w.backward_weight(d, xn);
  };
  back(dq, q_);
  back(dk, k_);
  back(dv, v_);
  if (norm_) norm_->backward(dx, dxn, x, Into::add);
  else kernels::add(dx, dxn);
}

/// Gate queries and keys are q and keys, rotated or not; the rest goes to prepare.
void Attention::terms_backward(const Projections& d, const parallel::RingTerms& from, const AttentionLocal& local,
                               const View& xn, const View& dz, const View& z) const {
  for (const View& gate_q : from.gate_q)
    if (gate_q) kernels::add(d.q, gate_q);
  const bool separate = bool(local.prepared.gate_k[0]);
  if (from.gate_k[0] && !separate) kernels::add(d.k, from.gate_k[0]);
  if (local.gate_k_rot) {
    const View d_gate = from.gate_k[0].reshape(local.gate_k_rot.shape());
    encoding_.rotate_backward(layer_, Side::keys, d_gate, dz, local.prepared.gate_k[0], z);
  }
  if (!prepares()) return;
  const auto rows = [&](const View& x, const Tensor& like) { return x && like ? x.reshape(like.shape()) : View(); };
  const Prepared& p = local.prepared;
  const WideView wide_xn(xn), q(local.q), k(local.k), v(local.v);
  encoding_.prepare_backward(
      layer_, d,
      {{rows(from.table[0], p.table[0]), rows(from.table[1], p.table[1])},
       {separate ? rows(from.gate_k[0], p.gate_k[0]) : View(), rows(from.gate_k[1], p.gate_k[1])},
       rows(from.offset_source, p.offset_source),
       rows(from.offset_table, p.offset_table),
       rows(from.relative, p.relative)},
      {wide_xn, q, k, v});
}

}  // namespace capstan::framework
