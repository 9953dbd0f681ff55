#include "framework/tokenizers/bpe.h"

#include <algorithm>
#include <cstddef>
#include <queue>

namespace capstan::framework {
namespace {

constexpr std::int32_t gone = -1;  // a token that went into its left neighbour

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
}

/// Two neighbours that were a pair when this was written down; they may have changed since.
struct Candidate {
  std::int32_t rank = 0, left = 0, right = 0, joined = 0;
  std::size_t at = 0;

  /// The queue's top is its largest: the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

BpeMerger::BpeMerger(const std::vector<BpeMerge>& merges) {
  rules_.reserve(merges.size());
  for (const BpeMerge& merge : merges)
    rules_.emplace(key_of(merge.left, merge.right), Rule{std::int32_t(rules_.size()), merge.joined});
}

const BpeMerger::Rule* BpeMerger::find(std::int32_t left, std::int32_t right) const {
  const auto found = rules_.find(key_of(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void BpeMerger::merge(std::vector<std::int32_t>& word) const {
  const std::size_t count = word.size();
  std::vector<std::size_t> previous(count), next(count);  // of the tokens that are left; `count` is the end
  for (std::size_t i = 0; i < count; ++i) previous[i] = i == 0 ? count : i - 1, next[i] = i + 1;

  std::priority_queue<Candidate> candidates;
  const auto consider = [&](std::size_t at) {
    if (at == count || next[at] == count) return;
    const std::int32_t left = word[at], right = word[next[at]];
    if (const Rule* rule = find(left, right)) candidates.push({rule->rank, left, right, rule->joined, at});
  };
  for (std::size_t i = 0; i < count; ++i) consider(i);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const std::size_t right = next[best.at];
    if (word[best.at] != best.left || right == count || word[right] != best.right) continue;  // changed since
    word[best.at] = best.joined;
    word[right] = gone;
    next[best.at] = next[right];
    if (next[right] != count) previous[next[right]] = best.at;
    consider(previous[best.at]);
    consider(best.at);
  }
  word.erase(std::remove(word.begin(), word.end(), gone), word.end());
}

}  // namespace capstan::framework
