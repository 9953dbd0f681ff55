#pragma once
// Text to token file: the work of `capstan prepare`.

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::framework {

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< .txt and .jsonl files; folders give all of theirs, recursively, sorted by path
  std::string tokenizer = "bytes";  ///< as make_tokenizer takes it
  std::string output;               ///< token file
  std::string text_key = "text";    ///< key of the text in a .jsonl line
  bool bos = true;                  ///< begin each document with BOS
  bool end = false;                 ///< end each document with the (first) end id
  /// Empty: a .txt file is one document, kept as it is. Otherwise a line such as "<|endoftext|>" that stands between
  /// the documents of a .txt file; white space around each document is stripped.
  std::string split;
  std::int64_t line_limit = std::int64_t(1) << 30;  ///< bytes of a .jsonl line or of a document; more is refused
};

/// Documents that were left out for one reason.
struct PrepareSkip {
  std::string reason;
  std::int64_t count = 0;
  std::string first;  ///< file:line of the first
};

struct PrepareReport {
  std::int64_t documents = 0, tokens = 0, longest = 0, words = 0;  ///< longest: tokens
  std::vector<PrepareSkip> skipped;
  std::vector<std::string> samples;  ///< the first 80 characters of up to three documents, decoded again

  /// What the command prints, one line each: "skipped 3: empty text (first: a.jsonl:7)".
  std::vector<std::string> lines() const;
};

/// Reads all inputs and writes the token file (or nothing). Errors: io, bad_data (malformed JSON with file:line, a line
/// that is too long, a kind of file that is not .txt or .jsonl, no text in any of them), config (BOS or end asked of a
/// tokenizer that has none).
///
/// A document is skipped, and counted, when its text is missing, null or not a string; empty or only white space; not
/// UTF-8; or holds a NUL. Blank lines of a .jsonl file are no documents. A byte order mark is dropped; so is the CR of
/// a CRLF in .jsonl.
PrepareReport prepare(const PrepareOptions& options);

}  // namespace capstan::framework
