#pragma once
// The products between a key tile and a query tile on a tile unit: operands in bf16, sums in f32. q, k, v and dO are as they were
// stored; weights and the gradients of scores are rounded to bf16 once, where they enter a product. Sums of weights, scores
// and all score terms stay f32. A product's left operand lies row by row, its right one in pairs of rows: [row / 2][column][2].
//
// A result's bits depend on its own row and on the keys, like in f32: the unit sums in the order of the depth.

#include <cstdint>

#include "kernels/attention_call_cpu.h"

namespace capstan::kernels::cpu {

/// c[r][column] (=, +=, or times scale[column] +=) factor Σ_k a[r][k] b[k][column]. Rows and columns are rounded up to
/// multiples of 16; depth is one of 32.
struct TileProduct {
  const BFloat16* a;
  std::int64_t a_stride;
  const BFloat16* b;  ///< [depth / 2][columns][2]
  std::int64_t rows, columns, depth;
  float* c;
  std::int64_t c_stride;
  Product::Into into;
  float factor = 1;
  const float* scale = nullptr;
};

/// M · 16 rows and N · 16 columns: sums in tiles 0 to 3, operands in 4, 5 and 6, 7.
template <class Tiles, int M, int N>
[[gnu::always_inline]] inline void tile_block(const TileProduct& p, std::int64_t row, std::int64_t column) {
  constexpr std::int64_t wide_row = 32 * sizeof(float);
  const std::int64_t a_bytes = p.a_stride * 2, b_bytes = p.columns * 4;
  Tiles::template zero<0>();
  if constexpr (N == 2) Tiles::template zero<1>();
  if constexpr (M == 2) Tiles::template zero<2>();
  if constexpr (M == 2 && N == 2) Tiles::template zero<3>();
  for (std::int64_t k = 0; k < p.depth; k += 32) {
    const BFloat16 *a = p.a + row * p.a_stride + k, *b = p.b + (k * p.columns + column * 2);
    Tiles::template load<4>(a, a_bytes);
    if constexpr (M == 2) Tiles::template load<5>(a + 16 * p.a_stride, a_bytes);
    Tiles::template load<6>(b, b_bytes);
    if constexpr (N == 2) Tiles::template load<7>(b + 32, b_bytes);
    Tiles::template dot<0, 4, 6>();
    if constexpr (N == 2) Tiles::template dot<1, 4, 7>();
    if constexpr (M == 2) Tiles::template dot<2, 5, 6>();
    if constexpr (M == 2 && N == 2) Tiles::template dot<3, 5, 7>();
  }
  alignas(64) float sum[32][32];
  Tiles::template store<0>(&sum[0][0], wide_row);
  if constexpr (N == 2) Tiles::template store<1>(&sum[0][16], wide_row);
  if constexpr (M == 2) Tiles::template store<2>(&sum[16][0], wide_row);
  if constexpr (M == 2 && N == 2) Tiles::template store<3>(&sum[16][16], wide_row);
  for (int r = 0; r < 16 * M; ++r) {
    float* c = p.c + (row + r) * p.c_stride + column;
    if (p.into == Product::Into::overwrite)
      for (int n = 0; n < 16 * N; ++n) c[n] = p.factor * sum[r][n];
    else if (p.into == Product::Into::add)
      for (int n = 0; n < 16 * N; ++n) c[n] += p.factor * sum[r][n];
    else
      for (int n = 0; n < 16 * N; ++n) c[n] = c[n] * p.scale[column + n] + p.factor * sum[r][n];
  }
}

template <class Tiles> [[gnu::always_inline]] inline void tile_multiply(const TileProduct& p) {
  const std::int64_t rows = (p.rows + 15) / 16 * 16;
  for (std::int64_t column = 0; column < p.columns; column += 32) {
    const bool two = column + 32 <= p.columns;
    for (std::int64_t row = 0; row < rows; row += 32) {
      const bool both = row + 32 <= rows;
      if (both && two) tile_block<Tiles, 2, 2>(p, row, column);
      else if (both) tile_block<Tiles, 2, 1>(p, row, column);
      else if (two) tile_block<Tiles, 1, 2>(p, row, column);
      else tile_block<Tiles, 1, 1>(p, row, column);
    }
  }
}

// ---- operands -------------------------------------------------------------------------------------------------------

/// Entries of a left operand's row; of a right one's, in rows.
constexpr std::int64_t tile_depth(std::int64_t entries) { return (entries + 31) / 32 * 32; }

/// x [rows][columns] f32, rounded, row by row: out [rows][tile_depth(columns)].
[[gnu::always_inline]] inline void pack_rows(BFloat16* out, const float* x, std::int64_t rows, std::int64_t columns) {
  const std::int64_t depth = tile_depth(columns);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < columns; ++n) out[r * depth + n] = to_bfloat16(x[r * columns + n]);
    for (std::int64_t n = columns; n < depth; ++n) out[r * depth + n] = {};
  }
}

