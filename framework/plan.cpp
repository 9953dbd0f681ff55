#include "framework/plan.h"

#include <algorithm>

#include "framework/model.h"
#include "kernels/cross_entropy.h"
#include "parallel/ring_attention.h"

namespace capstan::framework {

namespace {

/// Elements per token that one layer holds, by what they are for.
struct PerToken {
  std::int64_t input = 0;     // x
  std::int64_t state = 0;     // z; wide, as the next
  std::int64_t ring = 0;      // O, LSE
  std::int64_t local = 0;     // all else that backward reads
  std::int64_t integers = 0;  // i64: carried gate sums, offsets
};

/// Bytes of an element of weights and activations, and of sums, gradients and the optimizer's values (wide).
struct ElementBytes {
  std::int64_t narrow, wide;
};

ElementBytes element_bytes(const Recipe& r) {
  const kernels::DType type = type_of_precision(r.train.precision);
  return {kernels::size_of(type), kernels::size_of(kernels::wide(type))};
}

/// Elements per token of what prepare makes.
std::int64_t prepared_elements(const parallel::RingInputs& in) {
  std::int64_t elements = 0;
  for (const View& x : {in.terms.table[0], in.terms.table[1], in.terms.gate_k[0], in.terms.gate_k[1],
                        in.terms.offset_source, in.terms.offset_table, in.terms.relative})
    if (x) elements += x.elements();
  return elements;
}

PerToken per_token(const Recipe& r, const Encoding& encoding) {
  const std::int64_t c = r.model.hidden_size, f = r.model.mlp_size, q = r.model.heads * r.model.head_size,
                     k = r.model.kv_heads * r.model.head_size;
  const Claims claims = encoding.claims();
  PerToken out;
  out.input = c;
  out.state = claims.state ? k : 0;
  out.ring = q * (claims.state ? 2 : 1) + r.model.heads;
  Recipe one = r;
  one.train.micro_batch = 1;
  for (int layer = 0; layer < r.model.layers; ++layer) {
    const parallel::RingInputs in = ring_shapes(one, encoding, layer, 1);
    const Terms terms = encoding.terms(layer);
    std::int64_t integers = in.terms.offset_source ? 2 * r.model.heads : 0;
    for (const kernels::GateRule& rule : terms.gates)
      integers += rule.gates == kernels::Gates::none ? 0 : r.model.heads;
    out.local = std::max(out.local, c + (q + k) * (claims.rotation ? 2 : 1) + k + prepared_elements(in) + 3 * c +
                                        (r.model.gated() ? 3 : 2) * f);
    out.integers = std::max(out.integers, integers);
  }
  return out;
}

void add_activations(Plan& plan, const Recipe& r, std::int64_t tokens, const Encoding& encoding) {
  const PerToken per = per_token(r, encoding);
  const auto [narrow, wide] = element_bytes(r);
  const std::int64_t layers = r.model.layers, input = per.input * narrow + per.state * wide,
                     ring = per.ring * wide + per.integers * 8;
  const auto add = [&](const std::string& name, std::int64_t bytes, const std::string& how) {
    plan.memory.push_back({name, bytes, how});
  };
  add("block inputs", layers * tokens * input,
      fmt::format("{} layers x {} tokens x {} numbers", layers, tokens, per.input + per.state));
  if (r.train.recompute != "block_full")
    add("attention results", layers * tokens * ring, "O, LSE and carried sums of every layer");
  if (r.train.recompute == "none")
    add("layer values", layers * tokens * per.local * narrow, "what recompute would compute again");
  add("working set", tokens * (2 * per.local * narrow + 2 * ring + 4 * input),
      "one layer's values and their gradients");
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  if (bytes >= std::int64_t(1) << 30) return fmt::format("{:.2f} GiB", double(bytes) / double(std::int64_t(1) << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  return bytes >= 1 << 10 ? fmt::format("{:.1f} KiB", double(bytes) / (1 << 10)) : fmt::format("{} B", bytes);
}

std::int64_t Plan::memory_total() const {
  std::int64_t sum = 0;
  for (const MemoryLine& line : memory) sum += line.bytes;
  return sum;
}

parallel::RingInputs ring_shapes(const Recipe& r, const Encoding& encoding, int layer, std::int64_t t) {
  const std::int64_t b = r.train.micro_batch, h = r.model.heads, g = r.model.kv_heads, d = r.model.head_size;
  const kernels::DType type = type_of_precision(r.train.precision), sums = kernels::wide(type);
  const auto of = [](const kernels::Shape& shape, kernels::DType as) {
    return View(nullptr, as, kernels::Device::ref, shape);
  };
  const auto view = [&](const kernels::Shape& shape) { return of(shape, sums); };
  const View row(nullptr, kernels::DType::i64, kernels::Device::ref, {b, t});
  const Claims claims = encoding.claims();
  const Terms terms = encoding.terms(layer);
  parallel::RingInputs in;
  in.q = of({b, t, h, d}, type);
  in.k = in.v = of({b, t, g, d}, type);
  if (encoding.travels(layer)) in.z = view({b, t, g, d});
  if (in.z && layer == 0) in.make_z = [](const View&, const View&) {};
  in.rows = {row, row, row};
  in.offset = terms.offset;
  in.gates_on_values = terms.gate_keys == GateKeys::values;
  const bool unrotated = claims.rotation && !terms.rotated_gates;
  if (terms.gates[0].gates != kernels::Gates::none) {
    in.terms.table[0] = view({b, t, h, r.position.cope_positions});
    if (unrotated) in.terms.gate_q[0] = in.q;
    if (terms.gate_keys == GateKeys::separate) in.terms.gate_k[0] = view({b, t, g, d});
    else if (unrotated && terms.gate_keys == GateKeys::keys) in.terms.gate_k[0] = in.k;
  }
  if (terms.gates[1].gates != kernels::Gates::none) {
    in.terms.table[1] = view({b, t, h, r.position.block_positions});
    in.terms.gate_k[1] = view({b, t, g, d});
    if (claims.rotation) in.terms.gate_q[1] = in.q;
  }
  if (terms.offset.rule != parallel::OffsetRule::none) in.terms.offset_source = view({b, t, h});
  if (terms.offset.rule == parallel::OffsetRule::block_gates)
    in.terms.offset_table = view({b, t, h, r.position.block_positions});
  if (claims.relative) in.terms.relative = view({b, t, h, r.position.relative_positions});
  return in;
}

Plan make_plan(const Recipe& r, int ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.ring = r.grid.ring ? int(r.grid.ring) : ranks;
  if (ranks % plan.ring != 0)
    fail(ExitCode::config, "grid.ring = {} does not divide {} ranks: use a divisor, or 0 for all", plan.ring, ranks);
  plan.data = ranks / plan.ring;

  Model model(r.model, r.position);
  for (const Parameter& p : model.parameters().all()) {
    plan.parameters += p.shape.elements();
    if (matches_any(p.name, r.train.trainable) && !matches_any(p.name, r.train.frozen))
      plan.trainable += p.shape.elements();
  }
  const std::string chosen = parallel::resolve_schedule(r.grid.schedule, plan.ring);
  if (const std::string reason = refuse_pair(r.position, chosen); !reason.empty()) fail(ExitCode::config, "{}", reason);
  const auto [layout, schedule] = parallel::plan_ring({chosen, plan.ring, int(r.grid.heads),
                                                       heads_of_ring(r.model.kv_heads, r.train.shifted_groups > 0),
                                                       r.data.context, model.unit(r.train.tile)});
  plan.schedule = schedule.name;
  plan.forward_slots = std::int64_t(schedule.forward[0].size());
  plan.backward_slots = std::int64_t(schedule.backward[0].size());
  for (int rank = 0; rank < plan.ring; ++rank) plan.local_tokens.push_back(layout.local_tokens(rank));

  const auto [narrow, wide] = element_bytes(r);
  const std::int64_t batch = r.train.micro_batch;
  parallel::RingBytes largest;
  for (int layer = 0; layer < r.model.layers; ++layer)
    for (int rank = 0; rank < plan.ring; ++rank) {
      kernels::AttentionSettings settings;
      settings.tile = r.train.tile;
      settings.gates = model.encoding().terms(layer).gates;
      const parallel::RingBytes bytes = parallel::bytes_sent(
          layout, schedule, rank, ring_shapes(r, model.encoding(), layer, layout.local_tokens(rank)), settings);
      plan.forward_bytes_per_rank = std::max(plan.forward_bytes_per_rank, bytes.forward);
      plan.backward_bytes_per_rank = std::max(plan.backward_bytes_per_rank, bytes.backward);
      largest.keys = std::max(largest.keys, bytes.keys);
      largest.gradients = std::max(largest.gradients, bytes.gradients);
    }
  plan.bytes_per_hop_forward = plan.ring > 1 ? largest.keys : 0;
  plan.bytes_per_hop_backward = plan.ring > 1 ? largest.keys + largest.gradients : 0;

  const std::int64_t tokens = batch * *std::max_element(plan.local_tokens.begin(), plan.local_tokens.end());
  const std::int64_t shard = (plan.trainable + ranks - 1) / ranks;
  const auto add = [&](const std::string& name, std::int64_t bytes, const std::string& how) {
    plan.memory.push_back({name, bytes, how});
  };
  add("parameters", plan.parameters * narrow, fmt::format("{} x {} B", plan.parameters, narrow));
  add("gradients", plan.trainable * wide, fmt::format("{} trained", plan.trainable));
  const bool adamw = r.optimizer.kind == "adamw", masters = narrow < wide;
  add("optimizer", ((adamw ? 2 : 0) + (ranks > 1 ? 1 : 0) + (masters ? 1 : 0)) * shard * wide,
      fmt::format("moments, gradient{} of 1/{} of them (ZeRO-1)", masters ? ", f32 masters" : "", ranks));
  add_activations(plan, r, tokens, model.encoding());
  add("ring buffers", 3 * largest.keys + 3 * largest.gradients, "key chunks in hand and arriving, their gradients");
  add("logits", kernels::cross_entropy_bytes(tokens, r.model.hidden_size, r.model.vocabulary),
      "of blocks of rows and words, partial sums of their gradient");
  plan.checkpoint_bytes = plan.parameters * wide + (adamw ? 2 * plan.trainable * wide : 0);
  plan.tokens_per_step = r.train.sequences * r.data.context;
  plan.total_tokens = plan.tokens_per_step * r.train.steps;
  plan.flops = forward_flops(model, r.data.context);
  return plan;
}

std::string text_of(const Plan& plan, const Recipe& r) {
  std::string out;
  const auto line = [&](const std::string& name, const std::string& text) {
    out += fmt::format("{:<12}{}\n", name, text);
  };
  line("model",
       fmt::format("{} parameters, {} trained; position {}", plan.parameters, plan.trainable, r.position.kind));
  line("ranks", fmt::format("{} = data {} x ring {}", plan.ranks, plan.data, plan.ring));
  line("layout", fmt::format("{} tokens in tiles of {}: {} tokens on each ring rank", r.data.context, r.train.tile,
                             fmt::join(plan.local_tokens, ", ")));
  line("schedule",
       fmt::format("{} ({} slots forward, {} backward)", plan.schedule, plan.forward_slots, plan.backward_slots));
  line("hop",
       fmt::format("{} forward, {} backward, per layer and micro-batch of {}", bytes_text(plan.bytes_per_hop_forward),
                   bytes_text(plan.bytes_per_hop_backward), r.train.micro_batch));
  line("sent", fmt::format("at most {} forward, {} backward, by a rank for one layer and micro-batch",
                           bytes_text(plan.forward_bytes_per_rank), bytes_text(plan.backward_bytes_per_rank)));
  line("step", fmt::format("{} tokens = {} sequences x {}; {} steps = {} tokens", plan.tokens_per_step,
                           r.train.sequences, r.data.context, r.train.steps, plan.total_tokens));
  const auto share = [&](double part) { return 100 * part / plan.flops.total(); };
  line("arithmetic",
       fmt::format("{:.4g} GFLOP forward for a sequence: {:.1f} % linear layers, {:.1f} % attention, {:.1f} % position",
                   1e-9 * plan.flops.total(), share(plan.flops.linear), share(plan.flops.attention),
                   share(plan.flops.position)));
  line("checkpoint", bytes_text(plan.checkpoint_bytes));
  line("memory", fmt::format("{} on the fullest rank", bytes_text(plan.memory_total())));
  for (const MemoryLine& m : plan.memory)
    out += fmt::format("  {:<20}{:>12}  {}\n", m.name, bytes_text(m.bytes), m.how);
  return out;
}

}  // namespace capstan::framework
