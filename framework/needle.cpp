#include "framework/needle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "framework/files.h"
#include "framework/random.h"

namespace capstan::framework {

// ---- haystacks ------------------------------------------------------------------------------------------------------

Haystack noise_haystack() {
  return {"noise",
          "",
          '\n',
          {"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."},
          true};
}

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

/// Bytes of the closing quote or bracket at text[at]; 0 if there is none.
std::size_t closing_at(const std::string& text, std::size_t at) {
  for (const char* mark : {"\"", "'", ")", "]", "”", "’", "»"})
    if (text.compare(at, std::strlen(mark), mark) == 0) return std::strlen(mark);
  return 0;
}

/// True if a sentence ends with text[at], which is . ! or ?, or with what closes behind it: `end` is then its end.
bool ends_here(const std::string& text, std::size_t at, std::size_t& end) {
  if (text[at] != '.' && text[at] != '!' && text[at] != '?') return false;
  end = at + 1;
  while (const std::size_t bytes = end < text.size() ? closing_at(text, end) : 0) end += bytes;
  return end == text.size() || is_space(text[end]);
}

/// True if white space from `at` on holds two line ends.
bool is_empty_line(const std::string& text, std::size_t at) {
  int lines = 0;
  for (; at < text.size() && is_space(text[at]); ++at) lines += text[at] == '\n';
  return lines > 1;
}

}  // namespace

std::vector<std::string> sentences_of(const std::string& text) {
  std::vector<std::string> sentences;
  std::string sentence;
  const auto finish = [&] {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
    sentence.clear();
  };
  for (std::size_t at = 0, end = 0; at < text.size();) {
    if (is_space(text[at])) {
      if (is_empty_line(text, at)) finish();
      while (at < text.size() && is_space(text[at])) ++at;
      if (!sentence.empty() && at < text.size()) sentence += ' ';
    } else if (ends_here(text, at, end)) {
      sentence.append(text, at, end - at);
      finish();
      at = end;
    } else {
      sentence += text[at++];
    }
  }
  finish();
  return sentences;
}

Haystack file_haystack(const std::string& path) {
  constexpr std::int64_t limit = std::int64_t(1) << 28;
  const std::string text = read_file(path, limit);
  if (!is_utf8(text)) fail(ExitCode::bad_data, "{}: not a UTF-8 text; a haystack is a plain text file", path);
  Haystack haystack{path, hex(xxh3_of(text.data(), text.size())), ' ', sentences_of(text), false};
  if (haystack.pieces.empty())
    fail(ExitCode::bad_data, "{}: holds no sentence; a haystack needs as many as fill the longest prompt", path);
  return haystack;
}

// ---- needles --------------------------------------------------------------------------------------------------------

namespace {

constexpr std::array<const char*, needle_words> adjectives = {
    "amber",  "bold",   "brisk",  "calm",  "clever", "curious", "dusty", "eager",  "fancy",  "gentle", "glossy",
    "humble", "icy",    "jolly",  "keen",  "lively", "mellow",  "noble", "orange", "polite", "quiet",  "rapid",
    "rusty",  "silver", "sleepy", "solid", "tender", "unusual", "vivid", "warm",   "witty",  "young"};
constexpr std::array<const char*, needle_words> nouns = {
    "anchor", "basket", "bridge", "candle",  "castle", "dolphin", "engine", "falcon",  "garden", "hammer", "island",
    "jacket", "kettle", "ladder", "lantern", "market", "meadow",  "mirror", "orchard", "paddle", "pepper", "planet",
    "rabbit", "ribbon", "saddle", "shovel",  "spider", "teapot",  "tunnel", "violin",  "walnut", "window"};

std::string key_of(std::int64_t which) {
  return fmt::format("{}-{}", adjectives[static_cast<std::size_t>(which / needle_words)],
                     nouns[static_cast<std::size_t>(which % needle_words)]);
}

/// `count` different numbers below `bound`; one that was drawn before is drawn again.
std::vector<std::int64_t> draw_different(std::int64_t count, std::uint64_t seed, const char* what, std::int64_t bound) {
  std::vector<std::int64_t> drawn;
  std::set<std::int64_t> taken;
  for (std::uint64_t counter = 0; std::int64_t(drawn.size()) < count; ++counter) {
    const std::int64_t one = random_below(seed, stream_of(what), counter, bound);
    if (taken.insert(one).second) drawn.push_back(one);
  }
  return drawn;
}

std::string needle_line(const Needle& needle) {
  return fmt::format("One of the special magic numbers for {} is: {}.", needle.key, needle.number);
}

/// Pieces before a needle.
std::int64_t pieces_before(const Needle& needle, std::int64_t pieces) {
  return std::llround(needle.place * double(pieces));
}

}  // namespace

std::vector<Needle> draw_needles(std::int64_t count, std::uint64_t seed, std::int64_t length, double depth,
                                 std::int64_t trial) {
  CAPSTAN_CHECK(count >= 1 && count <= largest_needles, "{} needles", count);
  const auto millionths = std::uint64_t(std::llround(1e6 * depth));
  const std::uint64_t own =
      random_bits(seed, stream_of("needle") ^ std::uint64_t(length), millionths << 32 | std::uint64_t(trial));
  constexpr std::int64_t least = 1000000, numbers = 9000000;
  const std::vector<std::int64_t> keys = draw_different(count, own, "key", largest_needles),
                                  values = draw_different(count, own, "number", numbers);
  std::vector<Needle> needles;
  for (std::size_t i = 0; i < std::size_t(count); ++i)
    needles.push_back(
        {key_of(keys[i]), least + values[i], i == 0 ? depth : random_uniform(own, stream_of("place"), i)});
  return needles;
}

