#include "framework/arithmetic.h"

#include <algorithm>

namespace capstan::framework {

namespace {

constexpr double flop = 2;  // per multiply-add

/// Pairs for which gates of a layer need a product of their own: where queries or keys are not those of the logits. With blocks,
/// of the window's tokens and of one key for each block.
double pairs_of_gates(const Terms& terms, bool has_rotation, double tokens, double pairs) {
  const kernels::GateRule &near = terms.gates[0], &far = terms.gates[1];
  const bool own_keys = terms.gate_keys != GateKeys::keys || (has_rotation && !terms.rotated_gates);
  double count = 0;
  if (near.gates != kernels::Gates::none && own_keys)
    count += near.block ? std::min(pairs, tokens * double(near.window * near.block)) : pairs;
  if (far.gates != kernels::Gates::none) count += pairs / double(far.block);
  return count;
}

}  // namespace

ForwardFlops forward_flops(const Model& model, std::int64_t tokens) {
  const ModelConfig& config = model.config();
  const double t = double(tokens), pairs = t * (t + 1) / 2, width = double(config.heads * config.head_size);
  ForwardFlops flops;
  for (const Parameter& p : model.parameters().all()) {
    const bool is_linear = p.shape.rank() == 2 && p.name.find(".position.") == std::string::npos;
    if (is_linear && (config.tied || p.name != "model.embed_tokens.weight"))
      flops.linear += flop * double(p.shape.elements()) * t;
  }
  flops.attention = double(config.layers) * pairs * flop * 2 * width;
  const Encoding& encoding = model.encoding();
  for (int layer = 0; layer < config.layers; ++layer) {
    const Arithmetic added = encoding.arithmetic(layer);
    flops.position += added.per_token * t + added.per_pair * pairs;
    flops.position += flop * width * pairs_of_gates(encoding.terms(layer), encoding.claims().rotation, t, pairs);
  }
  return flops;
}

}  // namespace capstan::framework
