#include "parallel/decode.h"

#include <algorithm>
#include <cmath>

#include "kernels/host_view.h"
#include "parallel/ring_fields.h"

namespace capstan::parallel {

using kernels::DType;
using kernels::Shape;

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// One chunk of this rank's cache: its number and its keys.
struct OwnChunk {
  int chunk;
  kernels::KeyChunk keys;
};

/// The rank's chunks in sequence order. pooled: sum 1's gate keys, chunk after chunk, or absent. key_offset [T, H] or absent.
std::vector<OwnChunk> own_chunks(const GrowingLayout& layout, int rank, const RingInputs& cached, std::int64_t block,
                                 const View& pooled, const View& key_offset) {
  std::vector<OwnChunk> out;
  std::int64_t at = 0, block_at = 0;
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const Chunk& chunk = layout.chunks()[c];
    if (chunk.owner != rank) continue;
    const std::int64_t n = chunk.tokens(), blocks = chunk.steps(block);
    const auto rows = [&](const View& x) { return x ? x[0].rows(at, at + n) : View(); };
    const View v = rows(cached.v);
    out.push_back({int(c),
                   {rows(cached.k),
                    v,
                    rows(cached.z),
                    rows(cached.rows.index),
                    rows(cached.rows.position),
                    rows(cached.rows.document),
                    {{cached.gates_on_values ? v : rows(cached.terms.gate_k[0]),
                      pooled ? pooled.rows(block_at, block_at + blocks) : View()},
                     key_offset ? key_offset.rows(at, at + n) : View()}}});
    at += n;
    block_at += blocks;
  }
  CAPSTAN_CHECK(at == cached.k.dim(1), "the layout gives {} tokens to rank {}, its cache has {}", at, rank,
                cached.k.dim(1));
  return out;
}

/// Gate sums [chunks, H] of every chunk, each from its owner.
Tensor gather_gate_sums(Communicator& ring, const GrowingLayout& layout, const std::vector<OwnChunk>& own, int sum,
                        const kernels::QueryChunk& query, const AttentionSettings& settings) {
  const std::int64_t heads = query.q.dim(1);
  const Tensor mine({std::int64_t(own.size()), heads}, DType::i64, query.q.device());
  for (std::size_t c = 0; c < own.size(); ++c)
    kernels::attention_gate_sum(mine.view().rows(std::int64_t(c), std::int64_t(c) + 1), sum, query, own[c].keys,
                                settings);
  return gather_chunks(ring, layout.chunks(), mine);
}

/// carry [chunks, H]: the gate sum of all nearer chunks.
Tensor carries_on_entry(const Tensor& gathered) {
  const kernels::HostView sums(gathered);
  const std::int64_t chunks = gathered.shape()[0], heads = gathered.shape()[1];
  Tensor carries = zeros_like(sums.view());
  for (std::int64_t c = chunks - 1; c-- > 0;)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t nearer = (c + 1) * heads + h;
      carries.as<std::int64_t>()[c * heads + h] = carries.as<std::int64_t>()[nearer] + sums.as<std::int64_t>()[nearer];
    }
  return kernels::moved_to(std::move(carries), gathered.view().device());
}

/// Ranks by their newest chunk, newest first; ranks without chunks see no key and come last.
std::vector<int> newest_first(const GrowingLayout& layout) {
  std::vector<int> newest(static_cast<std::size_t>(layout.ranks()), -1), order;
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) newest[layout.chunks()[c].owner] = int(c);
  for (int rank = 0; rank < layout.ranks(); ++rank) order.push_back(rank);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return newest[a] > newest[b]; });
  return order;
}

}  // namespace

GrowingLayout::GrowingLayout(const SequenceLayout& prompt) : unit_(prompt.unit()), ranks_(prompt.ranks()) {
  for (const Chunk& chunk : prompt.chunks())
    if (chunk.tokens() > 0) chunks_.push_back(chunk);
  limit_ = round_up(length(), unit_);
}

void GrowingLayout::append() {
  if (length() == limit_) {
    const int owner = chunks_.empty() ? 0 : (chunks_.back().owner + 1) % ranks_;
    chunks_.push_back(Chunk{limit_, limit_, owner});
    limit_ += round_up(added_chunk, unit_);
  }
  ++chunks_.back().end;
}

int GrowingLayout::append_segment(std::int64_t tokens) {
  CAPSTAN_CHECK(length() == limit_, "a segment at token {}, inside the last chunk", length());
  const int first = int(chunks_.size());
  const std::int64_t begin = length();
  const SequenceLayout segment = SequenceLayout::contiguous(tokens, ranks_, unit_);
  for (const Chunk& chunk : segment.chunks())
    if (chunk.tokens() > 0) chunks_.push_back(Chunk{begin + chunk.begin, begin + chunk.end, chunk.owner});
  limit_ = round_up(length(), unit_);
  return first;
}

