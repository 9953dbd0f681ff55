#include "framework/perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/evaluation_batch.h"
#include "framework/json.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

std::int64_t stride_of(const PerplexityOptions& options) {
  return options.stride ? options.stride : std::max<std::int64_t>(1, options.window / 2);
}

/// The windows of one stream: tokens [begin, end) of the file.
void add_windows(std::vector<Window>& windows, std::int64_t begin, std::int64_t end, const PerplexityOptions& options) {
  const std::int64_t predictions = end - begin - 1, length = options.window, stride = stride_of(options);
  if (options.convention == Convention::longlora) {
    for (std::int64_t at = 0; at + length <= predictions; at += stride) windows.push_back({begin + at, length, 0});
    return;
  }
  std::int64_t counted = 0;  // predictions [0, counted) are done
  for (std::int64_t at = 0; counted < predictions; at += stride) {
    const std::int64_t stop = std::min(at + length, predictions);
    const std::int64_t start =
        std::max<std::int64_t>(0, stop - length);  // the last one reaches back for a full context
    windows.push_back({begin + start, stop - start, counted - start});
    counted = stop;
  }
}

/// At most eight buckets, and none below 128 positions.
std::int64_t bucket_size(std::int64_t window) { return std::max<std::int64_t>(128, (window + 7) / 8); }

/// NLL of each position of a window that counts, 0 elsewhere; the same on every rank of the ring.
std::vector<double> window_nll(Model& model, parallel::Communicator& ring, const TokenFile& data, const Window& window,
                               const PerplexityOptions& options) {
  const std::vector<std::int32_t> ids = read_for_model(data, model, window.begin, window.begin + window.length + 1);
  std::vector<std::int32_t> targets(ids.begin() + 1, ids.end());
  std::fill(targets.begin(), targets.begin() + window.count_from, -1);

  const parallel::Ring shared = model.make_ring(ring, window.length, options.tile);
  const std::vector<std::int64_t> index = shared.layout.local_index(ring.rank());
  const std::int64_t declared = model.position().length ? model.position().length : options.window;
  const Batch batch = evaluation_batch({ids.begin(), ids.end() - 1}, targets, index, declared, model.device());
  const Pass pass = model.forward(shared, batch, options.tile, Keep::nothing);
  const std::vector<double> nll = kernels::host_values<double>(pass.nll);

  // Every rank knows its tokens; others add zeros.
  const Tensor all({window.length}, DType::f64, Device::ref);
  for (std::size_t t = 0; t < index.size(); ++t) all.as<double>()[index[t]] = nll[t];
  ring.all_reduce(all);
  return {all.as<double>(), all.as<double>() + window.length};
}

/// A window's item in the journal: the sum of each bucket, in token order. JSON knows no infinity: null.
std::string sums_text(const std::vector<double>& nll, std::int64_t size, std::int64_t buckets) {
  std::vector<double> sums(static_cast<std::size_t>(buckets));
  for (std::size_t at = 0; at < nll.size(); ++at) sums[at / std::size_t(size)] += nll[at];
  return nlohmann::json(sums).dump();
}

std::vector<double> sums_of(const std::string& text) {
  std::vector<double> sums;
  for (const nlohmann::json& sum : nlohmann::json::parse(text))
    sums.push_back(sum.is_number() ? sum.get<double>() : std::numeric_limits<double>::quiet_NaN());
  return sums;
}

std::string bos_text(const TokenFileInfo& info) {
  return info.bos < 0 ? "none" : fmt::format("{} at the start of each document, nowhere else", info.bos);
}

void check_data(const TokenFile& data, const PerplexityOptions& options) {
  const std::int64_t tokens = data.info().tokens;
  if (data.info().loss_mask)
    fail(ExitCode::bad_data, "{}: has a loss mask, and perplexity counts every token; use `capstan eval task`",
         data.path());
  if (tokens < 2) fail(ExitCode::bad_data, "{}: {} token(s); perplexity needs at least 2", data.path(), tokens);
  if (tokens < options.window + 1)
    fail(ExitCode::bad_data, "{}: {} tokens; a window of {} needs {}; choose a smaller --window or more data",
         data.path(), tokens, options.window, options.window + 1);
}

}  // namespace

