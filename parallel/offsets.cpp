#include "parallel/offsets.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention_tile.h"
#include "kernels/block_pool.h"
#include "kernels/host_view.h"

namespace capstan::parallel {

using kernels::DType;
using kernels::HostView;
using kernels::with_real;

namespace {

/// The rows of tokens on a GPU, for the host. Sums along the sequence are its work there, too: one number per head and token.
class HostRows {
 public:
  explicit HostRows(const TokenRows& rows) : index_(rows.index), position_(rows.position), document_(rows.document) {}
  TokenRows rows() const { return {index_.view(), position_.view(), document_.view()}; }

 private:
  HostView index_, position_, document_;
};

constexpr std::int64_t largest_sum = std::int64_t(1) << 62;

/// The local rows of one chunk.
struct Span {
  std::int64_t begin, end;
};

std::vector<Span> spans_of(const SequenceLayout& layout, int rank) {
  std::vector<Span> spans;
  for (int chunk : layout.owned(rank)) {
    const std::int64_t begin = layout.local_offset(chunk);
    spans.push_back({begin, begin + layout.chunks()[chunk].tokens()});
  }
  return spans;
}

double sigmoid(double u) { return u >= 0 ? 1 / (1 + std::exp(-u)) : std::exp(u) / (1 + std::exp(u)); }

/// ρ of a chunk's blocks [blocks, H] in the type of source.
Tensor block_gates(const View& source, const View& document, std::int64_t block) {
  const std::int64_t tokens = source.dim(0);
  Tensor gates({(tokens + block - 1) / block, source.dim(1)}, source.type(), source.device());
  kernels::block_mean(gates, source, document, block);
  with_real(source.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < gates.view().elements(); ++i)
      gates.as<Real>()[i] = Real(sigmoid(double(gates.as<Real>()[i])));
  });
  return gates;
}

bool ends_block(std::int64_t index, std::int64_t block) { return index % block == block - 1; }

/// What each token adds, in fixed point [n, H]: its source, or its block's gate at the block's last token.
Tensor increments(const View& source, const View& index, const View& document, const OffsetSettings& settings) {
  const std::int64_t tokens = source.dim(0), heads = source.dim(1);
  Tensor out({tokens, heads}, DType::i64, source.device());
  if (tokens == 0) return out;
  const double per_unit = double(std::int64_t(1) << kernels::gate_fraction_bits(source.type()));
  const bool blocks = settings.rule == OffsetRule::block_gates;
  const Tensor gates = blocks ? block_gates(source, document, settings.block) : Tensor();
  const auto* at = index.as<std::int64_t>();
  with_real(source.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (blocks && !ends_block(at[t], settings.block)) continue;
      const Real* from =
          blocks ? gates.as<Real>() + (at[t] - at[0]) / settings.block * heads : source.as<Real>() + t * heads;
      for (std::int64_t h = 0; h < heads; ++h) {
        const double units = double(from[h]) * per_unit;
        if (!(std::abs(units) < double(largest_sum)))
          fail(ExitCode::bad_data, "an offset of {} at token {} is beyond the range of its fixed-point sum", from[h],
               at[t]);
        out.as<std::int64_t>()[t * heads + h] = std::llrint(units);
      }
    }
  });
  return out;
}

/// Σ over the chunks before (or after) `chunk`, as long as its document goes on. records [chunks, B, 2 + H]: the chunk's
/// first and last document, and per head the sum of its part at that side; empty chunks have first > last.
template <class Number> Number beyond(const Tensor& records, int chunk, int direction, std::int64_t b, std::int64_t h) {
  const std::int64_t chunks = records.shape()[0], batch = records.shape()[1], width = records.shape()[2];
  const auto record = [&](int c) { return records.as<Number>() + (c * batch + b) * width; };
  const bool backwards = direction < 0;
  const Number document = record(chunk)[backwards ? 0 : 1];
  Number sum = 0;
  for (int c = chunk + direction; c >= 0 && c < chunks; c += direction) {
    const Number first = record(c)[0], last = record(c)[1];
    if (first > last) continue;
    if ((backwards ? last : first) != document) break;
    sum += record(c)[2 + h];
    if (first != last) break;
  }
  return sum;
}