/// Buffers double, so that a token costs a constant number of copies on average.
void KeyCache::Buffer::append(const View& rows, std::int64_t at) {
  if (!rows) return;
  const std::int64_t n = rows.dim(1), capacity = memory ? memory.shape()[1] : 0;
  if (!memory || at + n > capacity) {
    std::vector<std::int64_t> extents{1, std::max({at + n, 2 * capacity, std::int64_t(32)})};
    for (int axis = 2; axis < rows.shape().rank(); ++axis) extents.push_back(rows.dim(axis));
    Tensor larger(Shape(extents), rows.type(), rows.device());
    if (memory) larger.view()[0].rows(0, at).copy_from(memory.view()[0].rows(0, at));
    memory = std::move(larger);
  }
  memory.view()[0].rows(at, at + n).copy_from(rows[0]);
}

View KeyCache::Buffer::filled(std::int64_t tokens) const {
  if (!memory) return {};
  std::vector<std::int64_t> extents{1, tokens};
  for (int axis = 2; axis < memory.shape().rank(); ++axis) extents.push_back(memory.shape()[axis]);
  return memory.view()[0].rows(0, tokens).reshape(Shape(extents));
}

void KeyCache::append(const RingInputs& rows) {
  CAPSTAN_CHECK(rows.k.dim(0) == 1, "a cache holds one sequence, not {}", rows.k.dim(0));
  for (const auto& [buffer, source] : {std::pair{&k_, rows.k},
                                       {&v_, rows.v},
                                       {&z_, rows.z},
                                       {&index_, rows.rows.index},
                                       {&position_, rows.rows.position},
                                       {&document_, rows.rows.document},
                                       {&gate0_, rows.terms.gate_k[0]},
                                       {&gate1_, rows.terms.gate_k[1]},
                                       {&offset_source_, rows.terms.offset_source}})
    buffer->append(source, tokens_);
  offset_ = rows.offset;
  gates_on_values_ = rows.gates_on_values;
  tokens_ += rows.k.dim(1);
}

RingInputs KeyCache::keys() const {
  RingInputs in;
  in.k = k_.filled(tokens_);
  in.v = v_.filled(tokens_);
  in.z = z_.filled(tokens_);
  in.rows = {index_.filled(tokens_), position_.filled(tokens_), document_.filled(tokens_)};
  in.terms.gate_k = {gate0_.filled(tokens_), gate1_.filled(tokens_)};
  in.terms.offset_source = offset_source_.filled(tokens_);
  in.gates_on_values = gates_on_values_;
  in.offset = offset_;
  return in;
}