/// x [rows][columns] f32, rounded, in pairs of rows: out [tile_depth(rows) / 2][columns][2], zeros beyond the rows.
[[gnu::always_inline]] inline void pack_pairs(BFloat16* out, const float* x, std::int64_t rows, std::int64_t columns) {
  const std::int64_t depth = tile_depth(rows);
  for (std::int64_t r = 0; r < depth; r += 2)
    for (std::int64_t n = 0; n < columns; ++n) {
      BFloat16* pair = out + r * columns + n * 2;
      pair[0] = r < rows ? to_bfloat16(x[r * columns + n]) : BFloat16{};
      pair[1] = r + 1 < rows ? to_bfloat16(x[(r + 1) * columns + n]) : BFloat16{};
    }
}

/// Query rows of x [T, heads, D] in bf16, one head: in pairs of columns, [columns_p / 2][lane][2], and in pairs of rows,
/// [tile_depth(lanes) / 2][columns_p][2], if `of_rows` is given. Zeros beyond rows and columns.
inline void gather_pairs(BFloat16* of_columns, BFloat16* of_rows, const View& x, const RowTile& r,
                         std::int64_t columns_p, int lane_count) {
  const std::int64_t heads = x.dim(1), columns = x.dim(2);
  const BFloat16* elements = x.as<BFloat16>();
  for (std::int64_t lane = 0; lane < tile_depth(lane_count); ++lane) {
    const BFloat16* source = lane < r.rows ? elements + ((r.begin + lane) * heads + r.head) * columns : nullptr;
    for (std::int64_t d = 0; d < columns_p; ++d) {
      const BFloat16 value = source && d < columns ? source[d] : BFloat16{};
      if (lane < lane_count) of_columns[(d / 2 * lane_count + lane) * 2 + d % 2] = value;
      if (of_rows) of_rows[(lane / 2 * columns_p + d) * 2 + lane % 2] = value;
    }
  }
}

/// Key rows of x [T, G, D] in bf16, one kv head: row by row, [keys][columns_p], and transposed, [columns_p][largest_tile] with
/// zeros beyond the keys; either may be null.
[[gnu::always_inline]] inline void load_narrow_keys(BFloat16* of_rows, BFloat16* of_columns, const View& x,
                                                    const Call& call, const KeyTile& t, std::int64_t head,
                                                    std::int64_t columns_p) {
  const BFloat16* elements = x.as<BFloat16>();
  for (std::int64_t j = 0; j < largest_tile; ++j) {
    const BFloat16* source = j < t.keys ? elements + call.key_at(t.begin + j, head) : nullptr;
    for (std::int64_t d = 0; of_rows && source && d < columns_p; ++d)
      of_rows[j * columns_p + d] = d < call.depth ? source[d] : BFloat16{};
    for (std::int64_t d = 0; of_columns && d < columns_p; ++d)
      of_columns[d * largest_tile + j] = source && d < call.depth ? source[d] : BFloat16{};
  }
}

// ---- the six products -----------------------------------------------------------------------------------------------

