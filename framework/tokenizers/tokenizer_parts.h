#pragma once
// What the kinds of tokenizers share; only make_tokenizer() looks in here.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/tokenizer.h"

namespace capstan::framework::tokenizer_parts {

constexpr std::int64_t file_limit = std::int64_t(64) << 20;  // bytes; the largest known files have 20 MB
constexpr std::int64_t token_limit = 4'000'000;

/// Error: bad_data for an id outside the vocabulary.
void check_id(std::int32_t id, std::int64_t vocabulary, const std::string& name);
/// True for ids that decode() leaves out.
bool is_mark(std::int32_t id, std::int32_t bos, const std::vector<std::int32_t>& end);

/// `path` begins error lines; its last part is the tokenizer's name. An empty `end`: the model's own.
std::unique_ptr<Tokenizer> make_sentencepiece(const std::string& path, const std::string& bytes,
                                              std::vector<std::int32_t> end);

/// Names of the word lists of tasks ("task:flipflop"), and one of them, or null if there is none of that name.
std::vector<std::string> word_tokenizers();
std::unique_ptr<Tokenizer> make_words(const std::string& name, std::vector<std::int32_t> end);

/// BOS or the end of a text, as a file beside tokenizer.json names it: by text or by ids; neither: no file does.
struct Mark {
  std::string field;  ///< where it stands, for errors
  std::string text;
  std::vector<std::int64_t> ids;
};
struct Marks {
  Mark bos, end;
};
/// Of the files that are there, the first that names the mark: tokenizer_config.json (bos_token, eos_token), then
/// generation_config.json, config.json and a model folder's hf_config.json (bos_token_id, eos_token_id). Error: bad_data.
Marks marks_beside(const std::string& folder);

/// `text`: a tokenizer.json; `path` begins error lines, its last part is the tokenizer's name. BOS: of the template in the
/// file, else of `marks`, else <|endoftext|>. End, if `end` is empty: of `marks`, else of the template, else
/// <|endoftext|>. Errors: bad_data.
std::unique_ptr<Tokenizer> make_bpe(const std::string& path, const std::string& text, const Marks& marks,
                                    std::vector<std::int32_t> end);
/// GPT-2's pair of files as one tokenizer.json. Its <|endoftext|> is an end of text, but not looked for in texts.
/// Error: bad_data.
std::string tokenizer_json_of_pair(const std::string& vocabulary_path, const std::string& merges_path);

}  // namespace capstan::framework::tokenizer_parts
