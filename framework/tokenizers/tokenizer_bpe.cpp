// Byte-level BPE: added tokens are found in the text; the rest is normalised and cut into words; the bytes of a word are
// merged to tokens.

#include <algorithm>
#include <bitset>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "framework/files.h"
#include "framework/tokenizers/bpe.h"
#include "framework/tokenizers/tokenizer_json.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

namespace capstan::framework::tokenizer_parts {
namespace {

using Ids = std::vector<std::int32_t>;

// ---- White space around added tokens (Unicode's White_Space).

bool is_white_space(std::string_view character) {
  static constexpr std::string_view long_ones[] = {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
                                                   "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
                                                   "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  if (character.size() == 1) return character[0] == ' ' || (character[0] >= '\t' && character[0] <= '\r');
  return std::find(std::begin(long_ones), std::end(long_ones), character) != std::end(long_ones);
}

std::size_t spaces_after(std::string_view text, std::size_t at) {
  const std::size_t begin = at;
  while (at < text.size()) {
    const auto bytes = std::size_t(utf8_character(text, at));
    if (bytes == 0 || !is_white_space(text.substr(at, bytes))) break;
    at += bytes;
  }
  return at - begin;
}

std::size_t spaces_before(std::string_view text, std::size_t at, std::size_t least) {
  const std::size_t end = at;
  while (at > least) {
    std::size_t begin = at - 1;
    while (begin > least && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_white_space(text.substr(begin, at - begin))) break;
    at = begin;
  }
  return end - at;
}

/// Finds added tokens: the leftmost, and of those the longest.
class AddedTokens {
 public:
  void add(const std::string& text, const AddedToken& token) {
    starts_.set(static_cast<unsigned char>(text[0]));
    std::int32_t node = 0;
    for (const char c : text) {
      const auto [edge, made] = edges_.try_emplace({node, c}, std::int32_t(tokens_.size()));
      if (made) tokens_.push_back(-1);
      node = edge->second;
    }
    if (tokens_[std::size_t(node)] < 0) {
      tokens_[std::size_t(node)] = std::int32_t(list_.size());
      list_.push_back(token);
    }
  }

  /// Cuts the text into added tokens (id >= 0) and what is between them (-1), none of it empty.
  template <class Take> void cut(std::string_view text, Take&& take) const {
    std::size_t taken = 0;
    for (std::size_t at = 0; at < text.size();) {
      const auto [token, bytes] = longest(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const std::size_t before = token->left_strip ? spaces_before(text, at, taken) : 0;
      if (at - before > taken) take(text.substr(taken, at - before - taken), -1);
      taken = at + bytes;
      if (token->right_strip) taken += spaces_after(text, taken);
      take(text.substr(at, bytes), token->id);
      at = taken;
    }
    if (taken < text.size()) take(text.substr(taken), -1);
  }

 private:
  std::pair<const AddedToken*, std::size_t> longest(std::string_view text, std::size_t at) const {
    std::pair<const AddedToken*, std::size_t> found{nullptr, 0};
    if (!starts_.test(static_cast<unsigned char>(text[at]))) return found;
    std::int32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      const auto edge = edges_.find({node, text[i]});
      if (edge == edges_.end()) break;
      node = edge->second;
      const std::int32_t token = tokens_[std::size_t(node)];
      if (token >= 0) found = {&list_[std::size_t(token)], i + 1 - at};
    }
    return found;
  }

  std::vector<AddedToken> list_;
  std::map<std::pair<std::int32_t, char>, std::int32_t> edges_;  // a trie: (node, byte) to node; 0 is its root
  std::vector<std::int32_t> tokens_{-1};                         // of each node: index in list_, or -1
  std::bitset<256> starts_;
};

/// The ids of words seen before: most of a text is few words.
class WordCache {
 public:
  bool append(std::string_view word, Ids& ids) {
    const std::lock_guard lock(mutex_);
    const auto found = words_.find(word);
    if (found == words_.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }

  void keep(std::string_view word, const Ids& ids) {
    if (word.size() > longest_word) return;
    const std::lock_guard lock(mutex_);
    if (words_.size() >= most_words) words_.clear();
    words_.emplace(word, ids);
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  static constexpr std::size_t longest_word = 256, most_words = 1 << 16;
  std::mutex mutex_;
  std::unordered_map<std::string, Ids, Hash, std::equal_to<>> words_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(const std::string& path, const std::string& text, const Marks& marks, Ids end)
      : name_(std::filesystem::path(path).filename().string()), hash_(hex(xxh3_of(text.data(), text.size()))),
        rules_(parse_tokenizer_json(text, path)), merger_(rules_.merges) {
    for (const AddedToken& token : rules_.added) {
      if (token.normalized) added_to_normalised_.add(normal_form(token.text), token);
      else added_to_raw_.add(token.text, token);
    }
    const Ids usual = id_list("<|endoftext|>");  // what GPT-2 and NeoX begin and end texts with
    bos_ = rules_.first;
    if (const Ids named = ids_of(marks.bos); bos_ < 0 && !named.empty()) bos_ = named[0];
    else if (bos_ < 0 && !usual.empty()) bos_ = usual[0];
    end_ = std::move(end);
    if (end_.empty()) end_ = ids_of(marks.end);
    if (end_.empty() && rules_.last >= 0) end_ = {rules_.last};
    if (end_.empty()) end_ = usual;
    if (!rules_.whole_words) return;
    for (std::size_t id = 0; id < rules_.bytes.size(); ++id)
      if (!rules_.bytes[id].empty()) words_.emplace(rules_.bytes[id], std::int32_t(id));
    for (const AddedToken& token : rules_.added) words_.erase(token.text);
  }

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  std::int64_t vocabulary() const override { return std::int64_t(rules_.bytes.size()); }
  std::int32_t bos() const override { return bos_; }
  Ids end() const override { return end_; }

  Ids encode(const std::string& text) const override {
    Ids ids;
    added_to_raw_.cut(text, [&](std::string_view raw, std::int32_t added) {
      if (added >= 0) return ids.push_back(added);
      added_to_normalised_.cut(normal_form(raw), [&](std::string_view part, std::int32_t found) {
        if (found >= 0) ids.push_back(found);
        else cut(0, part, ids);
      });
    });
    return ids;
  }

  std::string decode(const Ids& ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(id, vocabulary(), name_);
      const std::string& bytes = rules_.bytes[std::size_t(id)];
      if (bytes.empty())
        fail(ExitCode::bad_data, "tokenizer {}: id {} is no token; was the text made with another tokenizer?", name_,
             id);
      if (!is_mark(id, bos_, end_)) text += bytes;
    }
    if (rules_.prefix_space && !text.empty() && text[0] == ' ') text.erase(0, 1);
    return text;
  }

 private:
  Ids id_list(const std::string& token) const {
    const auto found = rules_.ids.find(token);
    return found == rules_.ids.end() ? Ids{} : Ids{found->second};
  }

  /// Of a mark that a file beside this one names.
  Ids ids_of(const Mark& mark) const {
    if (!mark.text.empty()) {
      const Ids ids = id_list(mark.text);
      if (ids.empty())
        fail(ExitCode::bad_data, "{} is '{}', which is no token of {}; do they belong together?", mark.field,
             printable(mark.text), name_);
      return ids;
    }
    Ids ids;
    for (const std::int64_t id : mark.ids) {
      if (id < 0 || id >= vocabulary())
        fail(ExitCode::bad_data, "{} is {}, allowed are the ids of {}: 0 to {}; do they belong together?", mark.field,
             id, name_, vocabulary() - 1);
      ids.push_back(std::int32_t(id));
    }
    return ids;
  }

  std::string normal_form(std::string_view text) const {
    std::string form(text);
    for (const NormalForm next : rules_.forms) form = normalised(form, next);
    return form;
  }

  /// Steps `step` and on; appends the ids.
  void cut(std::size_t step, std::string_view text, Ids& ids) const {
    if (text.empty()) return;
    if (step == rules_.steps.size()) return encode_word(text, ids);
    const SplitStep& rule = rules_.steps[step];
    if (rule.pattern) {
      rule.pattern->cut(text, [&](std::string_view piece, bool matched) {
        if (matched ? rule.keep_matched : rule.keep_between) cut(step + 1, piece, ids);
      });
    } else if (text[0] == ' ') {
      cut(step + 1, text, ids);
    } else {
      cut(step + 1, " " + std::string(text), ids);
    }
  }

  void encode_word(std::string_view word, Ids& ids) const {
    if (cache_.append(word, ids)) return;
    Ids made;
    const auto whole = rules_.whole_words ? words_.find(std::string(word)) : words_.end();
    if (whole != words_.end()) {
      made = {whole->second};
    } else {
      for (const char c : word) append_byte(static_cast<unsigned char>(c), made);
      merger_.merge(made);
    }
    cache_.keep(word, made);
    ids.insert(ids.end(), made.begin(), made.end());
  }

  void append_byte(unsigned char byte, Ids& ids) const {
    const std::int32_t id = rules_.byte_ids[byte];
    if (id >= 0) return ids.push_back(id);
    if (rules_.unknown < 0)
      fail(ExitCode::bad_data, "tokenizer {}: the text holds the byte 0x{:02x}, for which it has no token", name_,
           byte);
    if (!rules_.fuse_unknown || ids.empty() || ids.back() != rules_.unknown) ids.push_back(rules_.unknown);
  }

  std::string name_, hash_;
  TokenizerRules rules_;
  BpeMerger merger_;
  AddedTokens added_to_raw_, added_to_normalised_;
  std::unordered_map<std::string, std::int32_t> words_;  // tokens that are not merged, by their bytes
  std::int32_t bos_ = -1;
  Ids end_;
  mutable WordCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe(const std::string& path, const std::string& text, const Marks& marks,
                                    std::vector<std::int32_t> end) {
  return std::make_unique<BpeTokenizer>(path, text, marks, std::move(end));
}

}  // namespace capstan::framework::tokenizer_parts