/// The same members as F32Products, for q in bf16 without z; W for the score terms. Extents of the call are multiples of 32.
template <class Tiles, int L, int W> struct Bf16Products {
  static constexpr int row_lanes = L, width = W;

  static void begin() { Tiles::begin(); }
  static void end() { Tiles::end(); }

  [[gnu::always_inline]] static void load_queries(const Call& call, RowTile& r) {
    grow(r.narrow.q_pairs, call.depth_p * L);
    gather_pairs(r.narrow.q_pairs.data(), nullptr, call.queries.q, r, call.depth_p, L);
  }
  [[gnu::always_inline]] static void load_queries(const Call& call, RowTile& r, const View& d_o) {
    NarrowRows& n = r.narrow;
    for (BFloats* x : {&n.q_pairs, &n.q_row_pairs}) grow(*x, call.depth_p * tile_depth(L));
    for (BFloats* x : {&n.do_pairs, &n.do_row_pairs}) grow(*x, call.columns_p * tile_depth(L));
    gather_pairs(n.q_pairs.data(), n.q_row_pairs.data(), call.queries.q, r, call.depth_p, L);
    gather_pairs(n.do_pairs.data(), n.do_row_pairs.data(), d_o, r, call.columns_p, L);
  }
  [[gnu::always_inline]] static void load_keys(const Call& call, KeyTile& t, std::int64_t head, Needs needs) {
    NarrowKeys& n = t.narrow;
    for (BFloats* x : {&n.k, &n.k_columns}) grow(*x, largest_tile * call.depth_p);
    for (BFloats* x : {&n.u, &n.u_columns}) grow(*x, largest_tile * call.columns_p);
    for (BFloats* x : {&n.pairs, &n.rows}) grow(*x, largest_tile * tile_depth(L));
    load_narrow_keys(n.k.data(), needs == Needs::backward ? n.k_columns.data() : nullptr, call.keys.k, call, t, head,
                     call.depth_p);
    if (needs == Needs::scores) return;
    const bool back = needs == Needs::backward;
    load_narrow_keys(back ? n.u.data() : nullptr, back ? nullptr : n.u_columns.data(), call.keys.v, call, t, head,
                     call.columns_p);
  }

  /// logit = s q·k
  [[gnu::always_inline]] static void scores(const Call& call, KeyTile& t, const RowTile& r) {
    multiply({t.narrow.k.data(), call.depth_p, r.narrow.q_pairs.data(), t.keys, L, call.depth_p, t.logit.data(), L,
              Product::Into::overwrite, call.scale});
  }
  /// o = o shrink + Σ_j logit_j U_j, where logit holds weights by now
  [[gnu::always_inline]] static void add_values(const Call& call, KeyTile& t, RowTile& r, const float* shrink) {
    pack_pairs(t.narrow.pairs.data(), t.logit.data(), t.keys, L);
    multiply({t.narrow.u_columns.data(), largest_tile, t.narrow.pairs.data(), call.columns_p, L, tile_depth(t.keys),
              r.o_t.data(), L, Product::Into::scale_and_add, 1, shrink});
  }
  /// d_logit = dO·U
  [[gnu::always_inline]] static void value_scores(const Call& call, KeyTile& t, const RowTile& r) {
    multiply({t.narrow.u.data(), call.columns_p, r.narrow.do_pairs.data(), t.keys, L, call.columns_p, t.d_logit.data(),
              L, Product::Into::overwrite});
  }
  /// du += weights dO
  [[gnu::always_inline]] static void add_to_values(const Call& call, KeyTile& t, const RowTile& r) {
    pack_rows(t.narrow.rows.data(), t.logit.data(), t.keys, L);
    multiply({t.narrow.rows.data(), tile_depth(L), r.narrow.do_row_pairs.data(), t.keys, call.columns_p, tile_depth(L),
              t.du.data(), row_stride(call.columns_p), Product::Into::add});
  }
  /// dk += d s q
  [[gnu::always_inline]] static void add_to_keys(const Call& call, KeyTile& t, const RowTile& r, const float* d_score) {
    pack_rows(t.narrow.rows.data(), d_score, t.keys, L);
    multiply({t.narrow.rows.data(), tile_depth(L), r.narrow.q_row_pairs.data(), t.keys, call.depth_p, tile_depth(L),
              t.dk.data(), row_stride(call.depth_p), Product::Into::add, call.scale});
  }
  /// dq += d k (times s when stored)
  [[gnu::always_inline]] static void add_to_queries(const Call& call, KeyTile& t, RowTile& r, const float* d_score) {
    pack_pairs(t.narrow.pairs.data(), d_score, t.keys, L);
    multiply({t.narrow.k_columns.data(), largest_tile, t.narrow.pairs.data(), call.depth_p, L, tile_depth(t.keys),
              r.dq_t.data(), L, Product::Into::add});
  }

 private:
  [[gnu::always_inline]] static void multiply(const TileProduct& product) { tile_multiply<Tiles>(product); }
};

}  // namespace capstan::kernels::cpu
