#include "tests/support/oracle_model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/support/oracle_attention.h"

namespace capstan::tests {

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("oracle: " + what);
}

bool is_narrow(OracleArithmetic a) {
  return a == OracleArithmetic::f64_stored_bf16 || a == OracleArithmetic::f32_stored_bf16;
}

bool one_of(const std::string& text, const std::vector<std::string>& choices) {
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

void check_settings(const OracleModel& m, const OraclePosition& p) {
  for (const std::string& part : p.parts)
    require(one_of(part, {"sinusoidal", "learned", "rope", "xpos", "relative", "alibi", "t5", "fire", "cope",
                          "hierarchical_cope", "forget", "tape"}),
            "unknown part " + part);
  require(!(p.has("rope") && p.has("xpos")), "rope is part of xpos");
  require(!(p.has("cope") && p.has("hierarchical_cope")), "cope is part of hierarchical_cope");
  require(one_of(m.norm, {"pre", "post"}) && one_of(m.bias, {"false", "true", "attention", "mlp"}) &&
              one_of(m.mlp, {"swiglu", "geglu", "gelu"}),
          "unknown block " + m.norm + " " + m.bias + " " + m.mlp);
  require(one_of(p.cope_gate, {"keys", "separate", "values"}), "unknown gate " + p.cope_gate);
  require(one_of(p.cope_table, {"learned", "alibi"}), "unknown table " + p.cope_table);
  require(one_of(p.block_gate, {"keys", "tokens"}), "unknown block gate " + p.block_gate);
  require(
      p.cope_every >= 1 && p.cope_positions >= 1 && p.block_positions >= 1 && p.block_size >= 1 && p.block_window >= 0,
      "bad CoPE extent");
  require(p.t5_buckets >= 2 && p.t5_max_distance > p.t5_buckets / 2, "bad T5 buckets");
  require(m.heads % m.kv_heads == 0 && m.head_size % 2 == 0, "heads do not divide");
  require(p.frequency.empty() || std::int64_t(p.frequency.size()) == m.head_size / 2, "one frequency for each pair");
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

void add_cope_shapes(const OracleModel& m, const OraclePosition& p, const std::string& own, Shapes& shapes) {
  const std::int64_t C = m.hidden_size, H = m.heads, G = m.kv_heads, D = m.head_size;
  if (p.cope_gate == "separate") shapes[own + "gate_keys"] = {G * D, C};
  if (p.cope_table == "learned")
    shapes[p.cope_table_shared ? "model.position.table" : own + "table"] = {p.cope_positions, D};
  if (!p.has("hierarchical_cope")) return;
  shapes[own + "block_table"] = {p.block_positions, D};
  if (p.block_gate == "keys") shapes[own + "block_keys"] = {G * D, C};
  if (p.block_gate == "tokens") shapes.insert({{own + "block_gate", {H, C}}, {own + "block_gate_bias", {H}}});
}

/// Parameters of the encoding in one layer.
void add_position_shapes(const OracleModel& m, const OraclePosition& p, std::int64_t layer, const std::string& own,
                         Shapes& shapes) {
  const std::int64_t C = m.hidden_size, H = m.heads, G = m.kv_heads, D = m.head_size, I = p.tape_width;
  if (p.has("relative"))
    shapes[p.relative_shared ? "model.position.relative" : own + "relative"] = {p.relative_distance + 1, D};
  if (p.has("fire"))
    shapes.insert({{own + "fire_scale", {2}},
                   {own + "fire_in", {p.fire_width}},
                   {own + "fire_in_bias", {p.fire_width}},
                   {own + "fire_out", {H, p.fire_width}},
                   {own + "fire_out_bias", {H}}});
  if (p.has("forget")) shapes.insert({{own + "forget", {H, C}}, {own + "forget_bias", {H}}});
  if ((p.has("cope") || p.has("hierarchical_cope")) && (layer + 1) % p.cope_every == 0)
    add_cope_shapes(m, p, own, shapes);
  if (!p.has("tape") || layer + 1 == m.layers) return;
  if (p.tape_attention) shapes[own + "alpha"] = p.tape_scalars ? std::vector{G} : std::vector{G, G};
  if (p.tape_mlp) shapes.insert({{own + "up", {I, G}}, {own + "down", {G, I}}, {own + "gate", {I, C}}});
}

/// One sequence through the model, on a tape of its own.
template <class Real> class Pass {
 public:
  using Context = OracleContext<Real>;
  using Id = typename Context::Id;
  using Ids = typename Context::Ids;
  using Row = typename Context::Row;
  using Rows = typename Context::Rows;

  Pass(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
       const OracleSequence& sequence, bool recorded)
      : context_{model, position, sequence, OracleTape<Real>(recorded, is_narrow(model.arithmetic))} {
    for (const auto& [name, values] : parameters)
      for (double value : values) context_.parameters[name].push_back(tape_.leaf(Real(value)));
    for (double each : position.frequency) context_.frequencies.push_back(Real(each));
    for (std::int64_t f = 0; f < model.head_size / 2 && position.frequency.empty(); ++f)  // θ^(-2f/D)
      context_.frequencies.push_back(std::pow(Real(position.theta), -2 * Real(f) / Real(model.head_size)));
  }

  void run() {
    x_ = embedded();
    input_ = x_;
    if (position_.has("tape")) z_ = first_state();
    for (std::int64_t layer = 0; layer < context_.model.layers; ++layer) {
      if (position_.has("tape")) states.push_back(z_);
      run_layer(layer);
    }
    add_losses();
  }

  /// Gradients of the loss, added to those of earlier sequences.
  void backward(OracleResult& result) {
    tape_.backward(loss);
    for (const auto& [name, ids] : context_.parameters)
      for (std::size_t n = 0; n < ids.size(); ++n) result.gradients[name][n] += double(tape_.adjoint(ids[n]));
    for (const Row& row : input_)
      for (Id each : row) result.input_gradient.push_back(double(tape_.adjoint(each)));
  }

  double value(Id x) const { return double(tape_.value(x)); }
  Real exact(Id x) const { return tape_.value(x); }

  Id loss = 0;
  Row nll;                   ///< [tokens]
  std::vector<Rows> states;  ///< [layers][tokens][G D]

 private:
  Rows embedded();
  Rows first_state();
  void run_layer(std::int64_t layer);
  Rows mlp(std::int64_t layer, const Rows& xm);
  Rows normed(const std::string& weight, const Rows& x) {
    return context_.stored(context_.normed(context_.parameter(weight), x));
  }
  void update_state(std::int64_t layer, const Rows& p, const Rows& m);
  void add_gated(std::int64_t layer, const Rows& m, Rows& z);
  void add_losses();
  Rows sum(const Rows& a, const Rows& b) {
    Rows y = a;
    for (std::size_t t = 0; t < y.size(); ++t)
      for (std::size_t c = 0; c < y[t].size(); ++c) y[t][c] = tape_.add(a[t][c], b[t][c]);
    return context_.stored(std::move(y));
  }

  Context context_;
  OracleTape<Real>& tape_ = context_.tape;
  const OraclePosition& position_ = context_.position;
  Rows x_, input_, z_;
};

/// x0 = E[token] + PE(position), PE[2c] = sin(position / θ^(2c/C)), PE[2c+1] = cos(same); learned: a row per position.
template <class Real> auto Pass<Real>::embedded() -> Rows {
  const std::int64_t C = context_.model.hidden_size;
  const bool sinusoidal = position_.has("sinusoidal"), learned = position_.has("learned");
  const Ids embedding = context_.parameter("model.embed_tokens.weight");
  Rows x(context_.tokens());
  for (std::int64_t t = 0; t < context_.tokens(); ++t) {
    const std::int64_t position = context_.sequence.position[t];
    if (learned) require(position >= 0 && position < position_.learned_length, "position not learned");
    for (std::int64_t c = 0; c < C; ++c) {
      Id sum = tape_.linear(embedding[context_.sequence.tokens[t] * C + c], 1);
      if (sinusoidal) {
        const Real angle = Real(position) * std::pow(Real(position_.theta), -Real(c - c % 2) / Real(C));
        sum = tape_.linear(sum, 1, c % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
      if (learned) sum = tape_.add(sum, context_.parameter("model.position.embedding")[position * C + c]);
      x[t].push_back(sum);
    }
  }
  return context_.stored(std::move(x));
}

/// z_0 = amplitude exp(i position frequency), of every head
template <class Real> auto Pass<Real>::first_state() -> Rows {
  const std::int64_t half = context_.model.head_size / 2;
  Rows z(context_.tokens());
  for (std::int64_t t = 0; t < context_.tokens(); ++t)
    for (std::int64_t at = 0; at < context_.model.kv_heads * 2 * half; ++at) {
      const Real angle = Real(context_.sequence.position[t]) * context_.frequencies[at % half];
      const bool real = at % (2 * half) < half;
      z[t].push_back(tape_.leaf(Real(position_.amplitude) * (real ? std::cos(angle) : std::sin(angle))));
    }
  return z;
}

template <class Real> void Pass<Real>::run_layer(std::int64_t layer) {
  const bool post = context_.model.norm == "post";
  const Rows xn = post ? x_ : normed("model.layers." + std::to_string(layer) + ".input_layernorm.weight", x_);
  OracleAttention<Real> attention(context_, layer, xn, z_);
  attention.run();
  x_ = sum(x_, context_.linear(layer, "self_attn.o_proj", attention.mean_values));
  const Rows xm = normed("model.layers." + std::to_string(layer) + ".post_attention_layernorm.weight", x_);
  const Rows m = mlp(layer, xm);
  if (position_.has("tape") && layer + 1 < context_.model.layers) update_state(layer, attention.mean_states, m);
  x_ = sum(post ? xm : x_, m);
  if (post) x_ = normed("model.layers." + std::to_string(layer) + ".post_feedforward_layernorm.weight", x_);
}

/// m = W_down(f(W_gate xm) * W_up xm), or W_down f(W_up xm)
template <class Real> auto Pass<Real>::mlp(std::int64_t layer, const Rows& xm) -> Rows {
  const std::string& kind = context_.model.mlp;
  Rows inner = context_.stored(context_.linear(layer, "mlp.up_proj", xm)), gate;
  if (kind != "gelu") gate = context_.stored(context_.linear(layer, "mlp.gate_proj", xm));
  const auto f = [&](Id x) { return kind == "swiglu" ? tape_.silu(x) : tape_.gelu(x); };
  for (std::size_t t = 0; t < inner.size(); ++t)
    for (std::size_t c = 0; c < inner[t].size(); ++c)
      inner[t][c] = kind == "gelu" ? f(inner[t][c]) : tape_.product(f(gate[t][c]), inner[t][c]);
  return context_.stored(context_.linear(layer, "mlp.down_proj", context_.stored(std::move(inner))));
}

/// zc = z + alpha p over heads;  z' = zc + W_d (g * (W_u zc)),  g = silu(W_x m)
template <class Real> void Pass<Real>::update_state(std::int64_t layer, const Rows& p, const Rows& m) {
  const std::int64_t G = context_.model.kv_heads, D = context_.model.head_size;
  if (position_.tape_attention) {
    const Ids alpha = context_.parameter(layer, "position.alpha");
    for (std::size_t t = 0; t < z_.size(); ++t)
      for (std::int64_t at = 0; at < G * D; ++at)
        for (std::int64_t g = 0; g < G; ++g) {
          if (position_.tape_scalars && g != at / D) continue;
          const Id factor = position_.tape_scalars ? alpha[g] : alpha[at / D * G + g];
          z_[t][at] = tape_.add(z_[t][at], tape_.product(factor, p[t][g * D + at % D]));
        }
  }
  if (position_.tape_mlp) add_gated(layer, m, z_);
}

/// z += W_d (g * (W_u z)) over heads, for each component
template <class Real> void Pass<Real>::add_gated(std::int64_t layer, const Rows& m, Rows& z) {
  const std::int64_t G = context_.model.kv_heads, D = context_.model.head_size, I = position_.tape_width;
  const Ids up = context_.parameter(layer, "position.up"), down = context_.parameter(layer, "position.down");
  const Rows gate = context_.times(context_.parameter(layer, "position.gate"), m);
  for (std::size_t t = 0; t < z.size(); ++t) {
    Row opened;
    for (Id each : gate[t]) opened.push_back(tape_.silu(each));
    for (std::int64_t c = 0; c < D; ++c) {
      Row component, inner;
      for (std::int64_t g = 0; g < G; ++g) component.push_back(z[t][g * D + c]);
      for (std::int64_t n = 0; n < I; ++n)
        inner.push_back(tape_.product(opened[n], tape_.dot(up.subspan(n * G, G), component)));
      for (std::int64_t g = 0; g < G; ++g)
        z[t][g * D + c] = tape_.add(component[g], tape_.dot(down.subspan(g * I, I), inner));
    }
  }
}

template <class Real> void Pass<Real>::add_losses() {
  const Rows xn = context_.model.norm == "post" ? x_ : normed("model.norm.weight", x_);
  const Ids out = context_.parameter(context_.model.tied ? "model.embed_tokens.weight" : "lm_head.weight");
  for (std::int64_t t = 0; t < context_.tokens(); ++t) {
    const int target = context_.sequence.targets[t];
    nll.push_back(tape_.leaf(0));
    if (target < 0) continue;
    const Row logits = context_.times(out, {xn[t]})[0];
    nll.back() = tape_.linear(tape_.log_sum_exp(logits), 1, logits.at(target), -1);
  }
  loss = tape_.sum(nll);
}

void check_inputs(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                  const std::vector<OracleSequence>& sequences) {
  const Shapes shapes = oracle_shapes(model, position);
  for (const auto& [name, values] : parameters) require(shapes.count(name) == 1, "no such parameter: " + name);
  for (const auto& [name, extents] : shapes) {
    require(parameters.count(name) == 1, "missing parameter: " + name);
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    require(std::int64_t(parameters.at(name).size()) == size, "wrong size: " + name);
  }
  for (const OracleSequence& each : sequences) {
    const std::size_t tokens = each.tokens.size();
    require(each.targets.size() == tokens && each.position.size() == tokens && each.document.size() == tokens,
            "tokens, targets, positions and documents differ in number");
    for (int token : each.tokens) require(token >= 0 && token < model.vocabulary, "unknown token");
    for (int target : each.targets) require(target >= -1 && target < model.vocabulary, "unknown target");
    for (std::size_t t = 1; t < tokens; ++t)
      require(each.document[t] != each.document[t - 1] || each.position[t] >= each.position[t - 1], "positions fall");
  }
}

}  // namespace

std::map<std::string, std::vector<std::int64_t>> oracle_shapes(const OracleModel& m, const OraclePosition& p) {
  check_settings(m, p);
  const std::int64_t C = m.hidden_size, F = m.mlp_size, H = m.heads, G = m.kv_heads, D = m.head_size, V = m.vocabulary;
  Shapes shapes = {{"model.embed_tokens.weight", {V, C}}};
  const bool post = m.norm == "post";
  if (!post) shapes["model.norm.weight"] = {C};
  if (!m.tied) shapes["lm_head.weight"] = {V, C};
  if (p.has("learned")) shapes["model.position.embedding"] = {p.learned_length, C};
  if (p.has("t5")) shapes["model.position.buckets"] = {p.t5_buckets, H};
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string own = "model.layers." + std::to_string(layer) + ".";
    const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      shapes[own + name + ".weight"] = {out, in};
      if (m.bias == "true" || name.starts_with(m.bias == "mlp" ? "mlp" : m.bias == "attention" ? "self_attn" : "-"))
        shapes[own + name + ".bias"] = {out};
    };
    linear("self_attn.q_proj", H * D, C);
    linear("self_attn.k_proj", G * D, C);
    linear("self_attn.v_proj", G * D, C);
    linear("self_attn.o_proj", C, H * D);
    if (m.mlp != "gelu") linear("mlp.gate_proj", F, C);
    linear("mlp.up_proj", F, C);
    linear("mlp.down_proj", C, F);
    shapes[own + "post_attention_layernorm.weight"] = {C};
    shapes[own + (post ? "post_feedforward_layernorm.weight" : "input_layernorm.weight")] = {C};
    add_position_shapes(m, p, layer, own + "position.", shapes);
  }
  return shapes;
}

namespace {

template <class Real>
OracleResult oracle_in(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                       const std::vector<OracleSequence>& sequences) {
  OracleResult result;
  if (position.has("tape")) result.states.resize(model.layers);
  for (const auto& [name, values] : parameters) result.gradients[name].assign(values.size(), 0);
  for (const OracleSequence& sequence : sequences) {
    Pass<Real> pass(model, position, parameters, sequence, true);
    pass.run();
    pass.backward(result);
    result.loss += pass.value(pass.loss);
    for (auto each : pass.nll) result.nll.push_back(pass.value(each));
    for (std::size_t layer = 0; layer < pass.states.size(); ++layer)
      for (const auto& row : pass.states[layer])
        for (auto each : row) result.states[layer].push_back(pass.value(each));
  }
  return result;
}

}  // namespace

OracleResult oracle(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                    const std::vector<OracleSequence>& sequences) {
  check_inputs(model, position, parameters, sequences);
  if (model.arithmetic == OracleArithmetic::f32 || model.arithmetic == OracleArithmetic::f32_stored_bf16)
    return oracle_in<float>(model, position, parameters, sequences);
  return oracle_in<double>(model, position, parameters, sequences);
}

long double oracle_loss(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                        const std::vector<OracleSequence>& sequences) {
  check_inputs(model, position, parameters, sequences);
  long double loss = 0;
  for (const OracleSequence& sequence : sequences) {
    Pass<long double> pass(model, position, parameters, sequence, false);
    pass.run();
    loss += pass.exact(pass.loss);
  }
  return loss;
}

/// 2^(-8 (h+1) / H) for a power of two; else those of the power below, then every second one of the power above.
std::vector<double> oracle_alibi_slopes(std::int64_t heads) {
  std::int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (std::int64_t h = 0; h < power; ++h) slopes.push_back(std::exp2(-8 * double(h + 1) / double(power)));
  for (std::int64_t h = 0; power + h < heads; ++h)
    slopes.push_back(std::exp2(-8 * double(2 * h + 1) / double(2 * power)));
  return slopes;
}

std::int64_t oracle_t5_bucket(std::int64_t d, std::int64_t buckets, std::int64_t max_distance) {
  const std::int64_t exact = buckets / 2;
  if (d < exact) return d;
  const long double share = std::log((long double)d / exact) / std::log((long double)max_distance / exact);
  return std::min(buckets - 1, exact + std::int64_t(std::floor(share * (buckets - exact) + 1e-12L)));
}

std::vector<double> tape_tensor(const TapeTensorShape& shape, const std::vector<double>& z) {
  const std::int64_t half = shape.frequencies;
  std::vector<double> e;
  for (std::int64_t row = 0; row < shape.tokens * shape.groups; ++row)
    for (std::int64_t f = 0; f < half; ++f) {
      const double a = z[row * 2 * half + f], b = z[row * 2 * half + f + half];
      e.insert(e.end(), {a, b, -b, a});
    }
  return e;
}

std::vector<double> tape_tensor_logits(const TapeTensorShape& shape, const std::vector<double>& q,
                                       const std::vector<double>& k, const std::vector<double>& e) {
  const auto [T, H, G, half, R] = shape;
  const auto turned = [&, R = R, half = half](const std::vector<double>& x, std::int64_t x_row, std::int64_t e_row,
                                              std::int64_t f) {  // e^T x_f
    const double* block = &e[(e_row * half + f) * 2 * R];
    std::vector<double> y(R);
    for (std::int64_t r = 0; r < R; ++r)
      y[r] = x[x_row * 2 * half + f] * block[r] + x[x_row * 2 * half + f + half] * block[R + r];
    return y;
  };
  std::vector<double> logits;
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t i = 0; i < T; ++i)
      for (std::int64_t j = 0; j < T; ++j) {
        const std::int64_t g = h / (H / G);
        double& sum = logits.emplace_back(0);
        for (std::int64_t f = 0; f < half; ++f) {
          const std::vector<double> left = turned(q, i * H + h, i * G + g, f),
                                    right = turned(k, j * G + g, j * G + g, f);
          for (std::int64_t r = 0; r < R; ++r) sum += left[r] * right[r];
        }
      }
  return logits;
}