WindowPlan plan_windows(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& words,
                        const PerplexityOptions& options) {
  CAPSTAN_CHECK(options.window >= 1 && stride_of(options) >= 1 && stride_of(options) <= options.window,
                "window {}, stride {}", options.window, stride_of(options));
  WindowPlan plan;
  const bool joined = options.joined || options.convention == Convention::longlora;
  CAPSTAN_CHECK(!joined || options.document_tokens == 0, "a part of each document, and documents joined");
  if (joined) add_windows(plan.windows, offsets.front(), offsets.back(), options);
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const std::int64_t tokens = offsets[d + 1] - offsets[d];
    if (!joined && tokens < 2) {
      ++plan.skipped_documents;
      continue;
    }
    plan.words += words[d];
    if (joined) continue;
    const std::int64_t read = options.document_tokens ? std::min(tokens, options.document_tokens + 1) : tokens;
    plan.complete = plan.complete && read == tokens;
    plan.short_documents += read - 1 < options.window;
    add_windows(plan.windows, offsets[d], offsets[d] + read, options);
  }
  if (options.max_windows > 0 && options.max_windows < std::int64_t(plan.windows.size())) {
    plan.windows.resize(static_cast<std::size_t>(options.max_windows));
    plan.complete = false;
  }
  return plan;
}

PerplexityResult evaluate_perplexity(Model& model, const parallel::ProcessGrid& grid, const TokenFile& data,
                                     const PerplexityOptions& options, const Journal& journal) {
  check_data(data, options);
  const WindowPlan plan = plan_windows(data.document_offsets(), data.words(), options);
  if (plan.windows.empty())
    fail(ExitCode::bad_data, "{}: {} documents of one token each; perplexity needs at least 2 tokens in a document",
         data.path(), plan.skipped_documents);
  PerplexityResult result;
  result.options = options;
  result.options.stride = stride_of(options);
  result.options.joined = options.joined || options.convention == Convention::longlora;
  const std::int64_t size = bucket_size(options.window), buckets = (options.window + size - 1) / size;
  for (std::int64_t b = 0; b < buckets; ++b)
    result.buckets.push_back({b * size, std::min(options.window, (b + 1) * size)});

  const std::int64_t windows = std::int64_t(plan.windows.size());
  const std::vector<std::string> items = collect_items(grid, journal, windows, [&](std::int64_t w) {
    return sums_text(window_nll(model, *grid.ring, data, plan.windows[static_cast<std::size_t>(w)], options), size,
                     buckets);
  });
  for (std::int64_t w = 0; w < windows; ++w) {
    const Window& window = plan.windows[static_cast<std::size_t>(w)];
    const std::vector<double> sums = sums_of(items[static_cast<std::size_t>(w)]);
    result.counted_tokens += window.counted();
    for (std::int64_t b = 0; b < buckets; ++b) {
      PositionBucket& bucket = result.buckets[static_cast<std::size_t>(b)];
      const std::int64_t first = std::max(window.count_from, bucket.begin), last = std::min(window.length, bucket.end);
      bucket.counted += std::max<std::int64_t>(0, last - first);
      bucket.mean_nll += sums.at(static_cast<std::size_t>(b));  // a sum until below
      result.total_nll += sums.at(static_cast<std::size_t>(b));
    }
  }
  for (PositionBucket& bucket : result.buckets)
    bucket.mean_nll = bucket.counted ? bucket.mean_nll / double(bucket.counted) : 0;
  if (!std::isfinite(result.total_nll))
    fail(ExitCode::bad_data, "the total NLL over {} tokens of {} is {}; the model's weights are damaged",
         result.counted_tokens, data.path(), result.total_nll);
  result.mean_nll = result.total_nll / double(result.counted_tokens);
  result.perplexity = std::exp(result.mean_nll);
  result.complete = plan.complete;
  result.words = plan.complete ? plan.words : 0;
  result.windows = windows;
  result.documents = data.info().documents;
  result.skipped_documents = plan.skipped_documents;
  result.short_documents = plan.short_documents;
  result.bos = bos_text(data.info());
  if (plan.complete && options.convention == Convention::once && plan.words > 0)
    result.word_perplexity = std::exp(result.total_nll / double(plan.words));
  return result;
}

