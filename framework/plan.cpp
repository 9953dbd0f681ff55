#include "framework/plan.h"

#include <algorithm>

#include "framework/model.h"
#include "kernels/cross_entropy.h"
#include "parallel/ring_attention.h"

namespace capstan::framework {

namespace {

/// Elements per token that one layer holds, by what they are for.
struct PerToken {
  std::int64_t input = 0;     // x and, with a state, z
  std::int64_t ring = 0;      // O, LSE
  std::int64_t local = 0;     // all else that backward reads
  std::int64_t integers = 0;  // i64: CoPE's carry at the horizon
};

PerToken per_token(const Recipe& r, bool cope, bool tape) {
  const std::int64_t c = r.model.hidden_size, f = r.model.mlp_size, q = r.model.heads * r.model.head_size,
                     k = r.model.kv_heads * r.model.head_size;
  const bool rotates = r.position.kind != "none" && r.position.kind != "cope";
  PerToken out;
  out.input = c + (tape ? k : 0);
  out.ring = q * (tape ? 2 : 1) + r.model.heads;
  out.local =
      c + (q + k) * (rotates ? 2 : 1) + k + (cope ? r.model.heads * r.position.cope_positions : 0) + 3 * c + 3 * f;
  out.integers = cope ? r.model.heads : 0;
  return out;
}

void add_activations(Plan& plan, const Recipe& r, std::int64_t element, std::int64_t tokens, bool cope, bool tape) {
  const PerToken per = per_token(r, cope, tape);
  const std::int64_t layers = r.model.layers, ring = per.ring * element + per.integers * 8;
  const auto add = [&](const std::string& name, std::int64_t bytes, const std::string& how) {
    plan.memory.push_back({name, bytes, how});
  };
  add("block inputs", layers * tokens * per.input * element,
      fmt::format("{} layers x {} tokens x {} numbers", layers, tokens, per.input));
  if (r.train.recompute != "block_full")
    add("attention results", layers * tokens * ring, "O, LSE and CoPE's horizon of every layer");
  if (r.train.recompute == "none")
    add("layer values", layers * tokens * per.local * element, "what recompute would compute again");
  add("working set", tokens * (2 * per.local * element + 2 * ring + 4 * per.input * element),
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
  const parallel::SequenceLayout layout = parallel::SequenceLayout::contiguous(r.data.context, plan.ring, r.train.tile);
  const parallel::RingSchedule schedule = parallel::make_schedule(r.grid.schedule, layout);
  plan.schedule = schedule.name;
  plan.forward_slots = std::int64_t(schedule.forward[0].size());
  plan.backward_slots = std::int64_t(schedule.backward[0].size());
  for (int rank = 0; rank < plan.ring; ++rank) plan.local_tokens.push_back(layout.local_tokens(rank));

  const bool cope = model.encoding().term() == kernels::TermKind::cope, tape = model.encoding().has_state();
  const kernels::DType type = r.train.precision == "f64" ? kernels::DType::f64 : kernels::DType::f32;
  const std::int64_t element = kernels::size_of(type), batch = r.train.micro_batch;
  // The first layer's states are made where they are needed, the last layer's are used by nobody.
  const bool z_travels = tape && r.model.layers > 2;
  const auto bytes_of = [&](std::int64_t tokens) {
    return parallel::chunk_bytes(batch, tokens, r.model.kv_heads, r.model.head_size, z_travels, type);
  };
  const parallel::ChunkBytes largest = bytes_of(layout.largest_chunk());
  plan.bytes_per_hop_forward = plan.ring > 1 ? largest.keys : 0;
  plan.bytes_per_hop_backward = plan.ring > 1 ? largest.keys + largest.gradients : 0;
  for (const auto& slots : schedule.forward) {
    std::int64_t sent = 0;
    for (const parallel::Slot& slot : slots)
      for (const parallel::Transfer& t : slot.send_keys) sent += bytes_of(layout.chunks()[t.chunk].tokens()).keys;
    plan.forward_bytes_per_rank = std::max(plan.forward_bytes_per_rank, sent);
  }

  const std::int64_t tokens = batch * *std::max_element(plan.local_tokens.begin(), plan.local_tokens.end());
  const std::int64_t shard = (plan.trainable + ranks - 1) / ranks;
  const auto add = [&](const std::string& name, std::int64_t bytes, const std::string& how) {
    plan.memory.push_back({name, bytes, how});
  };
  add("parameters", plan.parameters * element, fmt::format("{} x {} B", plan.parameters, element));
  add("gradients", plan.trainable * element, fmt::format("{} trained", plan.trainable));
  add("optimizer", (r.optimizer.kind == "adamw" ? 3 : 1) * shard * element,
      fmt::format("moments and gradient of 1/{} of them (ZeRO-1)", ranks));
  add_activations(plan, r, element, tokens, cope, tape);
  add("ring buffers", 3 * largest.keys + 3 * largest.gradients, "key chunks in hand and arriving, their gradients");
  add("logits", 2 * kernels::cross_entropy_chunk * r.model.vocabulary * element,
      fmt::format("{} rows at a time", kernels::cross_entropy_chunk));
  plan.checkpoint_bytes = plan.parameters * element + (r.optimizer.kind == "adamw" ? 2 * plan.trainable * element : 0);
  plan.tokens_per_step = r.train.sequences * r.data.context;
  plan.total_tokens = plan.tokens_per_step * r.train.steps;
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
  line("sent",
       fmt::format("at most {} per rank, layer and micro-batch in forward", bytes_text(plan.forward_bytes_per_rank)));
  line("step", fmt::format("{} tokens = {} sequences x {}; {} steps = {} tokens", plan.tokens_per_step,
                           r.train.sequences, r.data.context, r.train.steps, plan.total_tokens));
  line("checkpoint", bytes_text(plan.checkpoint_bytes));
  line("memory", fmt::format("{} on the fullest rank", bytes_text(plan.memory_total())));
  for (const MemoryLine& m : plan.memory)
    out += fmt::format("  {:<20}{:>12}  {}\n", m.name, bytes_text(m.bytes), m.how);
  return out;
}

}  // namespace capstan::framework
