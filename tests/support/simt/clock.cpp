#include "tests/support/simt/clock.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace simt {

Tick Clock::tick() {
  if (++now_ == 0) {
    std::fputs("simt: more than 2^32 barriers in one process\n", stderr);
    std::abort();
  }
  return now_;
}

void Clock::meet(int warp, std::uint32_t mask) {
  const Tick time = tick();
  if (mask == 0xffffffff) {
    whole_warp_[static_cast<std::size_t>(warp)] = time;
    return;
  }
  const std::size_t first = static_cast<std::size_t>(warp * warp_width);
  std::array<Tick, warp_width> all{};
  for (std::size_t i = 0; i < warp_width; ++i) {
    if (!(mask >> i & 1)) continue;
    for (std::size_t j = 0; j < warp_width; ++j) all[j] = std::max(all[j], met_[first + i][j]);
  }
  for (std::size_t i = 0; i < warp_width; ++i)
    if (mask >> i & 1) all[i] = time;
  for (std::size_t i = 0; i < warp_width; ++i)
    if (mask >> i & 1) met_[first + i] = all;
}

bool Clock::ordered_lanes(Tick then, std::uint32_t lanes, int self) const {
  if (then < barrier_) return true;
  for (std::uint32_t rest = lanes & ~(1u << self % warp_width); rest != 0; rest &= rest - 1)
    if (then >= met(self, std::countr_zero(rest))) return false;
  return true;
}

}  // namespace simt
