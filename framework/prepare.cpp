#include "framework/prepare.h"

#include <algorithm>
#include <filesystem>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/token_file.h"
#include "framework/tokenizer.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t sample_characters = 80;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::int64_t count_words(std::string_view text) {
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    words += !inside && !is_space(c);
    inside = !is_space(c);
  }
  return words;
}

enum class Kind { txt, jsonl, other };

Kind kind_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".txt" ? Kind::txt : extension == ".jsonl" ? Kind::jsonl : Kind::other;
}

/// The files of one input, in a fixed order.
std::vector<std::string> files_of(const std::string& input) {
  if (!fs::is_directory(input)) {
    static_cast<void>(InputFile(input));  // before the kind, so that a wrong path is called missing
    if (kind_of(input) == Kind::other)
      fail(ExitCode::bad_data, "{}: only .txt and .jsonl files are read; rename or convert it", input);
    return {input};
  }
  std::vector<std::string> files;
  for (const std::string& name : list_folder(input)) {
    const fs::path path = fs::path(input) / name;
    if (fs::is_directory(path) && !fs::is_symlink(path)) {  // a link could lead back up
      for (std::string& file : files_of(path.string())) files.push_back(std::move(file));
    } else if (kind_of(path) != Kind::other) {
      files.push_back(path.string());
    }
  }
  return files;
}

/// The lines of a file, without their "\n", in bounded memory.
class LineReader {
 public:
  LineReader(const std::string& path, std::int64_t limit) : path_(path), file_(path), limit_(std::size_t(limit)) {}

  bool next(std::string& line) {
    line.clear();
    bool any = false;
    while (at_ < buffer_.size() || refill()) {
      any = true;
      const std::size_t stop = buffer_.find('\n', at_);
      line.append(buffer_, at_, stop == std::string::npos ? stop : stop - at_);
      if (line.size() > limit_) {
        fail(ExitCode::bad_data, "{}:{}: a line of more than {} bytes; split it, or is it text?", path_, number_ + 1,
             limit_);
      }
      at_ = stop == std::string::npos ? buffer_.size() : stop + 1;
      if (stop != std::string::npos) break;
    }
    if (any && ++number_ == 1 && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
    return any;
  }

  std::int64_t number() const { return number_; }  ///< of the last line, from 1

 private:
  bool refill() {
    buffer_.resize(std::size_t(1) << 20);
    buffer_.resize(file_.read_some(offset_, buffer_.data(), buffer_.size()));
    offset_ += std::int64_t(buffer_.size());
    at_ = 0;
    return !buffer_.empty();
  }

  std::string path_;
  InputFile file_;
  std::size_t limit_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::int64_t offset_ = 0, number_ = 0;
};

/// Takes texts, gives token documents.
class Collector {
 public:
  explicit Collector(const PrepareOptions& options) : options_(options), tokenizer_(make_tokenizer(options.tokenizer)) {
    if (options.bos && tokenizer_->bos() < 0) {
      fail(ExitCode::config, "tokenizer {}: has no BOS; prepare without it", tokenizer_->name());
    }
    if (options.end && tokenizer_->end().empty()) {
      fail(ExitCode::config, "tokenizer {}: has no end id; prepare without it", tokenizer_->name());
    }
  }

  void skip(const std::string& reason, const std::string& file, std::int64_t line) {
    for (PrepareSkip& known : report_.skipped) {
      if (known.reason == reason) {
        ++known.count;
        return;
      }
    }
    report_.skipped.push_back({reason, 1, fmt::format("{}:{}", file, line)});
  }

  void add(const std::string& text, const std::string& file, std::int64_t line) {
    if (strip(text).empty()) return skip("empty text", file, line);
    if (!is_utf8(text)) return skip("invalid UTF-8", file, line);
    if (text.find('\0') != std::string::npos) return skip("a NUL in the text", file, line);
    TokenDocument document;
    if (options_.bos) document.ids.push_back(tokenizer_->bos());
    const std::vector<std::int32_t> ids = tokenizer_->encode(text);
    document.ids.insert(document.ids.end(), ids.begin(), ids.end());
    if (options_.end) document.ids.push_back(tokenizer_->end().front());
    document.words = count_words(text);
    if (ids.empty()) return skip("text without tokens", file, line);
    ++report_.documents;
    report_.tokens += std::int64_t(document.ids.size());
    report_.longest = std::max(report_.longest, std::int64_t(document.ids.size()));
    report_.words += document.words;
    documents_.push_back(std::move(document));
  }

  PrepareReport finish() {
    if (documents_.empty()) refuse_empty();
    TokenFileInfo info;
    info.vocabulary = tokenizer_->vocabulary();
    if (options_.bos) info.bos = tokenizer_->bos();
    if (options_.end) info.end = {tokenizer_->end().front()};
    info.tokenizer = tokenizer_->name();
    info.tokenizer_hash = tokenizer_->hash();
    info.source = printable(fmt::format("{}", fmt::join(options_.inputs, " ")), 1000);
    write_token_file(options_.output, documents_, info);
    take_samples();
    return std::move(report_);
  }

