#pragma once
// What the f32 SIMD attention tile is made of: rows of a query tile side by side in L lanes, W of them in one register,
// and the products between keys and lanes. Arrays named x_t are transposed: [entry][lane].

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/attention_product_cpu.h"
#include "kernels/attention_rows_cpu.h"
#include "kernels/scratch.h"
#include "kernels/simd_math.h"
#include "kernels/tensor.h"
#include "kernels/tile_mask.h"

namespace capstan::kernels::cpu {

using Floats = std::vector<float, CacheLines<float>>;

/// W floats or ints in one register, written by hand where gcc would not find them itself. W fits the instruction set:
/// gcc keeps wider ones in memory, twenty times slower.
template <int W> struct Register;
template <> struct Register<16> {
  using Real = float __attribute__((vector_size(64), aligned(4), may_alias));
  using Int = std::int32_t __attribute__((vector_size(64), aligned(4), may_alias));
};
template <> struct Register<8> {
  using Real = float __attribute__((vector_size(32), aligned(4), may_alias));
  using Int = std::int32_t __attribute__((vector_size(32), aligned(4), may_alias));
};
template <> struct Register<4> {
  using Real = float __attribute__((vector_size(16), aligned(4), may_alias));
  using Int = std::int32_t __attribute__((vector_size(16), aligned(4), may_alias));
};
template <int W> using Reals = typename Register<W>::Real;
template <int W> using Ints = typename Register<W>::Int;

template <int W> [[gnu::always_inline]] inline Reals<W>& lanes(float* x) { return *reinterpret_cast<Reals<W>*>(x); }
template <int W> [[gnu::always_inline]] inline const Reals<W>& lanes(const float* x) {
  return *reinterpret_cast<const Reals<W>*>(x);
}

/// A masked logit: far below any maximum, also below the one of a row that has seen no key (-1e30), so that its weight
/// is exactly 0.
constexpr float masked = -2e30f;

/// Columns as the micro-kernels want them: 8, or a multiple of 16.
constexpr std::int64_t padded(std::int64_t columns) { return columns <= 8 ? 8 : (columns + 15) / 16 * 16; }

/// Scratch that is kept between calls only grows.
template <class Vector> void grow(Vector& x, std::int64_t entries) {
  if (std::ssize(x) < entries) x.resize(std::size_t(entries));
}

// ---- products -------------------------------------------------------------------------------------------------------

/// c[r][lane] = or += Σ_k a[r·row_step + k·depth_step] x[k][lane].
template <int L, int W>
[[gnu::always_inline]] inline void lanes_product(float* c, const float* a, std::int64_t row_step,
                                                 std::int64_t depth_step, const float* x, std::int64_t rows,
                                                 std::int64_t depth, Product::Into into) {
  multiply<W>({a, row_step, depth_step, x, L, rows, L, depth, c, into});
}

/// c[j][column] += Σ_lane p[j][lane] b[lane][column]; rows of b and c are row_stride(columns) apart.
template <int L, int W>
[[gnu::always_inline]] inline void keys_product(float* c, const float* p, const float* b, std::int64_t keys,
                                                std::int64_t columns) {
  const Product product{p, L, 1, b, row_stride(columns), keys, columns, L, c, Product::Into::add};
  if (columns == 8) multiply<std::min(W, 8)>(product);  // half a register of 16
  else multiply<W>(product);
}

/// Σ over lanes of x, by a fixed tree.
template <int L> [[gnu::always_inline]] inline float sum_of_lanes(const float* x) {
  float sum[L];
  for (int lane = 0; lane < L; ++lane) sum[lane] = x[lane];
  for (int width = L / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  return sum[0];
}

// ---- between tensors and lanes --------------------------------------------------------------------------------------

/// f(pointer to x's elements), which are float or BFloat16.
template <class F> [[gnu::always_inline]] inline void with_elements(const View& x, const F& f) {
  if (x.type() == DType::bf16) f(x.as<BFloat16>());
  else f(x.as<float>());
}

/// out [columns_p] = x[at, at + columns] times factor, in the view's type, and zeros behind.
[[gnu::always_inline]] inline void load_row(float* out, const View& x, std::int64_t at, std::int64_t columns,
                                            std::int64_t columns_p, float factor = 1) {
  with_elements(
      x, [=](const auto* elements) __attribute__((always_inline)) {
        for (std::int64_t d = 0; d < columns; ++d) out[d] = to_float(elements[at + d]) * factor;
      });
  for (std::int64_t d = columns; d < columns_p; ++d) out[d] = 0;
}

/// A row table [T, heads, P + 1], with entry P once more behind it: the interpolation at P reads it with weight 0.
inline void gather_table(Floats& table_t, const View& table, std::int64_t begin, std::int64_t rows, std::int64_t head,
                         int lane_count) {
  const std::int64_t columns = table.dim(2);
  gather_rows(table_t.data(), nullptr, table, begin, rows, head, columns, lane_count, 1);
  std::copy_n(&table_t[(columns - 1) * lane_count], lane_count, &table_t[columns * lane_count]);
}

/// True if some lane of a is not that of b.
template <int W> [[gnu::always_inline]] inline bool any_differs(const Ints<W>& a, const Ints<W>& b) {
  const Ints<W> moved = a ^ b;
  std::int64_t words[W / 2], any = 0;
  std::memcpy(words, &moved, sizeof words);
  for (std::int64_t word : words) any |= word;
  return any != 0;
}

// ---- masks ----------------------------------------------------------------------------------------------------------

/// Sets x [keys][lane] to `value` where the lane's word has no bit for the key. Lanes beyond the rows have the word 0.
template <int L>
[[gnu::always_inline]] inline void keep_where(const std::uint64_t* word, float* x, std::int64_t keys, float value) {
  for (std::int64_t j = 0; j < keys; ++j) {
    std::int32_t keep[L];
    for (int lane = 0; lane < L; ++lane) keep[lane] = std::int32_t(word[lane] >> j & 1);
    for (int lane = 0; lane < L; ++lane) x[j * L + lane] = keep[lane] ? x[j * L + lane] : value;
  }
}

/// Sets what rows must not see to `value`.
template <int L> [[gnu::always_inline]] inline void apply_mask(float* x, const TilePair& tile, float value) {
  if (tile.mask.all && tile.rows == L) return;
  keep_where<L>(tile.mask.allowed.data(), x, tile.keys, value);
}

}  // namespace capstan::kernels::cpu
