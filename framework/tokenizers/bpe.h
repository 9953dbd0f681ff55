#pragma once
// Byte-pair merging (Sennrich et al., 1508.07909, §3.2) on token ids.

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace capstan::framework {

struct BpeMerge {
  std::int32_t left = 0, right = 0, joined = 0;
};

class BpeMerger {
 public:
  /// In the order of their ranks. No pair may be there twice.
  explicit BpeMerger(const std::vector<BpeMerge>& merges);
  /// Overwrites the word: as long as any two neighbours are a pair, the pair of the lowest rank, leftmost first, becomes
  /// one token. O(n log n) for n tokens.
  void merge(std::vector<std::int32_t>& word) const;

 private:
  struct Rule {
    std::int32_t rank = 0, joined = 0;
  };
  const Rule* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::uint64_t, Rule> rules_;  // by left << 32 | right
};

}  // namespace capstan::framework
