#pragma once
// Tokenizers: the built-in byte tokenizer and SentencePiece models.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace capstan::framework {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< "bytes", or the model file's name
  virtual std::string hash() const = 0;  ///< xxh3 of the model file, hex; "bytes" for the byte tokenizer
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int32_t bos() const = 0;                                         ///< -1: none
  virtual std::vector<std::int32_t> end() const = 0;                            ///< ids that end a text
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;  ///< without BOS or end
  /// BOS and end ids are left out; byte pieces become their bytes (a UTF-8 character cut off at the end becomes
  /// U+FFFD). The space that SentencePiece puts before the first word is taken away again. For streaming, the text that
  /// a token adds is decode(ids) minus decode(ids without the last). Error: bad_data for an id outside the vocabulary.
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
};

/// `which`: "bytes"; a SentencePiece .model file; or a folder that holds tokenizer.model, or else a file `tokenizer`
/// with the one word "bytes". bytes: ids 0…255 are bytes, 256 BOS, 257 end; vocabulary 258. `end` overrides the model's
/// own end ids (Llama: eos_id). Errors: io (missing), bad_data (not a SentencePiece model, too large, truncated),
/// config (an end id outside the vocabulary).
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& which, const std::vector<std::int32_t>& end = {});

/// The SentencePiece model that `which` names, to be copied along; empty for the byte tokenizer. Errors as above.
std::string tokenizer_model_bytes(const std::string& which);

}  // namespace capstan::framework
