// The entry points of attention_tile.h: checks, then the file of the device; and what all devices share.

#include "kernels/attention_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_devices.h"
#include "kernels/operands.h"
#include "kernels/threads.h"

namespace capstan::kernels {

namespace {

/// Table positions are exact in f32, and in fixed point.
constexpr std::int64_t longest_table = longest_f64_sequence;

void check_table(const Operands& operands, const char* name, const View& table, std::int64_t rows, std::int64_t heads) {
  if (!table) return;
  const std::int64_t columns = table.shape().rank() == 3 ? table.dim(2) : 0;
  operands.check_wide(name, table, {rows, heads, columns});
  CAPSTAN_CHECK(columns >= 1 && columns <= longest_table, "{} has {} columns, not 1 to {}", name, columns,
                longest_table);
}

/// Gates may be made of q and k, or of more exact sources.
void check_narrow_or_wide(const Operands& operands, const char* name, const View& view, const Shape& shape) {
  if (view.type() == DType::f32) operands.check_wide(name, view, shape);
  else operands.check(name, view, shape);
}

void check_gates(const Operands& operands, int which, const QueryChunk& queries, const KeyChunk& keys,
                 const GateRule& rule) {
  const bool present = rule.gates != Gates::none, ends = rule.gates == Gates::block_ends;
  const View &gate_q = queries.terms.gate_q[which], &gate_k = keys.terms.gate_k[which];
  CAPSTAN_CHECK(present == bool(queries.terms.table[which]), "gated sum {}: a row table and its gates go together",
                which);
  CAPSTAN_CHECK(present || (!gate_q && !gate_k), "gated sum {} is absent, its gate_q or gate_k is not", which);
  CAPSTAN_CHECK(rule.floor >= 0 && rule.floor < 1, "gated sum {}: floor {}", which, rule.floor);
  CAPSTAN_CHECK(rule.block >= 0 && rule.window >= 0 && (rule.block == 0) == (rule.window == 0),
                "gated sum {}: block {} and window {}", which, rule.block, rule.window);
  CAPSTAN_CHECK(!ends || (rule.block > 0 && gate_k), "gated sum {}: block ends need blocks and their keys", which);
  check_table(operands, "table", queries.terms.table[which], queries.q.dim(0), queries.q.dim(1));
  if (gate_q) check_narrow_or_wide(operands, "gate_q", gate_q, queries.q.shape());
  const std::int64_t tokens = keys.k.dim(0), key_rows = ends ? (tokens + rule.block - 1) / rule.block : tokens;
  if (gate_k) check_narrow_or_wide(operands, "gate_k", gate_k, {key_rows, keys.k.dim(1), keys.k.dim(2)});
}

void check_order_free(const Operands& operands, const QueryChunk& queries, const KeyChunk& keys,
                      const SharedTerms& shared) {
  const std::int64_t rows = queries.q.dim(0), heads = queries.q.dim(1);
  const View &row_offset = queries.terms.offset, &key_offset = keys.terms.offset;
  CAPSTAN_CHECK(bool(row_offset) == bool(key_offset), "offsets of rows and of keys go together");
  CAPSTAN_CHECK(row_offset || !queries.terms.offset_table, "an offset table without offsets");
  if (row_offset) operands.check("row offset", row_offset, {rows, heads}, DType::i64);
  if (key_offset) operands.check("key offset", key_offset, {keys.k.dim(0), heads}, DType::i64);
  check_table(operands, "offset_table", queries.terms.offset_table, rows, heads);
  check_table(operands, "relative", queries.terms.relative, rows, heads);
  if (shared.slope) operands.check_wide("slope", shared.slope, {heads});
  if (const View& table = shared.distance_table) {
    operands.check_wide("distance_table", table, {heads, table.dim(-1)});
    CAPSTAN_CHECK(table.dim(1) >= 1 && table.dim(1) <= longest_table, "distance_table {}", table.shape().text());
  }
  const FireTerm& fire = shared.fire;
  if (fire.in) {
    const std::int64_t width = fire.in.dim(0);
    operands.check_wide("fire in", fire.in, {width});
    operands.check_wide("fire in_bias", fire.in_bias, {width});
    operands.check_wide("fire out", fire.out, {heads, width});
    operands.check_wide("fire out_bias", fire.out_bias, {heads});
    operands.check_wide("fire scale", fire.scale, {2});
  }
  if (!queries.terms.relative && !shared.slope && !shared.distance_table && !fire.in) return;
  operands.check("query position", queries.position, {rows}, DType::i64);
  operands.check("key position", keys.position, {keys.k.dim(0)}, DType::i64);
}

/// What the terms of any chunk pair may cost in integers: keys are consecutive, tiles and blocks begin where they must. Indices in a
/// GPU's memory are not read: waiting for them would cost more than the tile; those are the numbers that the same code makes for all
/// devices.
void check_key_index(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings) {
  const std::int64_t tokens = keys.k.dim(0);
  if (tokens == 0 || keys.index.device() == Device::cuda) return;
  const std::int64_t first = keys.index.as<std::int64_t>()[0], end = keys.index.as<std::int64_t>()[tokens - 1] + 1;
  CAPSTAN_CHECK(first % settings.tile == 0, "a key chunk begins at {}, not at a multiple of tile {}", first,
                settings.tile);
  CAPSTAN_CHECK(end - first == tokens, "{} keys with indices from {} to {}", tokens, first, end - 1);
  bool fixed_point = bool(keys.terms.offset);
  for (const GateRule& rule : settings.gates) {
    fixed_point = fixed_point || rule.gates != Gates::none;
    CAPSTAN_CHECK(rule.block == 0 || first % rule.block == 0, "a key chunk begins at {}, not at a multiple of block {}",
                  first, rule.block);
  }
  if (fixed_point && queries.q.type() == DType::f64 && end >= longest_f64_sequence)
    fail(ExitCode::config,
         "CoPE and other sums over tokens in f64 count in units of 2^-44: sequences are below {} tokens, this one "
         "reaches {}: use f32",
         longest_f64_sequence, end);
}

void check_chunks(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings) {
  const Operands operands("attention", queries.q);
  const Shape &q = queries.q.shape(), &k = keys.k.shape();
  CAPSTAN_CHECK(q.rank() == 3 && k.rank() == 3 && q[2] == k[2] && k[1] > 0 && q[1] % k[1] == 0, "q {} k {}", q.text(),
                k.text());
  operands.check("k", keys.k, k);
  operands.check("v", keys.v, k);
  if (keys.z) operands.check_wide("z", keys.z, k);
  operands.check("query index", queries.index, {q[0]}, DType::i64);
  operands.check("query document", queries.document, {q[0]}, DType::i64);
  operands.check("key index", keys.index, {k[0]}, DType::i64);
  operands.check("key document", keys.document, {k[0]}, DType::i64);
  CAPSTAN_CHECK(settings.tile >= 1 && settings.tile <= largest_tile, "tile {}", settings.tile);
  CAPSTAN_CHECK(settings.dropout.rate >= 0 && settings.dropout.rate < 1, "dropout of {}", settings.dropout.rate);
  for (int which = 0; which < gated_sums; ++which) check_gates(operands, which, queries, keys, settings.gates[which]);
  check_order_free(operands, queries, keys, settings.shared);
  check_key_index(queries, keys, settings);
}

/// What a gated sum leaves: carry [T, H] and horizon [query tiles, H].
void check_carried(const View& carry, const View& horizon, const QueryChunk& queries, const AttentionSettings& settings,
                   int which) {
  if (settings.gates[which].gates == Gates::none) return;
  const std::int64_t rows = queries.q.dim(0), heads = queries.q.dim(1);
  const Operands operands("attention state", queries.q);
  operands.check("carry", carry, {rows, heads}, DType::i64);
  operands.check("horizon", horizon, {(rows + settings.tile - 1) / settings.tile, heads}, DType::i64);
}

/// Gradients have the shapes of what they are of, and are there only if it is. They are sums: wide.
void check_gradients(const AttentionGradients& out, const QueryChunk& queries, const KeyChunk& keys,
                     const SharedTerms& shared) {
  const Operands operands("attention gradient", queries.q);
  const auto look = [&](const char* name, const View& gradient, const View& of) {
    if (!gradient) return;
    CAPSTAN_CHECK(of, "a gradient of {}, which is absent", name);
    operands.check_wide(name, gradient, of.shape());
  };
  operands.check_wide("dq", out.dq, queries.q.shape());
  operands.check_wide("dk", out.dk, keys.k.shape());
  operands.check_wide("dv", out.dv, keys.v.shape());
  look("z", out.dz, keys.z);
  for (int which = 0; which < gated_sums; ++which) {
    look("table", out.rows.table[which], queries.terms.table[which]);
    look("gate_q", out.rows.gate_q[which], queries.terms.gate_q[which]);
    look("gate_k", out.keys.gate_k[which], keys.terms.gate_k[which]);
  }
  look("row offset", out.rows.offset, queries.terms.offset);
  look("key offset", out.keys.offset, keys.terms.offset);
  look("offset_table", out.rows.offset_table, queries.terms.offset_table);
  look("relative", out.rows.relative, queries.terms.relative);
  look("distance_table", out.shared.distance_table, shared.distance_table);
  look("fire in", out.shared.fire.in, shared.fire.in);
  look("fire in_bias", out.shared.fire.in_bias, shared.fire.in_bias);
  look("fire out", out.shared.fire.out, shared.fire.out);
  look("fire out_bias", out.shared.fire.out_bias, shared.fire.out_bias);
  look("fire scale", out.shared.fire.scale, shared.fire.scale);
}

double real_value(double x) { return x; }
double real_value(BFloat16 x) { return double(to_float(x)); }

/// Larger than any real logit's negative, yet finite: no inf - inf anywhere.
constexpr double no_key_yet = -1e30;

}  // namespace

void attention_begin(const AttentionState& state) {
  if (state.o.device() == Device::cuda) return cuda::attention_begin(state, no_key_yet);
  with_real(state.o.type(), [&](auto real) {
    using Real = decltype(real);
    std::fill_n(state.m.as<Real>(), state.m.elements(), Real(no_key_yet));
  });
  state.l.fill_zero();
  state.o.fill_zero();
  for (int which = 0; which < gated_sums; ++which) {
    if (!state.carry[which]) continue;
    state.carry[which].fill_zero();
    std::fill_n(state.horizon[which].as<std::int64_t>(), state.horizon[which].elements(), std::int64_t(-1));
  }
}

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats* stats) {
  check_chunks(queries, keys, settings);
  const std::int64_t rows = queries.q.dim(0), heads = queries.q.dim(1), depth = queries.q.dim(2);
  const Operands operands("attention forward", queries.q);
  operands.check_wide("o", state.o, {rows, heads, keys.z ? 2 * depth : depth});
  operands.check_wide("m", state.m, {rows, heads});
  operands.check_wide("l", state.l, {rows, heads});
  for (int which = 0; which < gated_sums; ++which)
    check_carried(state.carry[which], state.horizon[which], queries, settings, which);
  if (queries.q.device() == Device::cuda && !stats) return cuda::attention_forward(state, queries, keys, settings);
  AttentionStats unused;
  pick(queries.q, ref::attention_forward, cpu::attention_forward, cuda::attention_forward)(
      state, queries, keys, settings, stats ? *stats : unused);
}

