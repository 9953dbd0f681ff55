#pragma once
// Counter-based random numbers: every draw is a pure function of (seed, stream, counter), so that order, rank count, recompute
// and resume cannot change it. Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace capstan::framework {

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t(0xD2511F53u) * counter[0], b = std::uint64_t(0xCD9E8D57u) * counter[2];
    counter = {std::uint32_t(b >> 32) ^ counter[1] ^ key[0], std::uint32_t(b),
               std::uint32_t(a >> 32) ^ counter[3] ^ key[1], std::uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A stream number from a name (FNV-1a), so that adding a parameter moves no other parameter's draws.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 14695981039346656037ull;
  for (char c : name) hash = (hash ^ std::uint8_t(c)) * 1099511628211ull;
  return hash;
}

/// 64 random bits.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  const PhiloxBlock out =
      philox({std::uint32_t(counter), std::uint32_t(counter >> 32), std::uint32_t(stream), std::uint32_t(stream >> 32)},
             {std::uint32_t(seed), std::uint32_t(seed >> 32)});
  return std::uint64_t(out[1]) << 32 | out[0];
}

/// Uniform in [0, 1), 53 bits.
inline double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return double(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

__extension__ using Wide = unsigned __int128;

/// Uniform in [0, bound), without bias that matters (bound below 2^32).
inline std::int64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter, std::int64_t bound) {
  return std::int64_t((static_cast<Wide>(random_bits(seed, stream, counter)) * std::uint64_t(bound)) >> 64);
}

/// Normal(0, 1), Box-Muller.
inline double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  const double u = 1 - random_uniform(seed, stream, 2 * counter), v = random_uniform(seed, stream, 2 * counter + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace capstan::framework
