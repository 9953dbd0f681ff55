#include "parallel/decode.h"

#include <algorithm>
#include <cmath>

namespace capstan::parallel {

using kernels::DType;
using kernels::Shape;

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Rows [at, at + n) of `target` from rows [from, from + n) of the one sequence in `source` [1, T, …].
void copy_rows(const Tensor& target, std::int64_t at, const View& source, std::int64_t from, std::int64_t n) {
  if (source) target.view().rows(at, at + n).copy_from(source[0].rows(from, from + n));
}

/// Gate sums [chunks, H] of every chunk, each from its owner. Ranks send as many rows as the rank with the most chunks
/// has.
Tensor gather_gate_sums(Communicator& ring, const GrowingLayout& layout, const KeyCache& cache,
                        const kernels::QueryChunk& query, const AttentionSettings& settings) {
  const std::vector<Chunk>& chunks = layout.chunks();
  const std::int64_t heads = query.q.dim(1);
  std::vector<std::int64_t> count(static_cast<std::size_t>(ring.size()));
  for (const Chunk& chunk : chunks) ++count[chunk.owner];
  const std::int64_t most = *std::max_element(count.begin(), count.end());
  const kernels::Device device = query.q.device();
  const Tensor mine({most, heads}, DType::i64, device), all({ring.size(), most, heads}, DType::i64, device);
  std::int64_t at = 0;
  for (const KeyCache::Piece& piece : cache.pieces()) {
    kernels::attention_gate_sum(mine.view().rows(at, at + 1), query, piece.keys(), settings);
    ++at;
  }
  ring.all_gather(mine, all);
  Tensor sums({std::int64_t(chunks.size()), heads}, DType::i64, device);
  std::fill(count.begin(), count.end(), 0);
  for (std::size_t c = 0; c < chunks.size(); ++c)
    sums.view()[c].copy_from(all.view()[chunks[c].owner][count[chunks[c].owner]++]);
  return sums;
}

/// carry [chunks, H]: the gate sum of all nearer chunks.
Tensor carries_on_entry(const Tensor& sums) {
  Tensor carries = zeros_like(sums);
  const std::int64_t chunks = sums.shape()[0], heads = sums.shape()[1];
  for (std::int64_t c = chunks - 1; c-- > 0;)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t nearer = (c + 1) * heads + h;
      carries.as<std::int64_t>()[c * heads + h] = carries.as<std::int64_t>()[nearer] + sums.as<std::int64_t>()[nearer];
    }
  return carries;
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

kernels::KeyChunk KeyCache::Piece::keys() const {
  const auto kept = [&](const Tensor& x) { return x ? x.view().rows(0, tokens) : View(); };
  return {kept(k), kept(v), kept(z), kept(index), kept(document)};
}

KeyCache::KeyCache(const GrowingLayout& layout, int rank, const RingInputs& prompt) : rank_(rank) {
  CAPSTAN_CHECK(prompt.k.dim(0) == 1, "a cache holds one sequence, not {}", prompt.k.dim(0));
  std::int64_t from = 0;
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const Chunk& chunk = layout.chunks()[c];
    if (chunk.owner != rank) continue;
    const std::int64_t n = chunk.tokens();
    const bool last = c + 1 == layout.chunks().size();
    Piece& piece = piece_with_room(int(c), n, (last ? layout.limit() : chunk.end) - chunk.begin, prompt);
    copy_rows(piece.k, 0, prompt.k, from, n);
    copy_rows(piece.v, 0, prompt.v, from, n);
    copy_rows(piece.z, 0, prompt.z, from, n);
    copy_rows(piece.index, 0, prompt.rows.index, from, n);
    copy_rows(piece.position, 0, prompt.rows.position, from, n);
    copy_rows(piece.document, 0, prompt.rows.document, from, n);
    piece.tokens = n;
    from += n;
  }
  CAPSTAN_CHECK(from == prompt.k.dim(1), "the layout gives {} tokens to rank {}, the shard has {}", from, rank,
                prompt.k.dim(1));
}