 private:
  [[noreturn]] void refuse_empty() const {
    std::string skipped;
    for (const PrepareSkip& skip : report_.skipped) {
      skipped += fmt::format("; skipped {}: {} (first: {})", skip.count, skip.reason, skip.first);
    }
    fail(
        ExitCode::bad_data, "no text in {}{}; check the inputs{}", fmt::join(options_.inputs, ", "), skipped,
        skipped.find("no text") == std::string::npos ? "" : " and the text key '" + printable(options_.text_key) + "'");
  }

  /// Of the first, the middle and the last document.
  void take_samples() {
    std::vector<std::size_t> chosen{0, documents_.size() / 2, documents_.size() - 1};
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const std::size_t i : chosen) {
      std::vector<std::int32_t> ids = documents_[i].ids;
      ids.resize(std::min(ids.size(), 4 * sample_characters + 1));  // a character has up to four bytes, so four tokens
      report_.samples.push_back(printable(tokenizer_->decode(ids), sample_characters));
    }
  }

  const PrepareOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenDocument> documents_;
  PrepareReport report_;
};

void add_jsonl_line(const std::string& line, const std::string& file, std::int64_t number, const std::string& key,
                    Collector& collector) {
  if (!is_utf8(line)) return collector.skip("invalid UTF-8", file, number);
  const bool cut = line.find('\0') != std::string::npos;  // the parser would take it for the end
  const nlohmann::json record =
      cut ? nlohmann::json(nlohmann::json::value_t::discarded) : nlohmann::json::parse(line, nullptr, false);
  if (record.is_discarded() || !record.is_object()) {
    fail(ExitCode::bad_data, "{}:{}: {} ('{}'); each line must be a JSON object with a text in '{}'", file, number,
         record.is_discarded() ? "malformed JSON" : "not a JSON object", printable(line, 40), printable(key));
  }
  const auto found = record.find(key);
  if (found == record.end()) return collector.skip("no text", file, number);
  if (found->is_null()) return collector.skip("no text: null", file, number);
  if (!found->is_string()) return collector.skip("no text: not a string", file, number);
  collector.add(found->get_ref<const std::string&>(), file, number);
}

void read_jsonl(const std::string& file, const PrepareOptions& options, Collector& collector) {
  LineReader reader(file, options.line_limit);
  for (std::string line; reader.next(line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!strip(line).empty()) add_jsonl_line(line, file, reader.number(), options.text_key, collector);
  }
}

void read_txt(const std::string& file, const PrepareOptions& options, Collector& collector) {
  std::string text = read_file(file, options.line_limit);
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  collector.add(text, file, 1);
}

void read_split_txt(const std::string& file, const PrepareOptions& options, Collector& collector) {
  LineReader reader(file, options.line_limit);
  std::string text;
  std::int64_t first = 1;  // line of the document
  const auto flush = [&] {
    collector.add(std::string(strip(text)), file, first);
    text.clear();
    first = reader.number() + 1;
  };
  for (std::string line; reader.next(line);) {
    const bool mark = line == options.split || line == options.split + "\r";
    if (mark) {
      flush();
      continue;
    }
    text += line + "\n";
    if (std::int64_t(text.size()) > options.line_limit) {
      fail(ExitCode::bad_data, "{}:{}: a document of more than {} bytes; is '{}' the line between documents?", file,
           first, options.line_limit, printable(options.split));
    }
  }
  if (!strip(text).empty()) flush();  // the last mark usually ends the file: what follows it is no document
}

}  // namespace

std::vector<std::string> PrepareReport::lines() const {
  std::vector<std::string> result;
  result.push_back(fmt::format("documents {}, tokens {}, longest {}, words {}", documents, tokens, longest, words));
  for (const PrepareSkip& skip : skipped) {
    result.push_back(fmt::format("skipped {}: {} (first: {})", skip.count, skip.reason, skip.first));
  }
  for (const std::string& sample : samples) result.push_back("sample: " + sample);
  return result;
}

PrepareReport prepare(const PrepareOptions& options) {
  CAPSTAN_CHECK(!options.inputs.empty() && !options.output.empty(), "prepare needs inputs and an output");
  Collector collector(options);
  for (const std::string& input : options.inputs) {
    const std::vector<std::string> files = files_of(input);
    if (files.empty()) fail(ExitCode::bad_data, "{}: no .txt or .jsonl file in this folder; check the path", input);
    for (const std::string& file : files) {
      if (kind_of(file) == Kind::jsonl) read_jsonl(file, options, collector);
      else if (options.split.empty()) read_txt(file, options, collector);
      else read_split_txt(file, options, collector);
    }
  }
  return collector.finish();
}

}  // namespace capstan::framework
