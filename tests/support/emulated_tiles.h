#pragma once
// The tile unit (kernels/amx.h) in plain C++, for machines without one: the same members, one unit per thread.

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/bfloat16.h"

namespace capstan::tests {

class EmulatedTiles {
 public:
  static void begin() {
    for (Tile& tile : tiles_) tile.fill(std::byte{0xff});  // NaNs: nothing may rely on what was there
  }
  static void end() { begin(); }
  template <int T> static void zero() { tiles_[T].fill(std::byte{0}); }
  template <int T> static void load(const void* rows, std::int64_t stride) {
    for (std::int64_t r = 0; r < 16; ++r)
      std::memcpy(&tiles_[T][std::size_t(r) * 64], static_cast<const std::byte*>(rows) + r * stride, 64);
  }
  template <int T> static void store(void* rows, std::int64_t stride) {
    for (std::int64_t r = 0; r < 16; ++r)
      std::memcpy(static_cast<std::byte*>(rows) + r * stride, &tiles_[T][std::size_t(r) * 64], 64);
  }
  template <int C, int A, int B> static void dot() {
    float c[16][16];
    kernels::BFloat16 a[16][32], b[16][16][2];
    std::memcpy(c, tiles_[C].data(), sizeof c);
    std::memcpy(a, tiles_[A].data(), sizeof a);
    std::memcpy(b, tiles_[B].data(), sizeof b);
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 16; ++n) {
          c[m][n] += to_float(a[m][2 * k]) * to_float(b[k][n][0]);
          c[m][n] += to_float(a[m][2 * k + 1]) * to_float(b[k][n][1]);
        }
    std::memcpy(tiles_[C].data(), c, sizeof c);
  }

 private:
  using Tile = std::array<std::byte, 1024>;
  static thread_local inline std::array<Tile, 8> tiles_{};
};

}  // namespace capstan::tests