/// Records of the rank's chunks, gathered. side_sum(b, s, h): the sum that own chunk s shows to that side.
template <class Number, class SideSum>
Tensor gather_records(Communicator& ring, const SequenceLayout& layout, const TokenRows& rows, std::int64_t heads,
                      const SideSum& side_sum) {
  const std::vector<Span> spans = spans_of(layout, ring.rank());
  const std::int64_t batch = rows.index.dim(0), width = 2 + heads;
  const Tensor mine({std::int64_t(spans.size()), batch, width}, kernels::DTypeOf<Number>::value, rows.index.device());
  for (std::size_t s = 0; s < spans.size(); ++s)
    for (std::int64_t b = 0; b < batch; ++b) {
      Number* record = mine.as<Number>() + (std::int64_t(s) * batch + b) * width;
      record[0] = 1;
      if (spans[s].begin == spans[s].end) continue;
      const auto* document = rows.document[b].template as<std::int64_t>();
      record[0] = Number(document[spans[s].begin]);
      record[1] = Number(document[spans[s].end - 1]);
      for (std::int64_t h = 0; h < heads; ++h) record[2 + h] = side_sum(b, s, h);
    }
  const Tensor all =
      gather_chunks(ring, layout.chunks(), mine.view().reshape({std::int64_t(spans.size()), batch * width}));
  Tensor records({std::int64_t(layout.chunks().size()), batch, width}, kernels::DTypeOf<Number>::value,
                 rows.index.device());
  records.view().copy_from(all);
  return records;
}

}  // namespace

Tensor gather_chunks(Communicator& ring, const std::vector<Chunk>& chunks, const View& mine) {
  std::vector<std::int64_t> count(std::size_t(ring.size()));
  for (const Chunk& chunk : chunks) ++count[std::size_t(chunk.owner)];
  const std::int64_t most = *std::max_element(count.begin(), count.end()), width = mine.dim(1);
  const Tensor padded({most, width}, mine.type(), mine.device()),
      all({ring.size(), most, width}, mine.type(), mine.device());
  CAPSTAN_CHECK(mine.dim(0) == count[std::size_t(ring.rank())], "{} rows for {} chunks", mine.dim(0),
                count[std::size_t(ring.rank())]);
  padded.view().rows(0, mine.dim(0)).copy_from(mine);
  ring.all_gather(padded, all);
  Tensor out({std::int64_t(chunks.size()), width}, mine.type(), mine.device());
  std::fill(count.begin(), count.end(), 0);
  for (std::size_t c = 0; c < chunks.size(); ++c)
    out.view()[std::int64_t(c)].copy_from(all.view()[chunks[c].owner][count[std::size_t(chunks[c].owner)]++]);
  return out;
}

ChunkOffsets chunk_offsets(const View& source, const View& index, const View& document,
                           const OffsetSettings& settings) {
  const std::int64_t tokens = source.dim(0), heads = source.dim(1);
  const bool blocks = settings.rule == OffsetRule::block_gates;
  ChunkOffsets out{increments(source, index, document, settings), Tensor({heads}, DType::i64, source.device())};
  const auto *at = index.as<std::int64_t>(), *ids = document.as<std::int64_t>();
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t sum = 0, before_block = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool new_document = t > 0 && ids[t] != ids[t - 1];
      if (new_document) sum = 0;
      if (new_document || (blocks && at[t] % settings.block == 0)) before_block = sum;
      std::int64_t& entry = out.offset.as<std::int64_t>()[t * heads + h];
      sum += entry;
      if (std::abs(sum) >= largest_sum)
        fail(ExitCode::bad_data, "the sum of offsets at token {} is beyond the range of its fixed point", at[t]);
      entry = blocks ? before_block : sum;
    }
    out.tail.as<std::int64_t>()[h] = sum;
  }
  return out;
}

