#include "framework/token_file.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "framework/files.h"
#include "framework/hdf5_file.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr const char *plain_format = "capstan-tokens-1", *masked_format = "capstan-tokens-2";
constexpr std::int64_t largest_vocabulary = (std::int64_t(1) << 31) - 1;  // an id is an int32

/// The narrowest type that holds every id: uint16 has room for 65,536.
Hdf5Type token_type(std::int64_t vocabulary) { return vocabulary <= 65536 ? Hdf5Type::u16 : Hdf5Type::u32; }

std::string join_ids(const std::vector<std::int32_t>& ids) { return fmt::format("{}", fmt::join(ids, ",")); }

std::vector<std::int32_t> split_ids(const std::string& text, const std::string& path) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const stop = at + text.size();
  while (at != stop) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, stop, id);
    if (error != std::errc() || (next != stop && (*next != ',' || next + 1 == stop))) {
      fail(ExitCode::bad_data, "{}: attribute 'end' is '{}', not ids separated by commas; prepare the file again", path,
           printable(text));
    }
    ids.push_back(id);
    at = next == stop ? stop : next + 1;
  }
  return ids;
}

TokenFileInfo read_attributes(const Hdf5File& file) {
  const std::string& path = file.path();
  const std::string format = file.has_attribute("format") ? file.text("format") : "";
  if (format != plain_format && format != masked_format) {
    fail(ExitCode::bad_data, "{}: format '{}', not '{}' or '{}'; make the file with this version's `capstan prepare`",
         path, printable(format), plain_format, masked_format);
  }
  TokenFileInfo info;
  info.loss_mask = format == masked_format;
  info.vocabulary = file.integer("vocabulary");
  if (info.vocabulary < 1 || info.vocabulary > largest_vocabulary) {
    fail(ExitCode::bad_data, "{}: vocabulary {}; allowed are 1 to {}; prepare the file again", path, info.vocabulary,
         largest_vocabulary);
  }
  const auto check_id = [&](std::int64_t id, const char* what) {
    if (id < 0 || id >= info.vocabulary) {
      fail(ExitCode::bad_data, "{}: {} {} is outside the vocabulary of {}; prepare the file again", path, what, id,
           info.vocabulary);
    }
  };
  const std::int64_t bos = file.integer("bos");
  if (bos != -1) check_id(bos, "BOS");
  info.bos = std::int32_t(bos);
  info.end = split_ids(file.text("end"), path);
  for (const std::int32_t id : info.end) check_id(id, "end id");
  info.tokenizer = file.text("tokenizer");
  info.tokenizer_hash = file.text("tokenizer_hash");
  info.source = file.text("source");
  info.checksum = file.text("checksum");
  if (file.has_attribute("task")) info.task = file.text("task");
  if (file.has_attribute("set")) info.set = file.text("set");
  return info;
}

}  // namespace

struct TokenFile::State {
  Hdf5File file;
  TokenFileInfo info;
  Hdf5Type type = Hdf5Type::u16;
  std::vector<std::int64_t> offsets, words;

  explicit State(Hdf5File opened) : file(std::move(opened)) {}

  /// Tokens [begin, end) as stored.
  template <class Stored> std::vector<std::int32_t> read_as(std::int64_t begin, std::int64_t end) const {
    const auto stored = file.read_slab<Stored>("tokens", begin, end);
    const auto bad =
        std::find_if(stored.begin(), stored.end(), [&](Stored id) { return std::int64_t(id) >= info.vocabulary; });
    if (bad != stored.end()) {
      fail(ExitCode::bad_data, "{}: token {} has id {}, the vocabulary has {}; prepare the file again", file.path(),
           begin + (bad - stored.begin()), *bad, info.vocabulary);
    }
    return {stored.begin(), stored.end()};
  }

  void check_loss_mask() const {
    const Hdf5Dataset mask = file.dataset("loss_mask");
    if (mask.type != Hdf5Type::u8 || mask.shape != std::vector<std::int64_t>{info.tokens}) {
      fail(ExitCode::bad_data, "{}: dataset 'loss_mask' is {} [{}], {} tokens need u8 [{}]; make the file again",
           file.path(), name_of(mask.type), fmt::join(mask.shape, ", "), info.tokens, info.tokens);
    }
  }

