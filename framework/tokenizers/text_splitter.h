#pragma once
// What a tokenizer does to a text before it looks for tokens: Unicode normal forms (utf8proc), and cutting by a pattern
// (PCRE2). Both take any bytes: what is not UTF-8 is neither normalised nor matched.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace capstan::framework {

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalised(std::string_view text, NormalForm form);  ///< Unicode Standard Annex #15

/// A pattern as the regular expressions of tokenizer.json write it (Oniguruma's syntax, of which this takes the part
/// that means the same in PCRE2; the rest is refused).
class SplitPattern {
 public:
  /// `where` begins error lines. Errors: bad_data (not a pattern, or one outside that part).
  SplitPattern(const std::string& pattern, std::string where);
  /// Cuts the whole text, from left to right, into the matches and what is between them; none is empty. Errors: bad_data
  /// if a match takes more than `step_limit` steps, so that no pattern runs for ever.
  void cut(std::string_view text, const std::function<void(std::string_view piece, bool matched)>& take) const;

  static constexpr std::uint32_t step_limit = 10'000'000;

 private:
  struct Compiled;
  std::string where_, pattern_;
  std::shared_ptr<const Compiled> compiled_;
};

/// `text` as a pattern that matches just it.
std::string escaped_pattern(std::string_view text);

}  // namespace capstan::framework
