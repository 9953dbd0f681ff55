// Word-list tokenizers, one for each synthetic task (framework/tasks): "task:flipflop" and so on. Id 0 is BOS, id 1 the end
// of a text, and the words follow in the order of their list, so a list that a model has been trained with must not
// change: its hash, XXH3 over the separator and the words, would, and the model refuse its own data.
//
// A text is words side by side (one character each), or words between white space, which decodes to single spaces.

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "framework/files.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

namespace capstan::framework::tokenizer_parts {

namespace {

constexpr std::int32_t bos_id = 0, end_id = 1, first_word = 2;

struct WordList {
  std::string name;
  bool spaced;  ///< words stand between white space; else each is one character
  std::vector<std::string> words;
};

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> words;
  for (const char c : text) words.emplace_back(1, c);
  return words;
}

std::vector<std::string> counting_words() {
  std::vector<std::string> words = {"pass;", "=", ";", "++;", "print", "a", "b", "c", "d", "e"};
  for (int value = 0; value <= 10; ++value) words.push_back(std::to_string(value));
  return words;
}

/// Elements of S5 as the images of 1 … 5 ("21345" exchanges 1 and 2), in lexical order, then those of Z60.
std::vector<std::string> group_words() {
  std::vector<std::string> words = {"="};
  std::string permutation = "12345";
  do words.push_back(permutation);
  while (std::next_permutation(permutation.begin(), permutation.end()));
  for (int residue = 0; residue < 60; ++residue) words.push_back(std::to_string(residue));
  return words;
}

const std::vector<WordList>& word_lists() {
  static const std::vector<WordList> lists = {
      {"task:flipflop", false, characters("wri01")}, {"task:selective_copy", false, characters("BACDEFGHIJKLMNOPQ\t")},
      {"task:counting", true, counting_words()},     {"task:addition", false, characters("0123456789+=")},
      {"task:word_problem", true, group_words()},
  };
  return lists;
}

class WordTokenizer final : public Tokenizer {
 public:
  WordTokenizer(const WordList& list, std::vector<std::int32_t> end) : list_(list), end_(std::move(end)) {
    if (end_.empty()) end_ = {end_id};
    for (std::size_t i = 0; i < list.words.size(); ++i) ids_.emplace(list.words[i], first_word + std::int32_t(i));
  }
  std::string name() const override { return list_.name; }
  std::string hash() const override {
    std::string all = list_.spaced ? " " : "";
    for (const std::string& word : list_.words) all += "\n" + word;
    return hex(xxh3_of(all.data(), all.size()));
  }
  std::int64_t vocabulary() const override { return first_word + std::ssize(list_.words); }
  std::int32_t bos() const override { return bos_id; }
  std::vector<std::int32_t> end() const override { return end_; }

  std::vector<std::int32_t> encode(const std::string& text) const override {
    std::vector<std::int32_t> ids;
    for (std::size_t at = 0; at < text.size();) {
      const bool blank = list_.spaced && is_space(text[at]);
      std::size_t stop = at + 1;
      if (list_.spaced && !blank)
        while (stop < text.size() && !is_space(text[stop])) ++stop;
      if (!blank) ids.push_back(id_of(text.substr(at, stop - at), at));
      at = stop;
    }
    return ids;
  }

  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(id, vocabulary(), name());
      if (id < first_word || is_mark(id, bos(), end_)) continue;
      if (list_.spaced && !text.empty()) text += ' ';
      text += list_.words[std::size_t(id - first_word)];
    }
    return text;
  }

 private:
  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

  std::int32_t id_of(const std::string& word, std::size_t at) const {
    const auto found = ids_.find(word);
    if (found == ids_.end())
      fail(ExitCode::bad_data, "tokenizer {}: '{}' at byte {} is none of its {} words; use a text in that format",
           name(), printable(word), at, list_.words.size());
    return found->second;
  }

  const WordList& list_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> end_;
};

}  // namespace

std::vector<std::string> word_tokenizers() {
  std::vector<std::string> names;
  for (const WordList& list : word_lists()) names.push_back(list.name);
  return names;
}

std::unique_ptr<Tokenizer> make_words(const std::string& name, std::vector<std::int32_t> end) {
  for (const WordList& list : word_lists())
    if (list.name == name) return std::make_unique<WordTokenizer>(list, std::move(end));
  return nullptr;
}

}  // namespace capstan::framework::tokenizer_parts
