#pragma once
// The products between a key tile and a query tile, in f32. Inputs may be stored in bf16: each is converted once, when its tile
// is loaded. L query rows lie side by side, W of them in one register.

#include "kernels/attention_call_cpu.h"

namespace capstan::kernels::cpu {

template <int L, int W> struct F32Products {
  static constexpr int row_lanes = L, width = W;

  static void begin() {}
  static void end() {}

  [[gnu::always_inline]] static void load_queries(const Call& call, RowTile& r) {
    gather_rows(r.q_t.data(), nullptr, call.queries.q, r.begin, r.rows, r.head, call.depth_p, L, call.scale);
  }
  /// For backward: both ways, with dO.
  [[gnu::always_inline]] static void load_queries(const Call& call, RowTile& r, const View& d_o) {
    gather_rows(r.q_t.data(), r.q_rows.data(), call.queries.q, r.begin, r.rows, r.head, call.depth_p, L, call.scale);
    gather_rows(r.do_t.data(), r.do_rows.data(), d_o, r.begin, r.rows, r.head, call.columns_p, L, 1);
  }
  [[gnu::always_inline]] static void load_keys(const Call& call, KeyTile& t, std::int64_t head, Needs needs) {
    t.load(call, head, needs);
  }

  /// logit = s q·k
  [[gnu::always_inline]] static void scores(const Call& call, KeyTile& t, const RowTile& r) {
    lanes_product<L, W>(t.logit.data(), t.k.data(), row_stride(call.depth_p), 1, r.q_t.data(), t.keys, call.depth_p,
                        Product::Into::overwrite);
  }
  /// o = o shrink + Σ_j logit_j U_j, where logit holds weights by now
  [[gnu::always_inline]] static void add_values(const Call& call, const KeyTile& t, RowTile& r, const float* shrink) {
    multiply<W>({t.u.data(), 1, row_stride(call.columns_p), t.logit.data(), L, call.columns_p, L, t.keys, r.o_t.data(),
                 Product::Into::scale_and_add, shrink});
  }
  /// d_logit = dO·U
  [[gnu::always_inline]] static void value_scores(const Call& call, KeyTile& t, const RowTile& r) {
    lanes_product<L, W>(t.d_logit.data(), t.u.data(), row_stride(call.columns_p), 1, r.do_t.data(), t.keys,
                        call.columns_p, Product::Into::overwrite);
  }
  /// du += weights dO
  [[gnu::always_inline]] static void add_to_values(const Call& call, KeyTile& t, const RowTile& r) {
    keys_product<L, W>(t.du.data(), t.logit.data(), r.do_rows.data(), t.keys, call.columns_p);
  }
  /// dk += d s q
  [[gnu::always_inline]] static void add_to_keys(const Call& call, KeyTile& t, const RowTile& r, const float* d_score) {
    keys_product<L, W>(t.dk.data(), d_score, r.q_rows.data(), t.keys, call.depth_p);
  }
  /// dq += d k (times s when stored)
  [[gnu::always_inline]] static void add_to_queries(const Call& call, const KeyTile& t, RowTile& r,
                                                    const float* d_score) {
    lanes_product<L, W>(r.dq_t.data(), t.k.data(), 1, row_stride(call.depth_p), d_score, call.depth_p, t.keys,
                        Product::Into::add);
  }
};

}  // namespace capstan::kernels::cpu
