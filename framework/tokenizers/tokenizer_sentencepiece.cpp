#include <sentencepiece_processor.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "framework/files.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

// The library writes its errors to stderr as well as returning them. The switch is exported but in no installed header.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace capstan::framework::tokenizer_parts {
namespace {

// ---- A SentencePiece model is a protobuf; this checks it before the library, which trusts much of it, gets to see it.
// ----

struct Field {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;   // 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
  std::uint64_t value = 0;  // of wire 0
  std::string_view bytes;   // of the others
};

/// Walks the fields of one protobuf message.
class Message {
 public:
  Message(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t tag = varint();
    field = {};
    field.number = std::uint32_t(tag >> 3);
    field.wire = std::uint32_t(tag & 7);
    if (tag >> 32 != 0 || field.number == 0) refuse("a field without a number");
    if (field.wire == 0) field.value = varint();
    else if (field.wire == 1) field.bytes = take(8);
    else if (field.wire == 2) field.bytes = take(varint());
    else if (field.wire == 5) field.bytes = take(4);
    else refuse("an unknown kind of field");
    return true;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::bad_data, "{}: not a SentencePiece model, or damaged ({}); get the file again", path_, what);
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number of more than 64 bits");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("it ends in the middle");
    const std::string_view taken = bytes_.substr(at_, std::size_t(count));
    at_ += std::size_t(count);
    return taken;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  const std::string& path_;
};

/// One entry of the vocabulary: text (field 1), score (2), kind (3: 1 normal … 6 byte). Returns its text.
std::string_view check_piece(std::string_view bytes, const std::string& path) {
  Message message(bytes, path);
  std::string_view text;
  std::uint64_t kind = 1;
  std::uint32_t score = 0;  // bits of a float; no arithmetic, since a signalling NaN would trap
  for (Field field; message.next(field);) {
    if (field.number == 1 && field.wire == 2) text = field.bytes;
    if (field.number == 2 && field.wire == 5) std::memcpy(&score, field.bytes.data(), sizeof score);
    if (field.number == 3 && field.wire == 0) kind = field.value;
  }
  if (text.empty() || text.size() > 4096) message.refuse("an entry without text, or of more than 4096 bytes");
  if (text.find('\0') != std::string_view::npos || !is_utf8(text)) message.refuse("an entry that is not UTF-8 text");
  if ((score & 0x7f800000u) == 0x7f800000u) message.refuse("the score of '" + printable(text) + "' is not finite");
  if (kind < 1 || kind > 6) message.refuse("the kind of '" + printable(text) + "' is unknown");
  return text;
}

/// The normaliser's table: length of the trie in bytes (uint32), the trie (a Darts double array of uint32 units), and
/// the replacement texts, each ending in NUL. The library follows the units without bounds (google/sentencepiece#1269),
/// so every step that they allow must stay inside, and every value must be the start of a text inside.
void check_character_map(std::string_view map, const Message& message) {
  if (map.empty()) return;
  std::uint32_t trie_bytes = 0;
  if (map.size() < 4) message.refuse("the character map is cut off");
  std::memcpy(&trie_bytes, map.data(), 4);
  const std::string_view texts = trie_bytes < map.size() - 4 ? map.substr(4 + trie_bytes) : std::string_view();
  const std::size_t units = trie_bytes / 4;
  if (texts.empty() || texts.back() != '\0' || trie_bytes % 1024 != 0 || units == 0) {
    message.refuse("the character map has wrong lengths");
  }
  for (std::size_t id = 0; id < units; ++id) {
    std::uint32_t unit = 0;
    std::memcpy(&unit, map.data() + 4 + id * 4, 4);
    const bool leaf = unit >> 31 != 0;
    const std::size_t offset = std::size_t(unit >> 10) << ((unit & (1u << 9)) >> 6);
    const std::size_t child = id ^ offset;  // children are at child ^ byte: within the same 256 units
    if (leaf ? (unit & 0x7fffffffu) >= texts.size() : child >= units)
      message.refuse("the character map points outside");
  }
}

void check_normaliser(std::string_view bytes, const std::string& path) {
  Message message(bytes, path);
  for (Field field; message.next(field);) {
    if (field.number == 2 && field.wire == 2) check_character_map(field.bytes, message);
  }
}

void check_model(const std::string& bytes, const std::string& path) {
  Message message(bytes, path);
  std::set<std::string_view> pieces;
  bool trainer = false, normaliser = false;
  for (Field field; message.next(field);) {
    if (field.number >= 1 && field.number <= 5 && field.wire != 2) message.refuse("a part of the wrong kind");
    if (field.number == 1) {
      const std::string_view text = check_piece(field.bytes, path);
      if (!pieces.insert(text).second) message.refuse("the entry '" + printable(text) + "' is there twice");
      if (pieces.size() > std::size_t(token_limit)) message.refuse("more than 4,000,000 entries");
    } else if (field.number == 2) {
      trainer = true;
      Message inner(field.bytes, path);
      for (Field ignored; inner.next(ignored);) continue;
    } else if (field.number == 3 || field.number == 5) {
      normaliser = normaliser || field.number == 3;
      check_normaliser(field.bytes, path);
    }
  }
  if (pieces.empty() || !trainer || !normaliser) message.refuse("a part of the model is missing");
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const std::string& bytes, std::vector<std::int32_t> end)
      : name_(std::filesystem::path(path).filename().string()), end_(std::move(end)) {
    check_model(bytes, path);
    hash_ = hex(xxh3_of(bytes.data(), bytes.size()));
    sentencepiece::logging::SetMinLogLevel(3);  // above "error": what it has to say is in the returned status
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok()) {
      fail(ExitCode::bad_data, "{}: not a usable SentencePiece model ({}); get the file again", path,
           printable(status.error_message(), 200));
    }
    vocabulary_ = processor_.GetPieceSize();
    if (end_.empty() && processor_.eos_id() >= 0) end_ = {processor_.eos_id()};
  }

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::int32_t bos() const override { return processor_.bos_id(); }
  std::vector<std::int32_t> end() const override { return end_; }

  std::vector<std::int32_t> encode(const std::string& text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok()) {
      fail(ExitCode::bad_data, "tokenizer {}: cannot encode '{}': {}", name_, printable(text),
           printable(status.error_message()));
    }
    return ids;
  }

  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::vector<int> kept;
    for (const std::int32_t id : ids) {
      check_id(id, vocabulary_, name_);
      if (!is_mark(id, bos(), end_)) kept.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(kept, &text);
    if (!status.ok()) {
      fail(ExitCode::bad_data, "tokenizer {}: cannot decode {} ids: {}", name_, ids.size(),
           printable(status.error_message()));
    }
    return text;
  }

 private:
  std::string name_, hash_;
  std::vector<std::int32_t> end_;
  std::int64_t vocabulary_ = 0;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(const std::string& path, const std::string& bytes,
                                              std::vector<std::int32_t> end) {
  return std::make_unique<SentencePieceTokenizer>(path, bytes, std::move(end));
}

}  // namespace capstan::framework::tokenizer_parts
