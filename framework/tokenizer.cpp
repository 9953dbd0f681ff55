#include "framework/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "framework/files.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace tokenizer_parts {

void check_id(std::int32_t id, std::int64_t vocabulary, const std::string& name) {
  if (id < 0 || id >= vocabulary) {
    fail(ExitCode::bad_data,
         "tokenizer {}: id {} is outside its vocabulary of {}; was the text made with another tokenizer?", name, id,
         vocabulary);
  }
}

bool is_mark(std::int32_t id, std::int32_t bos, const std::vector<std::int32_t>& end) {
  return id == bos || std::find(end.begin(), end.end(), id) != end.end();
}

}  // namespace tokenizer_parts

namespace {

namespace parts = tokenizer_parts;
using std::filesystem::path;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::vector<std::int32_t> end) : end_(std::move(end)) {
    if (end_.empty()) end_ = {257};
  }
  std::string name() const override { return "bytes"; }
  std::string hash() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 258; }
  std::int32_t bos() const override { return 256; }
  std::vector<std::int32_t> end() const override { return end_; }

  std::vector<std::int32_t> encode(const std::string& text) const override {
    std::vector<std::int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(), [](char c) { return static_cast<unsigned char>(c); });
    return ids;
  }

  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      parts::check_id(id, vocabulary(), name());
      if (id < 256 && !parts::is_mark(id, bos(), end_)) text += char(id);
    }
    return text;
  }

 private:
  std::vector<std::int32_t> end_;
};

/// A tokenizer as found: the name of a built-in, or the path of a file and, for GPT-2's pair, of its merges.
struct Found {
  std::string file, merges;

  bool is_builtin() const { return is_builtin_tokenizer(file); }
  bool is_pair() const { return !merges.empty(); }
  bool is_json() const { return is_pair() || path(file).extension() == ".json"; }
};

Found find_in_folder(const std::string& folder) {
  const path base(folder);
  const auto file = [&](const char* name) {
    return std::filesystem::exists(base / name) ? (base / name).string() : std::string();
  };
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    if (!file(name).empty()) return {file(name), ""};
  const std::pair<const char*, const char*> pairs[] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}};
  for (const auto& [vocabulary, merges] : pairs)
    if (!file(vocabulary).empty() && !file(merges).empty()) return {file(vocabulary), file(merges)};
  const std::string note = file("tokenizer");
  if (note.empty()) {
    fail(ExitCode::io,
         "{}: holds no tokenizer.model, no tokenizer.json and not GPT-2's pair encoder.json, vocab.bpe; name a "
         "tokenizer's file or 'bytes'",
         folder);
  }
  std::string word = read_file(note, 64);
  while (!word.empty() && std::isspace(static_cast<unsigned char>(word.back()))) word.pop_back();
  if (!is_builtin_tokenizer(word))
    fail(ExitCode::bad_data, "{}: says '{}'; allowed are '{}'", note, printable(word),
         fmt::join(builtin_tokenizers(), "', '"));
  return {word, ""};
}

Found find(const std::string& which) {
  if (which.starts_with("task:") && !is_builtin_tokenizer(which))
    fail(ExitCode::io, "{}: no such tokenizer; there are {}, and files", printable(which),
         fmt::join(builtin_tokenizers(), ", "));
  return std::filesystem::is_directory(which) ? find_in_folder(which) : Found{which, ""};
}

std::string bytes_of(const Found& found) {
  return found.is_pair() ? parts::tokenizer_json_of_pair(found.file, found.merges)
                         : read_file(found.file, parts::file_limit);
}

}  // namespace

std::vector<std::string> builtin_tokenizers() {
  std::vector<std::string> names = parts::word_tokenizers();
  names.insert(names.begin(), "bytes");
  return names;
}

bool is_builtin_tokenizer(const std::string& name) {
  const std::vector<std::string> names = builtin_tokenizers();
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_tokenizer_file(const std::string& name) { return name == tokenizer_model_name || name == tokenizer_json_name; }

TokenizerFile tokenizer_file(const std::string& which) {
  const Found found = find(which);
  if (found.is_builtin()) return {found.file, ""};
  return {found.is_json() ? tokenizer_json_name : tokenizer_model_name, bytes_of(found)};
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& which, const std::vector<std::int32_t>& end) {
  const Found found = find(which);
  std::unique_ptr<Tokenizer> tokenizer;
  if (found.is_builtin()) {
    tokenizer = parts::make_words(found.file, end);
    if (!tokenizer) tokenizer = std::make_unique<ByteTokenizer>(end);
  } else if (found.is_json()) {
    const path folder = path(found.file).parent_path();
    const std::string name = found.is_pair() ? (folder / tokenizer_json_name).string() : found.file;
    tokenizer = parts::make_bpe(name, bytes_of(found), parts::marks_beside(folder.string()), end);
  } else {
    tokenizer = parts::make_sentencepiece(found.file, bytes_of(found), end);
  }
  for (const std::int32_t id : end) {
    if (id < 0 || id >= tokenizer->vocabulary()) {
      fail(ExitCode::config, "tokenizer {}: end id {} is outside its vocabulary; allowed are 0 to {}",
           tokenizer->name(), id, tokenizer->vocabulary() - 1);
    }
  }
  return tokenizer;
}

}  // namespace capstan::framework
