#pragma once
// Passkey retrieval: a number hidden in a long, dull text, to be repeated at its end (Mohtashami & Jaggi, arXiv
// 2305.16300, §4.2; the same text in LongLoRA and TAPE). Five lines: task, garbage, the key, garbage, question. Right
// only if the greedy tokens are the key's tokens, all of them.

#include <cstdint>
#include <string>
#include <vector>

#include "framework/retrieval.h"

namespace capstan::framework {

constexpr std::int64_t largest_key = 50000;  ///< keys are 1 … 50000

/// What a prompt is made from: characters of garbage in all and before the key's line, and the key.
struct PasskeyDraw {
  std::int64_t garbage, prefix;
  std::int32_t key;
};

std::string passkey_text(const PasskeyDraw& draw);

/// LongLoRA's own 160 draws (passkey_longlora.cpp), length by length.
constexpr std::int64_t longlora_lengths = 8, longlora_trials = 20;
std::vector<PasskeyDraw> longlora_draws();

struct PasskeyOptions : RetrievalOptions {
  bool longlora = false;  ///< the preset: lengths, depths and trials are its own
};

struct PasskeyPrompt : RetrievalPrompt {
  PasskeyDraw draw;
};

PasskeyPrompt passkey_prompt(const Tokenizer& tokenizer, std::int32_t bos, const PasskeyDraw& draw);
/// The most garbage whose prompt has at most `length` tokens, `depth` of it before the key. Error (usage): the text
/// without garbage is longer.
PasskeyPrompt fitted_prompt(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t length, double depth,
                            std::int32_t key);

/// Keys are a pure function of (seed, length, depth, trial): other lengths in the list change none. The tokenizer must outlive
/// the plan.
RetrievalPlan passkey_plan(const Tokenizer& tokenizer, const PasskeyOptions& options);

}  // namespace capstan::framework