void attention_finish(const AttentionState& state) {
  if (state.o.device() == Device::cuda) return cuda::attention_finish(state);
  with_real(state.o.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t columns = state.o.dim(-1);
    Real *m = state.m.as<Real>(), *l = state.l.as<Real>(), *o = state.o.as<Real>();
    parallel_rows(state.m.elements(), columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const bool seen = l[at] > 0;
        const Real inverse = seen ? 1 / l[at] : 0;
        m[at] = seen ? m[at] + std::log(l[at]) : std::numeric_limits<Real>::infinity();
        for (std::int64_t e = 0; e < columns; ++e) o[at * columns + e] *= inverse;
      }
    });
  });
}

void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  check_chunks(queries, keys, settings);
  CAPSTAN_CHECK(which >= 0 && which < gated_sums && settings.gates[which].gates != Gates::none, "gated sum {}", which);
  Operands("attention_gate_sum", queries.q).check("sum", sum, {queries.q.dim(0), queries.q.dim(1)}, DType::i64);
  sum.fill_zero();
  pick(queries.q, ref::attention_gate_sum, cpu::attention_gate_sum, cuda::attention_gate_sum)(sum, which, queries, keys,
                                                                                              settings);
}

namespace {

template <class Real, class Stored> void delta_rows(const View& delta, const View& d_o, const View& o) {
  const std::int64_t columns = o.dim(-1);
  parallel_rows(delta.elements(), columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const Stored *d = d_o.as<Stored>() + at * columns, *x = o.as<Stored>() + at * columns;
      double sum = 0;
      for (std::int64_t e = 0; e < columns; ++e) sum += real_value(d[e]) * real_value(x[e]);
      delta.as<Real>()[at] = Real(sum);
    }
  });
}

}  // namespace