RingSaved decode_attention(Communicator& ring, const GrowingLayout& layout, const KeyCache& cache, const RingInputs& in,
                           const AttentionSettings& settings, AttentionStats* stats) {
  CAPSTAN_CHECK(in.q.dim(0) == 1 && in.q.dim(1) == 1, "decode takes one row, not q {}", in.q.shape().text());
  CAPSTAN_CHECK(layout.ranks() == ring.size(), "a layout for {} ranks on a ring of {}", layout.ranks(), ring.size());
  const std::int64_t heads = in.q.dim(2), columns = in.z ? 2 * in.q.dim(3) : in.q.dim(3);
  const DType sums = kernels::wide(in.q.type());
  const kernels::Device device = in.q.device();
  const RingInputs cached = cache.keys();
  const Ring as_ring{ring, layout.layout(), {}};
  const Tensor pooled = pool_keys(as_ring, cached, settings);
  Offsets offsets;
  Tensor row_offset;
  if (cached.terms.offset_source) {
    offsets = make_offsets(ring, as_ring.layout, cached.rows, cached.terms.offset_source, cached.offset);
    row_offset = Tensor({1, heads}, DType::i64, device);  // the newest token's, from its owner
    const int owner = layout.chunks().back().owner;
    if (ring.rank() == owner)
      row_offset.view()[0].copy_from(offsets.row.view()[0].rows(cache.tokens() - 1, cache.tokens()));
    ring.broadcast(row_offset, owner);
  }
  const auto row = [](const View& x) { return x ? x[0] : View(); };
  const kernels::QueryChunk query{in.q[0],
                                  in.rows.index[0],
                                  in.rows.position[0],
                                  in.rows.document[0],
                                  {{row(in.terms.table[0]), row(in.terms.table[1])},
                                   {row(in.terms.gate_q[0]), row(in.terms.gate_q[1])},
                                   view_or_absent(row_offset),
                                   row(in.terms.offset_table),
                                   row(in.terms.relative)}};
  const std::vector<OwnChunk> own =
      own_chunks(layout, ring.rank(), cached, block_of(settings), pooled ? pooled.view()[0] : View(),
                 offsets.key ? offsets.key.view()[0] : View());

  std::array<Tensor, kernels::gated_sums> carries, carry, horizon;
  for (int sum = 0; sum < kernels::gated_sums; ++sum) {
    if (!has_sum(settings, sum)) continue;
    carries[sum] = carries_on_entry(gather_gate_sums(ring, layout, own, sum, query, settings));
    carry[sum] = Tensor({1, heads}, DType::i64, device);
    horizon[sum] = zeros_like(carry[sum]);
  }
  // o, m and l in one buffer, so that the state is one message.
  const Tensor state({heads * (columns + 2)}, sums, device), states({ring.size(), heads * (columns + 2)}, sums, device);
  const auto part = [&](std::int64_t from, const Shape& shape) {
    return state.view().rows(from, from + shape.elements()).reshape(shape);
  };
  const kernels::AttentionState all{part(0, {1, heads, columns}), part(heads * columns, {1, heads}),
                                    part(heads * (columns + 1), {1, heads}), views_or_absent(carry),
                                    views_or_absent(horizon)};
  attention_begin(all);
  for (auto chunk = own.rbegin(); chunk != own.rend(); ++chunk) {
    for (int sum = 0; sum < kernels::gated_sums; ++sum)
      if (carry[sum])
        carry[sum].view().copy_from(
            carries[sum].view()[chunk->chunk]);  // what lies between two chunks of this rank counts too
    attention_forward(all, query, chunk->keys, settings, stats);
  }
  ring.all_gather(state, states);

  RingSaved result;
  result.o = Tensor({1, 1, heads, columns}, sums, device);
  result.lse = Tensor({1, 1, heads}, sums, device);
  fold_states(result.o.view().reshape({heads, columns}), result.lse.view().reshape({heads}), states,
              newest_first(layout));
  return result;
}

/// The softmax of all keys from those of disjoint parts, in the parts' common scale:
///   m = max m_p,  l = Σ_p l_p e^{m_p - m},  o = Σ_p o_p e^{m_p - m} / l,  lse = m + ln l.
/// The first part is taken as it is and parts without keys change nothing, so that one rank's result has the bits of
/// its walk.
void fold_states(const View& o, const View& lse, const View& states, const std::vector<int>& order) {
  if (o.device() == kernels::Device::cuda)  // a row per rank: folded by the host
    return kernels::update_on_host(o, [&](const View& host_o) {
      kernels::update_on_host(
          lse, [&](const View& host_lse) { fold_states(host_o, host_lse, kernels::HostView(states).view(), order); });
    });
  const std::int64_t heads = o.dim(0), columns = o.dim(1);
  CAPSTAN_CHECK(!order.empty() && states.dim(1) == heads * (columns + 2), "states {} for o {}", states.shape().text(),
                o.shape().text());
  const Tensor l = zeros_like(lse);
  const auto part = [&](int which, std::int64_t from, const Shape& shape) {
    return states[which].rows(from, from + shape.elements()).reshape(shape);
  };
  kernels::with_real(o.type(), [&](auto real) {
    using Real = decltype(real);
    Real *total_o = o.as<Real>(), *total_m = lse.as<Real>(), *total_l = l.as<Real>();
    std::copy_n(part(order[0], 0, {heads, columns}).template as<Real>(), heads * columns, total_o);
    std::copy_n(part(order[0], heads * columns, {heads}).template as<Real>(), heads, total_m);
    std::copy_n(part(order[0], heads * (columns + 1), {heads}).template as<Real>(), heads, total_l);
    for (std::size_t p = 1; p < order.size(); ++p) {
      const Real* part_o = part(order[p], 0, {heads, columns}).template as<Real>();
      const Real* part_m = part(order[p], heads * columns, {heads}).template as<Real>();
      const Real* part_l = part(order[p], heads * (columns + 1), {heads}).template as<Real>();
      for (std::int64_t h = 0; h < heads; ++h) {
        if (!(part_l[h] > 0)) continue;  // no key there
        const Real highest = std::max(total_m[h], part_m[h]);
        const Real keep = std::exp(total_m[h] - highest), add = std::exp(part_m[h] - highest);
        total_m[h] = highest;
        total_l[h] = total_l[h] * keep + part_l[h] * add;
        for (std::int64_t e = 0; e < columns; ++e)
          total_o[h * columns + e] = total_o[h * columns + e] * keep + part_o[h * columns + e] * add;
      }
    }
  });
  kernels::attention_finish({o, lse, l, {}, {}});
}

}  // namespace capstan::parallel