/// The chunk's piece, able to hold `tokens`; its buffers double until they reach the chunk's limit.
KeyCache::Piece& KeyCache::piece_with_room(int chunk, std::int64_t tokens, std::int64_t limit, const RingInputs& like) {
  if (pieces_.empty() || pieces_.back().chunk != chunk) {
    pieces_.emplace_back();
    pieces_.back().chunk = chunk;
    pieces_.back().tokens = 0;
  }
  Piece& piece = pieces_.back();
  const std::int64_t capacity = piece.k ? piece.k.shape()[0] : 0;
  if (tokens <= capacity) return piece;
  const std::int64_t wanted = std::min(limit, std::max({tokens, 2 * capacity, std::int64_t(32)}));
  const auto grow = [&](Tensor& buffer, const View& row) {
    if (!row) return;
    Tensor larger(row.shape().rank() == 2 ? Shape{wanted} : Shape{wanted, row.dim(2), row.dim(3)}, row.type(),
                  row.device());
    if (buffer) larger.view().rows(0, piece.tokens).copy_from(buffer.view().rows(0, piece.tokens));
    buffer = std::move(larger);
  };
  grow(piece.k, like.k);
  grow(piece.v, like.v);
  grow(piece.z, like.z);
  grow(piece.index, like.rows.index);
  grow(piece.position, like.rows.position);
  grow(piece.document, like.rows.document);
  return piece;
}

void KeyCache::append(const GrowingLayout& layout, const RingInputs& row) {
  const int chunk = int(layout.chunks().size()) - 1;
  const Chunk& last = layout.chunks().back();
  if (last.owner != rank_) return;
  const std::int64_t at = last.tokens() - 1;
  Piece& piece = piece_with_room(chunk, last.tokens(), layout.limit() - last.begin, row);
  CAPSTAN_CHECK(piece.tokens == at, "row {} of chunk {} does not follow {} cached rows", at, chunk, piece.tokens);
  copy_rows(piece.k, at, row.k, 0, 1);
  copy_rows(piece.v, at, row.v, 0, 1);
  copy_rows(piece.z, at, row.z, 0, 1);
  copy_rows(piece.index, at, row.rows.index, 0, 1);
  copy_rows(piece.position, at, row.rows.position, 0, 1);
  copy_rows(piece.document, at, row.rows.document, 0, 1);
  ++piece.tokens;
}

RingSaved decode_attention(Communicator& ring, const GrowingLayout& layout, const KeyCache& cache, const RingInputs& in,
                           const AttentionSettings& settings, AttentionStats* stats) {
  CAPSTAN_CHECK(in.q.dim(0) == 1 && in.q.dim(1) == 1, "decode takes one row, not q {}", in.q.shape().text());
  CAPSTAN_CHECK(layout.ranks() == ring.size(), "a layout for {} ranks on a ring of {}", layout.ranks(), ring.size());
  const std::int64_t heads = in.q.dim(2), columns = in.z ? 2 * in.q.dim(3) : in.q.dim(3);
  const DType type = in.q.type();
  const kernels::Device device = in.q.device();
  const kernels::QueryChunk query{in.q[0], in.table ? in.table[0] : View(), in.rows.index[0], in.rows.document[0]};

  Tensor carries, carry, horizon, horizon_carry;
  if (in.table) {
    carries = carries_on_entry(gather_gate_sums(ring, layout, cache, query, settings));
    carry = Tensor({1, heads}, DType::i64, device);
    horizon = zeros_like(carry);
    horizon_carry = zeros_like(carry);
  }
  // o, m and l in one buffer, so that the state is one message.
  const Tensor state({heads * (columns + 2)}, type, device), states({ring.size(), heads * (columns + 2)}, type, device);
  const auto part = [&](std::int64_t from, const Shape& shape) {
    return state.view().rows(from, from + shape.elements()).reshape(shape);
  };
  const kernels::AttentionState own{part(0, {1, heads, columns}),
                                    part(heads * columns, {1, heads}),
                                    part(heads * (columns + 1), {1, heads}),
                                    carry,
                                    horizon,
                                    horizon_carry};
  attention_begin(own);
  for (auto piece = cache.pieces().rbegin(); piece != cache.pieces().rend(); ++piece) {
    if (carry)
      carry.view().copy_from(carries.view()[piece->chunk]);  // what lies between two chunks of this rank counts too
    attention_forward(own, query, piece->keys(), settings, stats);
  }
  ring.all_gather(state, states);

  RingSaved result;
  result.o = Tensor({1, 1, heads, columns}, type, device);
  result.lse = Tensor({1, 1, heads}, type, device);
  fold_states(result.o.view().reshape({heads, columns}), result.lse.view().reshape({heads}), states,
              newest_first(layout));
  return result;
}

/// The softmax of all keys from those of disjoint parts, in the parts' common scale:
///   m = max m_p,  l = Σ_p l_p e^{m_p - m},  o = Σ_p o_p e^{m_p - m} / l,  lse = m + ln l.
/// The first part is taken as it is and parts without keys change nothing, so that one rank's result has the bits of
/// its walk.
void fold_states(const View& o, const View& lse, const View& states, const std::vector<int>& order) {
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
  kernels::attention_finish({o, lse, l, {}, {}, {}});
}

}  // namespace capstan::parallel
