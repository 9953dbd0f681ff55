#include "tests/support/simt/tensor_core.h"

#include <bit>
#include <cstring>

#include "tests/support/simt/machine.h"

namespace simt {

namespace {

constexpr std::uint32_t all_lanes = 0xffffffff;
constexpr std::size_t row_bytes = 16;

struct LoadedRow {
  std::uint16_t values[8];  // of the row whose address this lane gave
  std::uint32_t* into;
  int matrices;
  bool transposed;
};

void ldmatrix_step(void* const (&of_lane)[32], std::uint32_t) {
  const auto element = [&](int matrix, int row, int column) -> std::uint32_t {
    return static_cast<const LoadedRow*>(of_lane[matrix * 8 + row])->values[column];
  };
  for (int lane = 0; lane < 32; ++lane) {
    const LoadedRow& self = *static_cast<const LoadedRow*>(of_lane[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int m = 0; m < self.matrices; ++m)
      self.into[m] = self.transposed ? element(m, 2 * q, g) | element(m, 2 * q + 1, g) << 16
                                     : element(m, g, 2 * q) | element(m, g, 2 * q + 1) << 16;
  }
}

struct Operands {
  float* sum;
  const std::uint32_t *a, *b;
};

float low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

void mma_step(void* const (&of_lane)[32], std::uint32_t) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Operands& self = *static_cast<const Operands*>(of_lane[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i % 2), column = 2 * q + 8 * (i / 2);
      a[row][column] = low(self.a[i]);
      a[row][column + 1] = high(self.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * q + 8 * i][g] = low(self.b[i]);
      b[2 * q + 8 * i + 1][g] = high(self.b[i]);
    }
  }
  float sum[16][8];
  const auto element = [](int lane, int i, auto& matrix) -> float& {
    return matrix[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) element(lane, i, sum) = static_cast<const Operands*>(of_lane[lane])->sum[i];
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) static_cast<const Operands*>(of_lane[lane])->sum[i] = element(lane, i, sum);
}

}  // namespace

void ldmatrix(std::uint32_t* into, int matrices, const void* row, bool transposed, Where where) {
  LoadedRow self{{}, into, matrices, transposed};
  const OutsideKernel outside;
  if (machine().thread() % warp_width < matrices * 8) {
    check_access(row, row_bytes, row_bytes, Access::read, __builtin_return_address(0));
    if (!machine().is_shared(row)) machine().refuse("ldmatrix from what is not shared memory");
    std::memcpy(self.values, row, row_bytes);
  }
  const char* const name = matrices == 4 ? (transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4")
                                         : (transposed ? "ldmatrix.x2.trans" : "ldmatrix.x2");
  machine().meet_warp(name, all_lanes, &self, ldmatrix_step, false, where);
}

void mma_m16n8k16(float* sum, const std::uint32_t* a, const std::uint32_t* b, Where where) {
  Operands self{sum, a, b};
  const OutsideKernel outside;
  machine().meet_warp("mma.m16n8k16", all_lanes, &self, mma_step, false, where);
}

}  // namespace simt
