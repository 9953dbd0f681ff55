#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace capstan::framework {

/// ALiBi's slopes (arXiv 2108.12409, §3): 2^{-8 (h + 1) / n} for n heads, n a power of two; else those of the power of two
/// below, followed by every second one of twice as many heads.
inline std::vector<double> alibi_slopes(std::int64_t heads) {
  std::int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<double> slopes;
  for (std::int64_t h = 0; h < n; ++h) slopes.push_back(std::exp2(-8.0 * double(h + 1) / double(n)));
  for (std::int64_t h = 0; std::int64_t(slopes.size()) < heads; h += 2)
    slopes.push_back(std::exp2(-8.0 * double(h + 1) / double(2 * n)));
  return slopes;
}

}  // namespace capstan::framework
