#include "framework/generator.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "framework/random.h"
#include "kernels/host_view.h"

namespace capstan::framework {

using parallel::RingInputs;

namespace {

/// index = position = first, first + 1, …; one document.
struct OwnedRows {
  Tensor index, position, document;  // [1, T]
  TokenRows rows() const { return {index, position, document}; }
};

OwnedRows rows_at(const std::vector<std::int64_t>& index, Device device) {
  const Shape shape{1, std::int64_t(index.size())};
  Tensor at(shape, DType::i64, kernels::filled_on(device));
  std::copy(index.begin(), index.end(), at.as<std::int64_t>());
  return {on_device(at, device), on_device(at, device), Tensor(shape, DType::i64, device)};
}

/// tokens[index] as [1, T] i32.
Tensor tokens_at(const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& index, Device device) {
  Tensor out({1, std::int64_t(index.size())}, DType::i32, kernels::filled_on(device));
  for (std::size_t t = 0; t < index.size(); ++t) out.as<std::int32_t>()[t] = tokens[std::size_t(index[t])];
  return kernels::moved_to(std::move(out), device);
}

}  // namespace

View Generator::next_logits(const View& hidden_row) {
  logits_ = model_.logits(hidden_row);
  return logits_.view()[0];
}

View Generator::prefill(const std::vector<std::int32_t>& prompt, std::int64_t total_length) {
  CAPSTAN_CHECK(!prompt.empty(), "a sequence begins with at least one token");
  total_length_ = model_.position().length ? model_.position().length : total_length;
  caches_ = std::vector<parallel::KeyCache>(std::size_t(model_.layers()));
  layout_.reset();
  const std::int64_t length = std::int64_t(prompt.size()), unit = model_.unit(tile_),
                     chunk = prefill_chunk_ > 0 ? (prefill_chunk_ + unit - 1) / unit * unit : length;
  Tensor hidden;
  for (std::int64_t begin = 0; begin < length; begin += chunk)
    hidden = prefill_part(prompt, begin, std::min(length, begin + chunk));

  // The last token's row lives on one rank, as its last row.
  const View embedding = model_.parameters().all().front().value;
  Tensor last({1, model_.config().hidden_size}, embedding.type(), embedding.device());
  const int owner = layout_->chunks().back().owner;
  if (ring_.rank() == owner) last.view().copy_from(hidden.view().rows(hidden.shape()[0] - 1, hidden.shape()[0]));
  ring_.broadcast(last, owner);
  return next_logits(last);
}

/// Tokens [begin, end) of the prompt; the hidden rows of those that this rank owns.
Tensor Generator::prefill_part(const std::vector<std::int32_t>& prompt, std::int64_t begin, std::int64_t end) {
  int first_chunk = 0;
  std::optional<parallel::Ring> ring;
  if (begin == 0) {
    ring.emplace(model_.make_ring(ring_, end, tile_));
    layout_.emplace(ring->layout);
  } else {
    first_chunk = layout_->append_segment(end - begin);
    const parallel::SequenceLayout layout = layout_->layout();
    ring.emplace(parallel::Ring{ring_, layout, parallel::pass_q_schedule(layout, first_chunk)});
  }
  std::vector<std::int64_t> index;  // of the new tokens that this rank owns
  for (std::int64_t at : ring->layout.local_index(ring_.rank()))
    if (at >= begin) index.push_back(at);
  const Device device = model_.device();
  const OwnedRows rows = rows_at(index, device);
  const Tensor tokens = tokens_at(prompt, index, device);
  SequenceContext context{1, std::int64_t(index.size()), rows.rows(), {}, nullptr, tile_};
  context.attend = [&](int layer, const RingInputs& in, const kernels::AttentionSettings& settings,
                       kernels::AttentionStats* stats) {
    parallel::KeyCache& cache = caches_.at(std::size_t(layer));
    cache.append(in);
    if (begin == 0) return ring_attention_forward(*ring, in, settings, stats);
    return ring_attention_prefill(*ring, first_chunk, in, cache.keys(), settings, stats);
  };
  return model_.hidden(context, tokens, total_length_);
}

View Generator::step(std::int32_t token) {
  CAPSTAN_CHECK(layout_, "a sequence begins with prefill");
  const Device device = logits_.view().device();
  layout_->append();
  const OwnedRows rows = rows_at({layout_->length() - 1}, device);
  const Tensor tokens = tokens_at({token}, {0}, device);
  SequenceContext context{1, 1, rows.rows(), {}, nullptr, tile_};
  context.attend = [&](int layer, const RingInputs& in, const kernels::AttentionSettings& settings,
                       kernels::AttentionStats* stats) {
    parallel::KeyCache& cache = caches_.at(static_cast<std::size_t>(layer));
    if (layout_->chunks().back().owner == ring_.rank()) cache.append(in);  // first, because a token sees itself
    return decode_attention(ring_, *layout_, cache, in, settings, stats);
  };
  return next_logits(model_.hidden(context, tokens, total_length_));
}

std::int32_t choose_token(const View& device_logits, const Sampling& sampling, std::int64_t document,
                          std::int64_t position) {
  const kernels::HostView host(device_logits);
  const View& logits = host.view();
  std::int32_t chosen = 0;
  kernels::with_real(logits.type(), [&](auto real) {
    using Real = decltype(real);
    const Real* x = logits.as<Real>();
    const std::int64_t n = logits.elements();
    for (std::int64_t i = 0; i < n; ++i)
      if (!std::isfinite(x[i]))
        fail(ExitCode::bad_data, "the model's logit of token {} at position {} is {}; its weights are damaged", i,
             position, x[i]);
    const std::int64_t best = std::max_element(x, x + n) - x;  // the first of equals
    chosen = std::int32_t(best);
    if (sampling.temperature <= 0) return;
    std::vector<double> weight(static_cast<std::size_t>(n));
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      sum += weight[i] = std::exp((double(x[i]) - double(x[best])) / sampling.temperature);
    // One stream a document, one draw a position.
    const std::uint64_t stream = stream_of("sampling") ^ std::uint64_t(document);
    double left = random_uniform(sampling.seed, stream, std::uint64_t(position)) * sum;
    for (std::int64_t i = 0; i < n; ++i) {
      left -= weight[i];
      if (left >= 0) continue;
      chosen = std::int32_t(i);
      return;
    }
  });
  return chosen;
}

Generated generate_tokens(Generator& generator, const std::vector<std::int32_t>& prompt, std::int64_t tokens,
                          const std::vector<std::int32_t>& ends, const Sampling& sampling, std::int64_t document) {
  Generated out;
  if (tokens <= 0) return out;
  const std::int64_t length = std::int64_t(prompt.size());
  View logits = generator.prefill(prompt, length + tokens);
  while (true) {
    const std::int32_t token = choose_token(logits, sampling, document, length + std::int64_t(out.ids.size()));
    out.ids.push_back(token);
    out.ended = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (out.ended || std::int64_t(out.ids.size()) == tokens) return out;
    logits = generator.step(token);
  }
}

namespace {

/// What the data ranks made of the numbers [begin, end): of each its ids, or a mark. As text, because lengths differ.
std::string text_of(std::int64_t number, const Generated& made) {
  return fmt::format("{} {:d} {} {}\n", number, made.ended, made.ids.size(), fmt::join(made.ids, " "));
}

std::vector<Generated> merge(const std::vector<std::string>& parts, std::int64_t begin, std::int64_t end) {
  std::vector<Generated> all(static_cast<std::size_t>(end - begin));
  for (const std::string& part : parts) {
    std::istringstream in(part);
    std::int64_t number = 0, count = 0;
    bool ended = false;
    while (in >> number >> ended >> count) {
      Generated& made = all.at(static_cast<std::size_t>(number - begin));
      made.ended = ended;
      made.ids.resize(static_cast<std::size_t>(count));
      for (std::int32_t& id : made.ids) in >> id;
    }
  }
  return all;
}

/// Give up when so many times the wanted number were tried.
constexpr std::int64_t most_tries = 10;

}  // namespace

GeneratedDocuments generate_documents(Model& model, const parallel::ProcessGrid& grid, const DocumentOptions& options) {
  if (options.bos < 0) fail(ExitCode::config, "the model has no BOS token to begin a document with");
  if (options.ends.empty()) fail(ExitCode::config, "the model names no end token; import it with --end-token ID");
  Generator generator(model, *grid.ring, options.tile);
  GeneratedDocuments out;
  std::int64_t next = 0, kept = 0;
  // Rounds of as many numbers as are still missing: which numbers are tried depends on the documents only, not on the
  // ranks.
  while (kept < options.documents) {
    const std::int64_t begin = next, end = begin + options.documents - kept;
    if (end > most_tries * options.documents)
      fail(ExitCode::config,
           "only {} of {} documents reached an end token within {} tokens; allow more with --max-tokens", kept, begin,
           options.max_tokens);
    std::string mine;
    for (std::int64_t number = begin; number < end; ++number) {
      if (number % grid.data_size != grid.data_rank) continue;
      mine += text_of(number, generate_tokens(generator, {options.bos}, options.max_tokens, options.ends,
                                              options.sampling, number));
      if (options.progress && grid.world.rank() == 0) options.progress(kept + number - begin + 1, options.documents);
    }
    for (Generated& made : merge(grid.data->all_gather(mine), begin, end)) {
      if (!made.ended) {
        ++out.unfinished;
        continue;
      }
      made.ids.pop_back();
      if (made.ids.empty()) {
        ++out.empty;
        continue;
      }
      ++kept;
      out.tokens += std::int64_t(made.ids.size()) + 2;
      out.documents.push_back(std::move(made.ids));
    }
    next = end;
  }
  return out;
}

}  // namespace capstan::framework