namespace {

std::string name_of(Convention convention) { return convention == Convention::once ? "once" : "longlora"; }
std::string documents_name(const PerplexityResult& result) { return result.options.joined ? "joined" : "separate"; }

}  // namespace

std::string perplexity_json(const PerplexityResult& result, const std::string& model, const std::string& data,
                            const parallel::ProcessGrid& grid) {
  nlohmann::ordered_json json;
  json["mean_nll"] = result.mean_nll;
  json["perplexity"] = result.perplexity;
  json["word_perplexity"] =
      result.word_perplexity > 0 ? nlohmann::ordered_json(result.word_perplexity) : nlohmann::ordered_json();
  json["total_nll"] = result.total_nll;
  json["counted_tokens"] = result.counted_tokens;
  json["words"] = result.complete ? nlohmann::ordered_json(result.words) : nlohmann::ordered_json();
  json["windows"] = result.windows;
  if (result.options.document_tokens > 0) json["document_tokens"] = result.options.document_tokens;
  json["complete"] = result.complete;
  json["window"] = result.options.window;
  json["stride"] = result.options.stride;
  json["bos"] = result.bos;
  json["convention"] = name_of(result.options.convention);
  json["documents"] = documents_name(result);
  json["documents_in_file"] = result.documents;
  json["documents_of_one_token_skipped"] = result.skipped_documents;
  json["documents_shorter_than_window"] = result.short_documents;
  json["model"] = model;
  json["data"] = data;
  json["buckets"] = nlohmann::ordered_json::array();
  for (const PositionBucket& bucket : result.buckets)
    json["buckets"].push_back(
        {{"begin", bucket.begin}, {"end", bucket.end}, {"counted", bucket.counted}, {"mean_nll", bucket.mean_nll}});
  json["ranks"] = {{"data", grid.data_size}, {"ring", grid.ring_size}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string perplexity_table(const PerplexityResult& result, const std::string& model, const std::string& data) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<16}{}\n", name, value);
  };
  line("model", model);
  line("data", data);
  line("convention", fmt::format("{}, documents {}", name_of(result.options.convention), documents_name(result)));
  line("window", fmt::format("{} tokens, stride {}", result.options.window, result.options.stride));
  line("windows", fmt::format("{}{}", result.windows, result.options.max_windows ? " (at most, --max-windows)" : ""));
  if (result.options.document_tokens)
    line("", fmt::format("of the first {} tokens of each document", result.options.document_tokens));
  line("documents",
       fmt::format("{}; {} of one token skipped{}", result.documents, result.skipped_documents,
                   result.options.joined ? "" : fmt::format("; {} shorter than the window", result.short_documents)));
  line("BOS", result.bos);
  line("counted tokens", std::to_string(result.counted_tokens));
  line("words", result.complete ? std::to_string(result.words) : "not known for a part of the text");
  line("mean NLL", fmt::format("{:.6f}", result.mean_nll));
  line("perplexity", fmt::format("{:.4f} per token", result.perplexity));
  if (result.word_perplexity > 0) line("", fmt::format("{:.4f} per word", result.word_perplexity));
  for (const PositionBucket& bucket : result.buckets)
    if (bucket.counted)
      line("mean NLL at", fmt::format("{:>6} to {:<6} {:.6f}  ({} tokens)", bucket.begin, bucket.end - 1,
                                      bucket.mean_nll, bucket.counted));
  return text;
}

}  // namespace capstan::framework