  void check_offsets() const {
    const auto refuse = [&](const std::string& what) {
      fail(ExitCode::bad_data, "{}: {}; prepare the file again", file.path(), what);
    };
    if (offsets.size() < 2 || info.tokens == 0) refuse("holds no document");
    if (offsets.front() != 0) refuse(fmt::format("the first document begins at token {}, not 0", offsets.front()));
    for (std::size_t i = 1; i < offsets.size(); ++i) {
      if (offsets[i] <= offsets[i - 1]) {
        refuse(fmt::format("document {} is [{}, {}), which is empty or reversed", i - 1, offsets[i - 1], offsets[i]));
      }
    }
    if (offsets.back() != info.tokens) {
      refuse(fmt::format("the documents end at token {}, the file has {} tokens", offsets.back(), info.tokens));
    }
    if (words.size() + 1 != offsets.size()) {
      refuse(fmt::format("{} word counts for {} documents", words.size(), offsets.size() - 1));
    }
    for (const std::int64_t count : words) {
      if (count < 0 || count > std::int64_t(1) << 40) refuse(fmt::format("a document of {} words", count));
    }
  }
};

TokenFile::TokenFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;
TokenFile::~TokenFile() = default;

const TokenFileInfo& TokenFile::info() const { return state_->info; }
const std::string& TokenFile::path() const { return state_->file.path(); }
const std::vector<std::int64_t>& TokenFile::document_offsets() const { return state_->offsets; }
const std::vector<std::int64_t>& TokenFile::words() const { return state_->words; }

TokenFile TokenFile::open(const std::string& path) {
  auto state = std::make_unique<State>(Hdf5File::open(path));
  const Hdf5File& file = state->file;
  state->info = read_attributes(file);
  state->type = token_type(state->info.vocabulary);
  const Hdf5Dataset tokens = file.dataset("tokens");
  if (tokens.type != state->type || tokens.shape.size() != 1) {
    fail(ExitCode::bad_data,
         "{}: dataset 'tokens' is {} with {} dimensions, a vocabulary of {} has one of {}; prepare it again", path,
         name_of(tokens.type), tokens.shape.size(), state->info.vocabulary, name_of(state->type));
  }
  state->info.tokens = tokens.shape[0];
  state->offsets = file.read<std::int64_t>("documents");
  state->words = file.read<std::int64_t>("words");
  state->check_offsets();
  if (state->info.loss_mask) state->check_loss_mask();
  state->info.documents = std::int64_t(state->words.size());
  state->info.words = std::accumulate(state->words.begin(), state->words.end(), std::int64_t(0));
  return TokenFile(std::move(state));
}

std::vector<std::int32_t> TokenFile::read(std::int64_t begin, std::int64_t end) const {
  CAPSTAN_CHECK(0 <= begin && begin <= end && end <= state_->info.tokens, "{}: [{}, {}) of {} tokens", path(), begin,
                end, state_->info.tokens);
  return state_->type == Hdf5Type::u16 ? state_->read_as<std::uint16_t>(begin, end)
                                       : state_->read_as<std::uint32_t>(begin, end);
}

std::vector<std::uint8_t> TokenFile::read_loss_mask(std::int64_t begin, std::int64_t end) const {
  CAPSTAN_CHECK(0 <= begin && begin <= end && end <= state_->info.tokens, "{}: [{}, {}) of {} tokens", path(), begin,
                end, state_->info.tokens);
  if (!state_->info.loss_mask) return std::vector<std::uint8_t>(std::size_t(end - begin), 1);
  std::vector<std::uint8_t> mask = state_->file.read_slab<std::uint8_t>("loss_mask", begin, end);
  const auto bad = std::find_if(mask.begin(), mask.end(), [](std::uint8_t value) { return value > 1; });
  if (bad != mask.end())
    fail(ExitCode::bad_data, "{}: loss_mask of token {} is {}; allowed are 0 and 1; make the file again", path(),
         begin + (bad - mask.begin()), *bad);
  return mask;
}