Offsets make_offsets(Communicator& ring, const SequenceLayout& layout, const TokenRows& rows, const View& source,
                     const OffsetSettings& settings) {
  if (source.device() == kernels::Device::cuda) {
    const HostRows host(rows);
    Offsets made = make_offsets(ring, layout, host.rows(), HostView(source).view(), settings);
    return {kernels::moved_to(std::move(made.row), source.device()),
            kernels::moved_to(std::move(made.key), source.device())};
  }
  const std::int64_t batch = source.dim(0), local = source.dim(1), heads = source.dim(2);
  const std::vector<Span> spans = spans_of(layout, ring.rank());
  const std::vector<int> owned = layout.owned(ring.rank());
  Offsets out{Tensor({batch, local, heads}, DType::i64, source.device()), {}};
  const Tensor tails({batch, std::int64_t(spans.size()), heads}, DType::i64, source.device());
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::size_t s = 0; s < spans.size(); ++s) {
      const auto [begin, end] = spans[s];
      const ChunkOffsets own = chunk_offsets(source[b].rows(begin, end), rows.index[b].rows(begin, end),
                                             rows.document[b].rows(begin, end), settings);
      out.row.view()[b].rows(begin, end).copy_from(own.offset);
      tails.view()[b][std::int64_t(s)].copy_from(own.tail);
    }
  const Tensor records =
      gather_records<std::int64_t>(ring, layout, rows, heads, [&](std::int64_t b, std::size_t s, std::int64_t h) {
        return tails.as<std::int64_t>()[(b * std::int64_t(spans.size()) + std::int64_t(s)) * heads + h];
      });
  // What came before a chunk counts for its tokens of the document that goes on.
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::size_t s = 0; s < spans.size(); ++s) {
      const auto* document = rows.document[b].as<std::int64_t>();
      for (std::int64_t h = 0; h < heads && spans[s].begin < spans[s].end; ++h) {
        const std::int64_t before = beyond<std::int64_t>(records, owned[s], -1, b, h);
        if (std::abs(before) >= largest_sum)
          fail(ExitCode::bad_data, "the sum of offsets is beyond the range of its fixed point");
        for (std::int64_t t = spans[s].begin; t < spans[s].end && document[t] == document[spans[s].begin]; ++t)
          out.row.as<std::int64_t>()[(b * local + t) * heads + h] += before;
      }
    }
  out.key = out.row.clone();
  return out;
}

/// sum: source_l is in row_t and key_t for t >= l. block_gates: ρ_b is in those of later blocks' tokens.
void offsets_backward(Communicator& ring, const SequenceLayout& layout, const TokenRows& rows, const View& d_source,
                      const View& source, const View& d_row, const View& d_key, const OffsetSettings& settings) {
  if (source.device() == kernels::Device::cuda)
    return kernels::update_on_host(d_source, [&](const View& host_d_source) {
      offsets_backward(ring, layout, HostRows(rows).rows(), host_d_source, HostView(source).view(),
                       HostView(d_row).view(), HostView(d_key).view(), settings);
    });
  const std::int64_t batch = source.dim(0), local = source.dim(1), heads = source.dim(2);
  const bool blocks = settings.rule == OffsetRule::block_gates;
  const std::vector<Span> spans = spans_of(layout, ring.rank());
  const std::vector<int> owned = layout.owned(ring.rank());
  with_real(source.type(), [&](auto real) {
    using Real = decltype(real);
    const auto d_at = [&](std::int64_t b, std::int64_t t, std::int64_t h) {
      const std::int64_t at = (b * local + t) * heads + h;
      return double(d_row.as<Real>()[at]) + double(d_key.as<Real>()[at]);
    };
    const Tensor records =
        gather_records<double>(ring, layout, rows, heads, [&](std::int64_t b, std::size_t s, std::int64_t h) {
          const Span& span = spans[s];
          const auto* document = rows.document[b].as<std::int64_t>();
          double sum = 0;
          for (std::int64_t t = span.begin; t < span.end && document[t] == document[span.begin]; ++t)
            sum += d_at(b, t, h);
          return sum;
        });
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::size_t s = 0; s < spans.size(); ++s) {
        const auto [begin, end] = spans[s];
        if (begin == end) continue;
        const auto *document = rows.document[b].as<std::int64_t>(), *index = rows.index[b].as<std::int64_t>();
        const std::int64_t block = blocks ? settings.block : 1;
        const View ids = rows.document[b].rows(begin, end), from = source[b].rows(begin, end);
        const Tensor gates = blocks ? block_gates(from, ids, block) : Tensor(),
                     d_logits = blocks ? zeros_like(gates) : Tensor();
        for (std::int64_t h = 0; h < heads; ++h) {
          double sum = beyond<double>(records, owned[s], 1, b, h);  // over t and later
          for (std::int64_t t = end - 1; t >= begin; --t) {
            if (t + 1 < end && document[t] != document[t + 1]) sum = 0;
            if (blocks && ends_block(index[t], block)) {
              const std::int64_t at = (index[t] - index[begin]) / block * heads + h;
              const double gate = double(gates.as<Real>()[at]);
              d_logits.as<Real>()[at] = Real(sum * gate * (1 - gate));
            }
            sum += d_at(b, t, h);
            if (!blocks) d_source.as<Real>()[(b * local + t) * heads + h] += Real(sum);
          }
        }
        if (blocks) kernels::block_mean_backward(d_source[b].rows(begin, end), d_logits, ids, block);
      }
  });
}

}  // namespace capstan::parallel
