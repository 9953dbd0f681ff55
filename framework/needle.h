#pragma once
// A needle in a haystack, as RULER asks for it (Hsieh et al., arXiv 2404.06654, §3 and appendix B; NVIDIA/RULER, niah.py): "One of
// the special magic numbers for KEY is: NUMBER." stands between pieces of a text, and the number of one key is asked for. The
// formats are RULER's; words, draws and depths are our own, so figures stand beside RULER's, not in its tables.
//
//   single    one needle
//   multikey  `keys` needles of the same form, one of which is asked for; the others stand where the draw puts them

#include <cstdint>
#include <string>
#include <vector>

#include "framework/retrieval.h"

namespace capstan::framework {

/// What needles are hidden in: pieces, joined by one character.
struct Haystack {
  std::string name;  ///< "noise", or the file's path
  std::string hash;  ///< xxh3 of the file, hex; empty: noise
  char between;      ///< pieces
  std::vector<std::string> pieces;
  bool repeats;  ///< after the last piece comes the first again
};

/// RULER's noise: its line of five sentences, again and again.
Haystack noise_haystack();
/// The sentences of a UTF-8 text, up to 256 MiB; white space within them becomes single spaces. Errors: io; bad_data (too large,
/// no UTF-8, no sentence).
Haystack file_haystack(const std::string& path);
/// They end after . ! ? (and closing quotes or brackets) before white space, at an empty line, and at the end.
std::vector<std::string> sentences_of(const std::string& text);

/// Keys are "ADJECTIVE-NOUN" from our own lists.
constexpr std::int64_t needle_words = 32, largest_needles = needle_words * needle_words;

struct NeedleOptions : RetrievalOptions {
  bool multikey = false;
  std::int64_t keys = 4;  ///< needles in all, 1 … largest_needles; single: 1, whatever stands here
};

/// One needle: what it is called, and the number that it tells.
struct Needle {
  std::string key;
  std::int64_t number;  ///< of seven digits
  double place;         ///< share of the pieces before it
};

/// Needles of a prompt, the asked one first: keys and numbers all differ. A pure function of (seed, length, depth, trial), and the
/// first ones do not depend on how many there are.
std::vector<Needle> draw_needles(std::int64_t count, std::uint64_t seed, std::int64_t length, double depth,
                                 std::int64_t trial);

/// The prompt with the first `pieces` of the haystack, needles between them.
std::string needle_text(const Haystack& haystack, std::int64_t pieces, const std::vector<Needle>& needles);

/// As many pieces as have room. Errors: usage (no room for the needles and the question) and bad_data (a haystack too short to
/// fill a prompt), before the first prompt is asked. Tokenizer and haystack must outlive the plan.
RetrievalPlan needle_plan(const Tokenizer& tokenizer, const Haystack& haystack, const NeedleOptions& options);

}  // namespace capstan::framework