std::string needle_text(const Haystack& haystack, std::int64_t pieces, const std::vector<Needle>& needles) {
  std::vector<const Needle*> in_order;
  for (const Needle& needle : needles) in_order.push_back(&needle);
  std::stable_sort(in_order.begin(), in_order.end(), [&](const Needle* a, const Needle* b) {
    return pieces_before(*a, pieces) < pieces_before(*b, pieces);
  });
  std::string text;
  const auto add = [&](const std::string& part) {
    text += (text.empty() ? "" : std::string(1, haystack.between)) + part;
  };
  auto next = in_order.begin();
  for (std::int64_t i = 0; i <= pieces; ++i) {
    for (; next != in_order.end() && pieces_before(**next, pieces) == i; ++next) add(needle_line(**next));
    if (i < pieces) add(haystack.pieces[std::size_t(i) % haystack.pieces.size()]);
  }
  return fmt::format(
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
      "number afterwards.\n{}\nWhat is the special magic number for {} mentioned in the provided text? The special "
      "magic number for {} mentioned in the provided text is",
      text, needles.front().key, needles.front().key);
}

// ---- prompts --------------------------------------------------------------------------------------------------------

namespace {

/// Makes the prompts of one plan.
class NeedlePrompts {
 public:
  NeedlePrompts(const Tokenizer& tokenizer, const Haystack& haystack, const NeedleOptions& options)
      : tokenizer_(tokenizer), haystack_(haystack), options_(options), cells_(cells_of(options)) {}

  RetrievalPrompt prompt(std::int64_t number) const {
    const std::int64_t length = cell_of(number).length;
    const std::vector<Needle> needles = needles_of(number);
    const std::int64_t pieces = pieces_for(needles, length);
    RetrievalPrompt made =
        prompt_of(tokenizer_, options_.bos, needle_text(haystack_, pieces, needles), needles.front().number);
    made.name = needles.front().key;
    made.depth = pieces ? double(pieces_before(needles.front(), pieces)) / double(pieces) : 0;
    return made;
  }

  /// Refuses what some prompt could not be made from: every prompt's least length, and the haystack for each length.
  void check() const {
    const std::int64_t per_length = options_.depths * options_.trials;
    for (std::int64_t i = 0; i < std::int64_t(options_.lengths.size()); ++i) {
      for (std::int64_t n = i * per_length; n < (i + 1) * per_length; ++n) check_room(needles_of(n), cell_of(n).length);
      pieces_for(needles_of(i * per_length), options_.lengths[static_cast<std::size_t>(i)]);
    }
  }

 private:
  const RetrievalCell& cell_of(std::int64_t number) const {
    return cells_[static_cast<std::size_t>(number / options_.trials)];
  }
  std::vector<Needle> needles_of(std::int64_t number) const {
    const RetrievalCell& cell = cell_of(number);
    return draw_needles(options_.multikey ? options_.keys : 1, options_.seed, cell.length, cell.depth,
                        number % options_.trials);
  }
  std::int64_t tokens(const std::vector<Needle>& needles, std::int64_t pieces) const {
    return prompt_tokens(tokenizer_, options_.bos, needle_text(haystack_, pieces, needles));
  }

  std::int64_t check_room(const std::vector<Needle>& needles, std::int64_t length) const {
    const std::int64_t least = tokens(needles, 0);
    if (least > length)
      fail(ExitCode::usage,
           "--lengths {}: the prompt with {} needle(s) and no haystack has {} tokens with {}; ask for more", length,
           needles.size(), least, tokenizer_.name());
    return least;
  }

  std::int64_t pieces_for(const std::vector<Needle>& needles, std::int64_t length) const {
    const std::int64_t least = check_room(needles, length), all = std::ssize(haystack_.pieces);
    const std::int64_t most = haystack_.repeats ? std::numeric_limits<std::int64_t>::max() / 4 : all;
    const std::int64_t guess = 1 + (length - least) / 16;  // about sixteen tokens a piece
    const std::int64_t pieces =
        largest_fitting([&](std::int64_t n) { return tokens(needles, n); }, length, guess, most, 0);
    if (pieces == most && tokens(needles, pieces) < length)
      fail(ExitCode::bad_data,
           "{}: all of its {} sentence(s) make a prompt of {} tokens, --lengths {} needs more; give a longer text",
           haystack_.name, all, tokens(needles, pieces), length);
    return pieces;
  }

  const Tokenizer& tokenizer_;
  const Haystack& haystack_;
  const NeedleOptions options_;
  const std::vector<RetrievalCell> cells_;
};

}  // namespace

RetrievalPlan needle_plan(const Tokenizer& tokenizer, const Haystack& haystack, const NeedleOptions& options) {
  const NeedlePrompts prompts(tokenizer, haystack, options);
  prompts.check();
  RetrievalPlan plan;
  plan.task.name = options.multikey ? "ruler-multikey" : "ruler-single";
  plan.task.seed = options.seed;
  plan.task.bos = options.bos;
  plan.task.scoring = Scoring::contains;
  plan.task.haystack = haystack.name;
  plan.task.haystack_hash = haystack.hash;
  plan.task.keys = options.multikey ? options.keys : 1;
  plan.cells = cells_of(options);
  plan.trials = options.trials;
  plan.prompt = [prompts](std::int64_t number) { return prompts.prompt(number); };
  return plan;
}

}  // namespace capstan::framework