namespace {

template <class Stored>
std::vector<Stored> flatten(const std::vector<TokenDocument>& documents, std::int64_t vocabulary,
                            const std::string& path) {
  std::vector<Stored> tokens;
  std::size_t total = 0;
  for (const TokenDocument& document : documents) total += document.ids.size();
  tokens.reserve(total);
  for (const TokenDocument& document : documents) {
    for (const std::int32_t id : document.ids) {
      if (id < 0 || id >= vocabulary) {
        fail(ExitCode::bad_data, "{}: token {} has id {}, the vocabulary has {}; is it the right tokenizer?", path,
             tokens.size(), id, vocabulary);
      }
      tokens.push_back(Stored(id));
    }
  }
  return tokens;
}

/// All documents' masks in one; empty if no document has one.
std::vector<std::uint8_t> flatten_masks(const std::vector<TokenDocument>& documents) {
  std::vector<std::uint8_t> mask;
  if (std::all_of(documents.begin(), documents.end(), [](const auto& document) { return document.loss_mask.empty(); }))
    return mask;
  for (const TokenDocument& document : documents) {
    CAPSTAN_CHECK(document.loss_mask.empty() || document.loss_mask.size() == document.ids.size(),
                  "a mask of {} for {} ids", document.loss_mask.size(), document.ids.size());
    if (document.loss_mask.empty()) mask.insert(mask.end(), document.ids.size(), 1);
    else mask.insert(mask.end(), document.loss_mask.begin(), document.loss_mask.end());
  }
  return mask;
}

void write_attributes(Hdf5File& file, const TokenFileInfo& info, const std::string& checksum) {
  file.set_text("format", info.loss_mask ? masked_format : plain_format);
  file.set_integer("vocabulary", info.vocabulary);
  file.set_integer("bos", info.bos);
  file.set_text("end", join_ids(info.end));
  file.set_text("tokenizer", info.tokenizer);
  file.set_text("tokenizer_hash", info.tokenizer_hash);
  file.set_text("source", info.source);
  file.set_text("checksum", checksum);
  if (!info.task.empty()) file.set_text("task", info.task);
  if (!info.set.empty()) file.set_text("set", info.set);
}

template <class T> void add(Hasher& hasher, const std::vector<T>& values) {
  hasher.add(values.data(), values.size() * sizeof(T));
}

template <class Stored>
void write_as(const std::string& path, const std::vector<TokenDocument>& documents, TokenFileInfo info) {
  const std::vector<Stored> tokens = flatten<Stored>(documents, info.vocabulary, path);
  const std::vector<std::uint8_t> mask = flatten_masks(documents);
  info.loss_mask = !mask.empty();
  std::vector<std::int64_t> offsets{0}, words;
  for (const TokenDocument& document : documents) {
    if (document.ids.empty())
      fail(ExitCode::bad_data, "{}: document {} has no tokens; leave it out", path, words.size());
    offsets.push_back(offsets.back() + std::int64_t(document.ids.size()));
    words.push_back(document.words);
  }
  Hasher hasher;
  add(hasher, tokens);
  add(hasher, offsets);
  add(hasher, words);
  add(hasher, mask);
  write_atomically(path, [&](const std::string& temporary) {
    Hdf5File file = Hdf5File::create(temporary);
    write_attributes(file, info, hex(hasher.value()));
    file.write("tokens", tokens);
    file.write("documents", offsets);
    file.write("words", words);
    if (info.loss_mask) file.write("loss_mask", mask);
    file.close();
    verify_token_file(temporary);
  });
}

}  // namespace

void write_token_file(const std::string& path, const std::vector<TokenDocument>& documents, TokenFileInfo info) {
  CAPSTAN_CHECK(info.vocabulary >= 1 && info.vocabulary <= largest_vocabulary, "vocabulary {}", info.vocabulary);
  if (documents.empty()) fail(ExitCode::bad_data, "{}: no documents to write; give some text", path);
  if (token_type(info.vocabulary) == Hdf5Type::u16) write_as<std::uint16_t>(path, documents, info);
  else write_as<std::uint32_t>(path, documents, info);
}

namespace {

/// Calls f(begin, end) for each piece of the file's tokens.
template <class F> void for_each_piece(const TokenFile& file, const F& f) {
  constexpr std::int64_t piece = std::int64_t(1) << 20;
  for (std::int64_t begin = 0; begin < file.info().tokens; begin += piece)
    f(begin, std::min(begin + piece, file.info().tokens));
}

/// Hashes the tokens as they are stored.
template <class Stored> void add_tokens(Hasher& hasher, const TokenFile& file) {
  for_each_piece(file, [&](std::int64_t begin, std::int64_t end) {
    const auto ids = file.read(begin, end);
    add(hasher, std::vector<Stored>(ids.begin(), ids.end()));
  });
}

}  // namespace

std::string verify_token_file(const std::string& path) {
  const TokenFile file = TokenFile::open(path);
  Hasher hasher;
  if (token_type(file.info().vocabulary) == Hdf5Type::u16) add_tokens<std::uint16_t>(hasher, file);
  else add_tokens<std::uint32_t>(hasher, file);
  add(hasher, file.document_offsets());
  add(hasher, file.words());
  if (file.info().loss_mask)
    for_each_piece(file, [&](std::int64_t begin, std::int64_t end) { add(hasher, file.read_loss_mask(begin, end)); });
  const std::string found = hex(hasher.value());
  if (found != file.info().checksum) {
    fail(ExitCode::bad_data, "{}: its data has the checksum {}, {} was stored; copy or prepare the file again", path,
         found, printable(file.info().checksum));
  }
  return found;
}

}  // namespace capstan::framework
