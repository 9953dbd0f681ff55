#pragma once
// Token files: documents as token ids in HDF5, written by `capstan prepare`, read by hyperslab.
//
//   /tokens     [N] uint16 or uint32 (by vocabulary), documents one after the other, each as it is trained (with its
//               BOS, if any)
//   /documents  [n + 1] int64, offset of each document; last = N
//   /words      [n] int64, words between white space of each document's text (for per-word perplexity)
//   /loss_mask  [N] uint8, only in files of tasks: 1 where the token counts as a target, 0 where it does not
//   attributes: format = "capstan-tokens-1" ("capstan-tokens-2" with a loss mask), vocabulary, bos (-1: none), end
//               ("1,2"), tokenizer (name), tokenizer_hash (xxh3 of the model file, hex), source (text), checksum (xxh3
//               over the bytes of tokens, documents, words, loss_mask); only in files of tasks: task, set (names)
//
// Every document has at least one token. bos and end tell what the documents carry, not what the tokenizer could add.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace capstan::framework {

struct TokenFileInfo {
  std::int64_t tokens = 0, documents = 0, words = 0, vocabulary = 0;
  std::int32_t bos = -1;
  std::vector<std::int32_t> end;  ///< ids that end a document
  std::string tokenizer, tokenizer_hash, checksum, source;
  std::string task, set;   ///< what `capstan task` made; else empty
  bool loss_mask = false;  ///< set by the file: some tokens do not count as targets
};

class TokenFile {
 public:
  /// Opens and checks the header, sizes and offsets. Errors: io (missing), bad_data (truncated, foreign, inconsistent).
  static TokenFile open(const std::string& path);
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  const TokenFileInfo& info() const;
  const std::string& path() const;
  const std::vector<std::int64_t>& document_offsets() const;  ///< [documents + 1]
  const std::vector<std::int64_t>& words() const;             ///< [documents]
  /// ids of [begin, end); every id is checked against the vocabulary (error: bad_data with file, offset, id).
  /// Thread-safe.
  std::vector<std::int32_t> read(std::int64_t begin, std::int64_t end) const;
  /// Whether each token of [begin, end) counts as a target; all ones in a file without a loss mask. Thread-safe.
  std::vector<std::uint8_t> read_loss_mask(std::int64_t begin, std::int64_t end) const;

 private:
  struct State;
  explicit TokenFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct TokenDocument {
  std::vector<std::int32_t> ids;
  std::int64_t words = 0;
  std::vector<std::uint8_t> loss_mask = {};  ///< one per id; empty: all count
};

/// Writes to a temporary name, checks, renames: nothing half-written under `path`. `info` gives vocabulary, bos, end,
/// tokenizer, tokenizer_hash and source. Errors: bad_data (no tokens, an id outside the vocabulary), io.
void write_token_file(const std::string& path, const std::vector<TokenDocument>& documents, TokenFileInfo info);

/// Reads all of the file in pieces: every id within the vocabulary, data equal to the stored checksum, which it
/// returns. Errors: as open(); bad_data where the data has changed.
std::string verify_token_file(const std::string& path);

}  // namespace capstan::framework