std::vector<double> tape_tensor_update(const TapeTensorShape& shape, const std::vector<double>& e,
                                       const TapeTensorUpdate& update) {
  const auto [T, H, G, half, R] = shape;
  const std::int64_t block = half * 2 * R, I = std::int64_t(update.gate.size()) / T;
  std::vector<double> contextual = e, result;
  for (std::int64_t i = 0; i < T; ++i)
    for (std::int64_t g = 0; g < G; ++g)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t j = 0; j < T; ++j)
          for (std::int64_t c = 0; c < block; ++c) {
            const std::int64_t from = h / (H / G);
            const double share = update.weights[(h * T + i) * T + j] * double(G) / double(H);
            contextual[(i * G + g) * block + c] += update.alpha[g * G + from] * share * e[(j * G + from) * block + c];
          }
  result = contextual;
  for (std::int64_t i = 0; i < T; ++i)
    for (std::int64_t n = 0; n < I; ++n)
      for (std::int64_t c = 0; c < block; ++c) {
        double inner = 0;
        for (std::int64_t g = 0; g < G; ++g) inner += update.up[n * G + g] * contextual[(i * G + g) * block + c];
        for (std::int64_t g = 0; g < G; ++g)
          result[(i * G + g) * block + c] += update.down[g * I + n] * update.gate[i * I + n] * inner;
      }
  return result;
}

}  // namespace capstan::tests