void attention_delta(const View& delta, const View& d_o, const View& o) {
  const Operands operands("attention_delta", o);
  operands.check("d_o", d_o, o.shape());
  operands.check("delta", delta, delta.shape(), wide(o.type()));
  CAPSTAN_CHECK(delta.elements() * o.dim(-1) == o.elements(), "delta {} of o {}", delta.shape().text(),
                o.shape().text());
  if (o.device() == Device::cuda) return cuda::attention_delta(delta, d_o, o);
  if (o.type() == DType::bf16) return delta_rows<float, BFloat16>(delta, d_o, o);
  with_real(o.type(), [&](auto real) { delta_rows<decltype(real), decltype(real)>(delta, d_o, o); });
}

void attention_backward_begin(const AttentionBackwardState& state, const AttentionSaved& saved) {
  for (int which = 0; which < gated_sums; ++which) {
    if (!state.carry[which]) continue;
    state.carry[which].copy_from(saved.carry[which]);
    state.gate_grad[which].fill_zero();
  }
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  check_chunks(queries, keys, settings);
  check_gradients(out, queries, keys, settings.shared);
  const std::int64_t rows = queries.q.dim(0), heads = queries.q.dim(1), depth = queries.q.dim(2);
  const Operands operands("attention backward", queries.q);
  operands.check("d_o", d_o, {rows, heads, keys.z ? 2 * depth : depth});
  operands.check_wide("lse", saved.lse, {rows, heads});
  operands.check_wide("delta", saved.delta, {rows, heads});
  for (int which = 0; which < gated_sums; ++which)
    check_carried(state.carry[which], saved.horizon[which], queries, settings, which);
  pick(queries.q, ref::attention_backward, cpu::attention_backward, cuda::attention_backward)(out, state, queries, keys,
                                                                                              d_o, saved, settings);
}

}  // namespace capstan::kernels
