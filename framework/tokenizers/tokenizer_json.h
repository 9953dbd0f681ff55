#pragma once
// Hugging Face's tokenizer.json, as far as byte-level BPE goes: what its fields say, checked.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "framework/tokenizers/bpe.h"
#include "framework/tokenizers/text_splitter.h"

namespace capstan::framework {

/// A token that is found in the text before anything else happens to it.
struct AddedToken {
  std::int32_t id = 0;
  std::string text;
  bool left_strip = false, right_strip = false;  ///< takes the white space before it, after it
  bool normalized = false;                       ///< found in the normalised text
};

/// One step of cutting a text: by a pattern, or, without one, a space before each piece that does not begin with one.
struct SplitStep {
  std::optional<SplitPattern> pattern;
  bool keep_matched = true, keep_between = true;
};

struct TokenizerRules {
  std::unordered_map<std::string, std::int32_t> ids;  ///< tokens as the file writes them, added ones as well
  std::vector<std::string> bytes;                     ///< of each id; empty: no token has this id
  std::vector<std::int32_t> byte_ids;                 ///< [256] the token that is this byte; -1: none
  std::vector<BpeMerge> merges;
  std::vector<AddedToken> added;
  std::vector<NormalForm> forms;
  std::vector<SplitStep> steps;
  std::int32_t unknown = -1;           ///< stands for a byte without a token; -1: such a byte is an error
  bool fuse_unknown = false;           ///< one for several such bytes
  bool whole_words = false;            ///< a word that is a token is not merged ("ignore_merges")
  bool prefix_space = false;           ///< a space comes before the text
  std::int32_t first = -1, last = -1;  ///< what the template puts around a text; -1: nothing
};

/// `text`: the whole file; `name` begins error lines. Foreign files are hostile input. What is not known here is refused
/// by name: Hugging Face's library would make other ids of it. Fields that do not bear on ids (truncation, padding,
/// trim_offsets, type ids) are left aside. Errors: bad_data only.
TokenizerRules parse_tokenizer_json(const std::string& text, const std::string& name);

}  // namespace capstan::framework
