#include "framework/tokenizers/text_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr std::size_t pattern_limit = 65536;      // bytes
constexpr std::uint32_t memory_limit = 64 << 10;  // KiB for one match
constexpr std::uint32_t nesting_limit = 100;

/// Calls take(piece, whether it is UTF-8) for the longest parts of the text that are UTF-8, and for those that are not.
template <class Take> void for_each_part(std::string_view text, Take&& take) {
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    const bool valid = utf8_character(text, begin) > 0;
    while (end < text.size()) {
      const int bytes = utf8_character(text, end);
      if ((bytes > 0) != valid) break;
      end += std::size_t(std::max(bytes, 1));
    }
    take(text.substr(begin, end - begin), valid);
  }
}

void append_normalised(std::string& out, std::string_view text, NormalForm form) {
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = utf8proc_option_t(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                         (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              utf8proc_ssize_t(text.size()), &made, options);
  if (bytes < 0) {
    std::free(made);
    fail(ExitCode::bad_data, "a text of {} bytes cannot be normalised: {}", text.size(), utf8proc_errmsg(bytes));
  }
  out.append(reinterpret_cast<const char*>(made), std::size_t(bytes));
  std::free(made);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// The pattern in PCRE2's words. What the two languages read differently is translated (\s: PCRE2 adds U+180E) or
/// refused.
class Translation {
 public:
  Translation(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {
    if (pattern.empty() || pattern.size() > pattern_limit)
      refuse(fmt::format("it has {} bytes, allowed are 1 to {}", pattern.size(), pattern_limit));
    if (!is_utf8(pattern)) refuse("it is not UTF-8");
    while (at_ < pattern_.size()) next();
  }

  const std::string& text() const { return text_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::bad_data, "{}: the pattern '{}' cannot be used: {}", where_, printable(pattern_, 200), what);
  }

  void next() {
    const char c = pattern_[at_];
    if (c == '\\') return escape();
    if (in_class_ && c == '[') refuse("a '[' within a class; write \\[");
    if (in_class_ && pattern_.compare(at_, 2, "&&") == 0) refuse("'&&' within a class");
    if (!in_class_ && pattern_.compare(at_, 2, "(*") == 0) refuse("'(*'");
    if (c == '[') {
      in_class_ = true;
      take(pattern_.compare(at_, 2, "[^") == 0 ? 2 : 1);
      if (pattern_.compare(at_, 1, "]") == 0) refuse("a class that begins with ']'; write \\]");
      return;
    }
    if (c == ']') in_class_ = false;
    take(1);
  }

  void escape() {
    const char name = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    const std::string meaning = name == 's' ? "\\p{wspace}" : name == 'S' ? "\\P{wspace}" : "";
    if (!meaning.empty()) {
      text_ += meaning;
      at_ += 2;
    } else if (std::string_view("pPdDrntfv").find(name) != std::string_view::npos && name != '\0') {
      take(2);
    } else if (name > ' ' && name < 0x7f && !std::isalnum(static_cast<unsigned char>(name))) {
      take(2);
    } else {
      refuse(fmt::format("'\\{}', allowed are \\s \\S \\d \\D \\p \\P \\r \\n \\t \\f \\v and escaped punctuation",
                         printable(pattern_.substr(at_ + 1), 1)));
    }
  }

  void take(std::size_t bytes) {
    text_.append(pattern_, at_, bytes);
    at_ += bytes;
  }

  const std::string &pattern_, &where_;
  std::string text_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

template <auto Free> struct Freed {
  template <class T> void operator()(T* pointer) const { Free(pointer); }
};

}  // namespace

std::string normalised(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  for_each_part(text, [&](std::string_view part, bool valid) {
    if (valid) append_normalised(out, part, form);
    else out += part;
  });
  return out;
}

std::string escaped_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

struct SplitPattern::Compiled {
  std::unique_ptr<pcre2_code, Freed<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context;
};

SplitPattern::SplitPattern(const std::string& pattern, std::string where)
    : where_(std::move(where)), pattern_(pattern) {
  const Translation translation(pattern_, where_);
  const std::string& text = translation.text();
  auto compiled = std::make_shared<Compiled>();
  std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> rules(
      pcre2_compile_context_create(nullptr));
  CAPSTAN_CHECK(rules, "no memory for a pattern");
  pcre2_set_parens_nest_limit(rules.get(), nesting_limit);
  int code = 0;
  PCRE2_SIZE at = 0;
  // Oniguruma's ^ and $ are those of lines.
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at,
                                     rules.get()));
  if (!compiled->code)
    fail(ExitCode::bad_data, "{}: the pattern '{}' cannot be used: {} (at byte {} of {})", where_,
         printable(pattern_, 200), message_of(code), at, printable(text, 200));
  // Without a compiler for this machine the library interprets the pattern, with the same results.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  compiled->context.reset(pcre2_match_context_create(nullptr));
  CAPSTAN_CHECK(compiled->context, "no memory for a pattern");
  pcre2_set_match_limit(compiled->context.get(), step_limit);
  pcre2_set_heap_limit(compiled->context.get(), memory_limit);
  compiled_ = std::move(compiled);
}

void SplitPattern::cut(std::string_view text,
                       const std::function<void(std::string_view piece, bool matched)>& take) const {
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> match(pcre2_match_data_create(1, nullptr));
  CAPSTAN_CHECK(match, "no memory for a match");
  // The pattern sees each part that is UTF-8 alone, so that the library need not check it at every match.
  for_each_part(text, [&](std::string_view part, bool valid) {
    std::size_t taken = 0, from = 0;
    while (valid && from < part.size()) {
      const auto search = [&](std::uint32_t options) {
        return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(part.data()), part.size(), from,
                           PCRE2_NO_UTF_CHECK | options, match.get(), compiled_->context.get());
      };
      int found = search(0);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);  // its stack grows
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        fail(ExitCode::bad_data, "{}: the pattern '{}' cannot be matched at byte {} of '{}': {} (allowed: {} steps)",
             where_, printable(pattern_, 200), from, printable(part, 40), message_of(found), step_limit);
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
      const std::size_t begin = bounds[0], end = bounds[1];
      if (end <= begin) {  // an empty match cuts nothing
        from = std::max(from, begin);
        from += from < part.size() ? std::size_t(utf8_character(part, from)) : 0;
        if (begin >= part.size()) break;
        continue;
      }
      if (begin > taken) take(part.substr(taken, begin - taken), false);
      take(part.substr(begin, end - begin), true);
      taken = from = end;
    }
    if (taken < part.size()) take(part.substr(taken), false);
  });
}

}  // namespace capstan::framework
