#pragma once
// The tile unit for bf16 (AMX): eight tiles of 16 rows of 64 bytes. Code that uses it is written over a class with the members of
// AmxTiles, so that tests can run it on machines without the unit (tests/support/emulated_tiles.h).

#include <cstdint>

namespace capstan::kernels {

/// Whether this process may use the unit: the processor has it, and the operating system has granted its state.
bool has_amx();

struct AmxTiles {
  /// Before and after any use on a thread: all tiles get their full size; their state is given back.
  static void begin();
  static void end();
  template <int T> static void zero();
  /// 16 rows of 64 bytes, `stride` bytes apart.
  template <int T> static void load(const void* rows, std::int64_t stride);
  template <int T> static void store(void* rows, std::int64_t stride);
  /// Tile C, f32 [16][16], += A · B with A bf16 [16][32] and B bf16 [16][16][2], pairs of rows: for k = 0 … 15,
  ///   C[m][n] += A[m][2k] B[k][n][0], C[m][n] += A[m][2k + 1] B[k][n][1].
  template <int C, int A, int B> static void dot();
};

// The operand of a tile instruction is part of its name.

inline void AmxTiles::begin() {
  struct alignas(64) Layout {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Layout layout;
  asm volatile("ldtilecfg %0" : : "m"(layout));
}

inline void AmxTiles::end() { asm volatile("tilerelease"); }

template <int T> [[gnu::always_inline]] inline void AmxTiles::zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }

template <int T> [[gnu::always_inline]] inline void AmxTiles::load(const void* rows, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(T) : "memory");
}

template <int T> [[gnu::always_inline]] inline void AmxTiles::store(void* rows, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(T) : "memory");
}

template <int C, int A, int B> [[gnu::always_inline]] inline void AmxTiles::dot() {
  asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(B), "i"(A), "i"(C));
}

}  // namespace capstan::kernels
