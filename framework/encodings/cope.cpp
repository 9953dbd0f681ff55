// CoPE (Golovneva et al., arXiv 2405.18719, §4). A position is the sum of gates σ(q·k) from the key to the query; the table
// logit z_i[n] = q_i · e[n] (eq. 5) is interpolated there (kernels/terms/gated_sum.h). One table per layer or for all, shared by
// the heads, zero at first: with rope+cope the model starts bit for bit as the RoPE model. The table's q is taken before any
// rotation: a rotated q would make z depend on the absolute position. Gates use the attention's keys, rotated where these are;
// or unrotated ones, keys of their own (App. D, sep-keys), or the values (val-gates).

#include "framework/encodings/cope.h"

#include <cmath>

#include "framework/alibi_slopes.h"
#include "kernels/host_view.h"
#include "kernels/linear.h"

namespace capstan::framework {

Cope::Cope(const PositionConfig& position, const EncodingShape& shape)
    : position_(position), shape_(shape), table_("table", position.cope_positions, factor(), position.cope_shared) {}

double Cope::factor() const { return position_.cope_scaled ? 1 / std::sqrt(double(shape_.head_size)) : 1; }

void Cope::declare(Parameters& parameters) {
  if (position_.cope_table == "learned") table_.declare(parameters, shape_, position_.cope_every);
  if (position_.cope_gate != "separate") return;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    gate_keys_.push_back(is_on(int(layer))
                             ? &parameters.declare(fmt::format("model.layers.{}.position.gate_keys", layer),
                                                   {shape_.kv_heads * shape_.head_size, shape_.width}, Init::normal)
                             : nullptr);
}

namespace {

/// ALiBi-CoPE (App. C): logit -= slope_h p, as the table -slope_h n, which interpolates to it.
Tensor alibi_table(const View& q, std::int64_t rows) {
  const std::int64_t heads = q.dim(1);
  const std::vector<double> slopes = alibi_slopes(heads);
  Tensor of_row({heads, rows}, q.type(), kernels::filled_on(q.device()));
  kernels::with_real(q.type(), [&](auto real) {
    using Real = decltype(real);
    Real* at = of_row.as<Real>();
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t p = 0; p < rows; ++p) *at++ = Real(-slopes[std::size_t(h)] * double(p));
  });
  const std::int64_t tokens = q.dim(0);
  Tensor table({tokens, heads, rows}, q.type(), q.device(), kernels::Fill::none);
  if (tokens == 0) return table;
  table.view()[0].copy_from(of_row);
  for (std::int64_t done = 1; done < tokens; done *= 2) {  // the same for every token
    const std::int64_t more = std::min(done, tokens - done);
    table.view().rows(done, done + more).copy_from(table.view().rows(0, more));
  }
  return table;
}

}  // namespace

Prepared Cope::prepare(int layer, const Projections& in) {
  Prepared out;
  if (!is_on(layer)) return out;
  out.table[0] =
      position_.cope_table == "learned" ? table_.logits(layer, in.q) : alibi_table(in.q, position_.cope_positions);
  if (position_.cope_gate == "separate") {
    out.gate_k[0] = zeros_like(in.k);
    const std::int64_t tokens = in.k.dim(0), width = shape_.kv_heads * shape_.head_size;
    kernels::linear_forward(out.gate_k[0].view().reshape({tokens, width}), in.xn,
                            gate_keys_[std::size_t(layer)]->value);
  }
  return out;
}

/// table = q e^T and kappa = W_g xn, in reverse.
void Cope::prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                            const Projections& in) {
  if (!is_on(layer)) return;
  if (position_.cope_table == "learned") table_.logits_backward(layer, d.q, d_prepared.table[0], in.q);
  if (position_.cope_gate != "separate") return;
  const Parameter& weight = *gate_keys_[std::size_t(layer)];
  const View dk = d_prepared.gate_k[0].reshape({in.k.dim(0), shape_.kv_heads * shape_.head_size});
  kernels::linear_backward_input(d.xn, dk, weight.value, kernels::Into::add);
  if (weight.grad) kernels::linear_backward_weight(weight.grad, dk, in.xn);
}

Terms Cope::terms(int layer) const {
  Terms terms;
  if (!is_on(layer)) return terms;
  terms.gates[0] = {kernels::Gates::tokens, position_.cope_floor, 0, 0};
  terms.gate_keys = position_.cope_gate == "separate" ? GateKeys::separate
                    : position_.cope_gate == "values" ? GateKeys::values
                                                      : GateKeys::keys;
  terms.rotated_gates = position_.cope_rotated && position_.cope_gate != "values";
  return terms;
}

/// The table's logits; keys of the gates' own. What gates cost where they cannot take the logits' products, framework/arithmetic.cpp
/// adds: it depends on the other parts.
Arithmetic Cope::arithmetic(int layer) const {
  if (!is_on(layer)) return {};
  const double width = double(shape_.head_size);
  Arithmetic flops;
  if (position_.cope_table == "learned")
    flops.per_token += 2 * double(shape_.heads) * width * double(position_.cope_positions);
  if (position_.cope_gate == "separate") flops.per_token += 2 * double(shape_.width) * double(shape_.kv_heads) * width;
  return flops;
}

std::unique_ptr<Encoding> make_cope(const PositionConfig& position, const EncodingShape& shape) {
  return std::make_unique<Cope>(position, shape);
}

}  // namespace capstan::framework
