#pragma once
// Tokenizers: the built-in ones (bytes, and the word lists of tasks), SentencePiece models, and byte-level BPE as Hugging Face's tokenizer.json
// describes it (GPT-2, NeoX, Llama 3).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace capstan::framework {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< a built-in's own, or the model file's name
  virtual std::string hash() const = 0;  ///< xxh3 of the model file or word list, hex; "bytes" for the byte tokenizer
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int32_t bos() const = 0;                                         ///< -1: none
  virtual std::vector<std::int32_t> end() const = 0;                            ///< ids that end a text
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;  ///< without BOS or end
  /// BOS and end ids are left out; byte pieces become their bytes (a UTF-8 character cut off at the end becomes
  /// U+FFFD). The space that SentencePiece puts before the first word is taken away again. For streaming, the text that
  /// a token adds is decode(ids) minus decode(ids without the last). Error: bad_data for an id outside the vocabulary.
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
};

constexpr char tokenizer_model_name[] = "tokenizer.model";
constexpr char tokenizer_json_name[] = "tokenizer.json";
bool is_tokenizer_file(const std::string& name);  ///< one of these two
/// Tokenizers that need no file; a checkpoint names them. "bytes", "task:flipflop", …
std::vector<std::string> builtin_tokenizers();
bool is_builtin_tokenizer(const std::string& name);

/// `which`: a built-in; a SentencePiece .model file; a tokenizer.json (any name that ends in .json); or a folder, of which
/// the first that is there counts: tokenizer.model, tokenizer.json, GPT-2's pair (encoder.json with vocab.bpe, or
/// vocab.json with merges.txt), or a file `tokenizer` with the name of a built-in. bytes: ids 0…255 are bytes, 256 BOS,
/// 257 end; vocabulary 258. `end` overrides the model's own end ids (Llama: eos_id).
/// Of a tokenizer.json, BOS and end come from its post_processor, the files beside it (tokenizer_parts.h), or the usual
/// name <|endoftext|>. Its added tokens are found in texts, so "<|endoftext|>" in a text is that token where the file
/// says so.
/// Errors: io (missing), bad_data (not a tokenizer, too large, truncated, something in it that is not known here), config
/// (an end id outside the vocabulary).
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& which, const std::vector<std::int32_t>& end = {});

/// The file of a tokenizer, to be copied along: a built-in's name without bytes, or one of the names above with the whole file.
struct TokenizerFile {
  std::string name, bytes;
};
/// GPT-2's pair becomes one tokenizer.json. Errors as above.
TokenizerFile tokenizer_file(const std::string& which);

}  // namespace capstan::framework
