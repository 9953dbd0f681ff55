// The attention tile in f32 SIMD. Keys go down, queries across the lanes: L rows of a query tile lie side by side, so
// that the softmax maximum, CoPE's running gate sum and its adjoint are vertical operations, and no result depends on
// which other rows are present. Arrays named x_t are transposed: [entry][lane].

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention_devices.h"
#include "kernels/isa.h"
#include "kernels/simd_math.h"
#include "kernels/terms/cope.h"
#include "kernels/tile_mask.h"

namespace capstan::kernels::cpu {
namespace {

using Floats = std::vector<float>;
/// W floats or ints in one register, written by hand where gcc would not find them itself. W fits the instruction set: gcc
/// keeps wider ones in memory, twenty times slower.
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
std::int64_t padded(std::int64_t columns) { return columns <= 8 ? 8 : (columns + 15) / 16 * 16; }

// ---- micro-kernels --------------------------------------------------------------------------------------------------

/// c[r][lane] (+)= Σ_k a[r·row_step + k·depth_step] x[k][lane] for four rows: one chain of multiply-adds per result, in
/// the order of k.
template <int L, int W>
[[gnu::always_inline]] inline void lanes_block(float* c, const float* a, std::int64_t row_step, std::int64_t depth_step,
                                               const float* x, std::int64_t depth, bool accumulate) {
  constexpr int R = 4, N = std::min(L / W, W == 16 ? 4 : 2);  // R · N sums stay in registers: there are 32, else 16
  for (int first = 0; first < L; first += N * W) {
    Reals<W> sum[R][N];
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] = accumulate ? lanes<W>(c + r * L + first + n * W) : Reals<W>{};
    for (std::int64_t k = 0; k < depth; ++k) {
      Reals<W> b[N];
      for (int n = 0; n < N; ++n) b[n] = lanes<W>(x + k * L + first + n * W);
      for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) sum[r][n] += a[r * row_step + k * depth_step] * b[n];
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) lanes<W>(c + r * L + first + n * W) = sum[r][n];
  }
}

/// All rows, four at a time: the last rows of an unfinished four are computed too, from whatever the arrays hold there.
template <int L, int W>
[[gnu::always_inline]] inline void lanes_product(float* c, const float* a, std::int64_t row_step,
                                                 std::int64_t depth_step, const float* x, std::int64_t rows,
                                                 std::int64_t depth, bool accumulate) {
  for (std::int64_t r = 0; r < rows; r += 4)
    lanes_block<L, W>(c + r * L, a + r * row_step, row_step, depth_step, x, depth, accumulate);
}

/// c[j][column] = Σ_lane p[j][lane] b[lane][column] for eight keys.
template <int L, int W>
[[gnu::always_inline]] inline void keys_block(float* c, const float* p, const float* b, std::int64_t columns) {
  constexpr int R = 8;
  for (std::int64_t column = 0; column < columns; column += W) {
    Reals<W> sum[R] = {};
    for (int lane = 0; lane < L; ++lane) {
      const Reals<W> row = lanes<W>(b + lane * columns + column);
      for (int r = 0; r < R; ++r) sum[r] += p[r * L + lane] * row;
    }
    for (int r = 0; r < R; ++r) lanes<W>(c + r * columns + column) = sum[r];
  }
}

/// All keys, eight at a time, with the same remark.
template <int L, int W>
[[gnu::always_inline]] inline void keys_product(float* c, const float* p, const float* b, std::int64_t keys,
                                                std::int64_t columns) {
  for (std::int64_t j = 0; j < keys; j += 8) {
    if (columns == 8) keys_block<L, std::min(W, 8)>(c + j * columns, p + j * L, b, columns);
    else keys_block<L, W>(c + j * columns, p + j * L, b, columns);
  }
}

// ---- one call's arrays ----------------------------------------------------------------------------------------------

/// Sizes of a call, and scratch for one (query tile, head).
struct Problem {
  const QueryChunk& queries;
  const KeyChunk& keys;
  std::int64_t heads, groups, depth, columns, last;
  std::int64_t depth_p, columns_p;  ///< padded
  float scale;
  Floats q_t, q_rows, o_t, do_rows, table_t, dtable_t;                    // per row
  Floats k_tile, u_tile, logit, gate, position, slope, d_logit, key_sum;  // per tile
  std::vector<float> m, l, delta, gate_grad;
  std::vector<std::int64_t> carry;

  Problem(const QueryChunk& queries_in, const KeyChunk& keys_in, int lanes)
      : queries(queries_in), keys(keys_in), heads(queries.q.dim(1)), groups(keys.k.dim(1)), depth(queries.q.dim(2)),
        columns(keys.z ? 2 * depth : depth), last(queries.table ? queries.table.dim(2) - 1 : 0), depth_p(padded(depth)),
        columns_p(padded(columns)), scale(float(1 / std::sqrt(double(depth)))) {
    for (Floats* x : {&q_t, &q_rows}) x->resize(depth_p * lanes);
    for (Floats* x : {&o_t, &do_rows}) x->resize(columns_p * lanes);
    for (Floats* x : {&table_t, &dtable_t}) x->resize((last + 2) * lanes);
    k_tile.resize(largest_tile * depth_p);
    u_tile.resize(largest_tile * columns_p);
    for (Floats* x : {&logit, &gate, &position, &slope, &d_logit}) x->resize(largest_tile * lanes);
    key_sum.resize(largest_tile * std::max(depth_p, columns_p));
    for (Floats* x : {&m, &l, &delta, &gate_grad}) x->resize(lanes);
    carry.resize(lanes);
  }

  std::int64_t at(std::int64_t row, std::int64_t head) const { return row * heads + head; }
  std::int64_t group(std::int64_t head) const { return head / (heads / groups); }
};

/// Rows [begin, begin + rows) of x [T, heads, columns], one head, into lanes (and row major if `also` is given), times
/// factor.
void gather_rows(float* x_t, float* also, const View& x, std::int64_t begin, std::int64_t rows, std::int64_t head,
                 std::int64_t columns_p, int lanes, float factor) {
  const std::int64_t heads = x.dim(1), columns = x.dim(2);
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const float* source = lane < rows ? x.as<float>() + ((begin + lane) * heads + head) * columns : nullptr;
    for (std::int64_t d = 0; d < columns_p; ++d) {
      const float value = source && d < columns ? source[d] * factor : 0.0f;
      x_t[d * lanes + lane] = value;
      if (also) also[lane * columns_p + d] = value;
    }
  }
}

/// Row tables, with entry P once more behind it: the interpolation at P reads it with weight 0.
void load_table(Problem& p, std::int64_t begin, std::int64_t rows, std::int64_t head, int lanes) {
  gather_rows(p.table_t.data(), nullptr, p.queries.table, begin, rows, head, p.last + 1, lanes, 1);
  std::copy_n(&p.table_t[p.last * lanes], lanes, &p.table_t[(p.last + 1) * lanes]);
}

/// The adjoint place: x[row, head, :] = or += factor · x_t[:, lane].
void scatter_rows(const View& x, const float* x_t, std::int64_t begin, std::int64_t rows, std::int64_t head, int lanes,
                  float factor, Into into) {
  const std::int64_t heads = x.dim(1), columns = x.dim(2);
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    float* target = x.as<float>() + ((begin + lane) * heads + head) * columns;
    for (std::int64_t d = 0; d < columns; ++d)
      target[d] = (into == Into::add ? target[d] : 0.0f) + factor * x_t[d * lanes + lane];
  }
}

/// Key rows of one kv head, padded: k_tile and, with values, u_tile = [v | z].
void load_keys(Problem& p, const TilePair& tile, std::int64_t head, bool values) {
  const std::int64_t stride = p.groups * p.depth, first = tile.key_begin * stride + p.group(head) * p.depth;
  const float *k = p.keys.k.as<float>() + first, *v = p.keys.v.as<float>() + first;
  const float* z = p.keys.z ? p.keys.z.as<float>() + first : nullptr;
  const std::size_t bytes = std::size_t(p.depth) * sizeof(float);
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    std::memcpy(&p.k_tile[j * p.depth_p], k + j * stride, bytes);
    if (!values) continue;
    std::memcpy(&p.u_tile[j * p.columns_p], v + j * stride, bytes);
    if (z) std::memcpy(&p.u_tile[j * p.columns_p + p.depth], z + j * stride, bytes);
  }
}

/// key_sum [keys, padded] added to `target` [T, G, width] at the tile's keys, from column `from`.
void add_to_keys(const Problem& p, const View& target, const TilePair& tile, std::int64_t head, std::int64_t from,
                 std::int64_t padded_columns) {
  const std::int64_t stride = p.groups * p.depth;
  float* out = target.as<float>() + tile.key_begin * stride + p.group(head) * p.depth;
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (std::int64_t d = 0; d < p.depth; ++d) out[j * stride + d] += p.key_sum[j * padded_columns + from + d];
}

bool is_saturated(const Problem& p, const TilePair& tile) {
  for (std::int64_t lane = 0; lane < tile.rows; ++lane)
    if (tile.mask.allowed[lane] && !terms::saturated<float>(p.carry[lane], p.last)) return false;
  return true;
}

/// 1 where lane may see key j. Only built for tiles that are not wholly allowed; lanes beyond the rows see nothing.
template <int L>
[[gnu::always_inline]] inline void lane_mask(std::int32_t* allow, const TilePair& tile, std::int64_t j) {
  for (int lane = 0; lane < L; ++lane) allow[lane] = std::int32_t(tile.mask.allowed[lane] >> j & 1);
}

/// Sets what rows must not see to `value`.
template <int L> [[gnu::always_inline]] inline void apply_mask(float* x, const TilePair& tile, float value) {
  if (tile.mask.all && tile.rows == L) return;
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    std::int32_t allow[L];
    lane_mask<L>(allow, tile, j);
    for (int lane = 0; lane < L; ++lane) x[j * L + lane] = allow[lane] ? x[j * L + lane] : value;
  }
}

// ---- CoPE across lanes (kernels/terms/cope.h in the same order of operations) ---------------------------------------
// W lanes at a time from one end of the tile to the other. Positions are monotone along the way, so that a lane's
// place in the table moves seldom while gates are sparse, which is when many tiles are general: the table is only read,
// and its gradient only written, where some lane has moved.

template <int W> [[gnu::always_inline]] inline bool any_differs(const Ints<W>& a, const Ints<W>& b) {
  const Ints<W> moved = a ^ b;
  std::int64_t words[W / 2], any = 0;
  std::memcpy(words, &moved, sizeof words);
  for (std::int64_t word : words) any |= word;
  return any != 0;
}

/// Where positions fall in the table: weight of the entry above `low`, which row P has too (see load_table).
template <int W> struct LanePlaces {
  Ints<W> low;
  Reals<W> weight;
  [[gnu::always_inline]] explicit LanePlaces(const Reals<W>& position)
      : low(__builtin_convertvector(position, Ints<W>)), weight(position - __builtin_convertvector(low, Reals<W>)) {}
};

/// Gates and, per key, the sum of the tile's gates from there to its near end; sum: of all.
template <int L, int W> [[gnu::always_inline]] inline void cope_gates(Problem& p, const TilePair& tile, float* sum) {
  float *gate = p.gate.data(), *position = p.position.data();
  const float* u = p.logit.data();
  for (std::int64_t at = 0; at < tile.keys * L; ++at) gate[at] = fast_sigmoid(u[at]);
  apply_mask<L>(gate, tile, 0.0f);
  for (int n = 0; n < L; n += W) {
    Reals<W> running = {};
    for (std::int64_t j = tile.keys - 1; j >= 0; --j) {
      running += lanes<W>(gate + j * L + n);
      lanes<W>(position + j * L + n) = running;
    }
    lanes<W>(sum + n) = running;
  }
}

/// position = min(P, carry + sum so far); logit += table interpolated there; slope = table[ceil] - table[floor] (0 at
/// integers).
template <int L, int W>
[[gnu::always_inline]] inline void cope_bias(Problem& p, const TilePair& tile, const float* carry) {
  const Reals<W> last = Reals<W>{} + float(p.last);
  for (int n = 0; n < L; n += W) {
    float *logit = &p.logit[n], *position = &p.position[n], *slope = &p.slope[n];
    const float* table = &p.table_t[n];
    Ints<W> low = Ints<W>{} - 1;
    Reals<W> below = {}, above = {};
    for (std::int64_t at = 0; at < tile.keys * L; at += L) {
      const Reals<W> free = lanes<W>(carry + n) + lanes<W>(position + at), bounded = free < last ? free : last;
      const LanePlaces<W> place(bounded);
      if (any_differs<W>(place.low, low)) {
        low = place.low;
        for (int lane = 0; lane < W; ++lane) below[lane] = table[low[lane] * L + lane];
        for (int lane = 0; lane < W; ++lane) above[lane] = table[(low[lane] + 1) * L + lane];
      }
      lanes<W>(position + at) = bounded;
      lanes<W>(logit + at) += (1 - place.weight) * below + place.weight * above;
      lanes<W>(slope + at) = place.weight > 0 ? above - below : Reals<W>{};
    }
  }
}

/// d_logit (of biased logits) → d_u, far → near; dtable and gate_grad as in terms::positions_backward.
template <int L, int W> [[gnu::always_inline]] inline void cope_backward(Problem& p, const TilePair& tile) {
  for (int n = 0; n < L; n += W) {
    float *d_logit = &p.d_logit[n], *dtable = &p.dtable_t[n];
    const float *gate = &p.gate[n], *position = &p.position[n], *slope = &p.slope[n];
    Ints<W> low = LanePlaces<W>(lanes<W>(position)).low;
    Reals<W> below = {}, above = {},
             gate_grad = lanes<W>(&p.gate_grad[n]);  // below, above: not yet in dtable[low], dtable[low + 1]
    const auto flush = [&](const Ints<W>& next) __attribute__((always_inline)) {
      for (int lane = 0; lane < W; ++lane) {
        if (next[lane] == low[lane]) continue;
        dtable[low[lane] * L + lane] += below[lane];
        dtable[(low[lane] + 1) * L + lane] += above[lane];
        below[lane] = above[lane] = 0;
      }
      low = next;
    };
    for (std::int64_t at = 0; at < tile.keys * L; at += L) {
      const LanePlaces<W> place(lanes<W>(position + at));
      if (any_differs<W>(place.low, low)) flush(place.low);
      const Reals<W> d = lanes<W>(d_logit + at), g = lanes<W>(gate + at);
      below += (1 - place.weight) * d;
      above += place.weight * d;
      gate_grad += d * lanes<W>(slope + at);
      lanes<W>(d_logit + at) = d + g * (1 - g) * gate_grad;
    }
    flush(Ints<W>{} - 1);
    lanes<W>(&p.gate_grad[n]) = gate_grad;
  }
}

template <int L> [[gnu::always_inline]] inline void add_row_constant(Problem& p, const TilePair& tile) {
  const float* constant = &p.table_t[p.last * L];
  float* logit = p.logit.data();
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) logit[j * L + lane] += constant[lane];
}

template <int L> void carry_values(const Problem& p, float* value) {
  for (int lane = 0; lane < L; ++lane) value[lane] = terms::carry_value<float>(p.carry[lane], p.last);
}

// ---- forward --------------------------------------------------------------------------------------------------------

/// m' = max(m, max logit), rescale, add the tile (attention_tile.h). logit becomes the weights.
template <int L, int W> [[gnu::always_inline]] inline void softmax_step(Problem& p, const TilePair& tile) {
  float *logit = p.logit.data(), *m = p.m.data(), *l = p.l.data();
  float highest[L], shrink[L];
  for (int lane = 0; lane < L; ++lane) highest[lane] = m[lane];
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane)
      highest[lane] = logit[j * L + lane] > highest[lane] ? logit[j * L + lane] : highest[lane];
  for (int lane = 0; lane < L; ++lane) {
    shrink[lane] = fast_exp(m[lane] - highest[lane]);
    m[lane] = highest[lane];
    l[lane] *= shrink[lane];
  }
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      logit[j * L + lane] = fast_exp(logit[j * L + lane] - highest[lane]);
      l[lane] += logit[j * L + lane];
    }
  float* o = p.o_t.data();
  for (std::int64_t e = 0; e < p.columns_p; ++e)
    for (int lane = 0; lane < L; ++lane) o[e * L + lane] *= shrink[lane];
  lanes_product<L, W>(o, p.u_tile.data(), 1, p.columns_p, logit, p.columns_p, tile.keys, true);
}

/// Gates and bias of a tile in forward; true if it was saturated.
template <int L, int W>
[[gnu::always_inline]] inline bool cope_forward(Problem& p, const AttentionState& state, const TilePair& tile,
                                                std::int64_t head, const AttentionSettings& settings,
                                                AttentionStats& stats) {
  const bool full = is_saturated(p, tile);
  if (full && settings.saturation) {
    add_row_constant<L>(p, tile);
    return true;
  }
  if (!full) {
    state.horizon.as<std::int64_t>()[tile.query_begin / settings.tile * p.heads + head] =
        p.keys.index.as<std::int64_t>()[tile.key_begin];
    for (std::int64_t lane = 0; lane < tile.rows; ++lane)
      state.horizon_carry.as<std::int64_t>()[p.at(tile.query_begin + lane, head)] = p.carry[lane];
  }
  float carry[L], sum[L];
  carry_values<L>(p, carry);
  cope_gates<L, W>(p, tile, sum);
  cope_bias<L, W>(p, tile, carry);
  for (std::int64_t lane = 0; lane < tile.rows; ++lane) {
    if (!full) p.carry[lane] += terms::fixed_sum(sum[lane]);
    stats.gate_sum += double(sum[lane]);
    stats.gates += __builtin_popcountll(tile.mask.allowed[lane]);
  }
  return full;
}

template <int L, int W>
[[gnu::always_inline]] inline void forward_head(Problem& p, const AttentionState& state,
                                                const std::vector<TilePair>& pairs, std::int64_t head,
                                                const AttentionSettings& settings, AttentionStats& stats) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  gather_rows(p.q_t.data(), nullptr, p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  gather_rows(p.o_t.data(), nullptr, state.o, begin, rows, head, p.columns_p, L, 1);
  if (p.queries.table) load_table(p, begin, rows, head, L);
  for (std::int64_t lane = 0; lane < L; ++lane) {
    const bool live = lane < rows;
    p.m[lane] = live ? state.m.as<float>()[p.at(begin + lane, head)] : 0;
    p.l[lane] = live ? state.l.as<float>()[p.at(begin + lane, head)] : 0;
    p.carry[lane] = live && state.carry ? state.carry.as<std::int64_t>()[p.at(begin + lane, head)] : 0;
  }
  for (const TilePair& tile : pairs) {
    load_keys(p, tile, head, true);
    lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
    stats.tiles += 1;
    if (p.queries.table) stats.saturated_tiles += cope_forward<L, W>(p, state, tile, head, settings, stats);
    apply_mask<L>(p.logit.data(), tile, masked);
    softmax_step<L, W>(p, tile);
  }
  scatter_rows(state.o, p.o_t.data(), begin, rows, head, L, 1, Into::overwrite);
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    state.m.as<float>()[p.at(begin + lane, head)] = p.m[lane];
    state.l.as<float>()[p.at(begin + lane, head)] = p.l[lane];
    if (state.carry) state.carry.as<std::int64_t>()[p.at(begin + lane, head)] = p.carry[lane];
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

/// Logits of a tile as forward had them; leaves gate, position, slope of general tiles.
template <int L, int W>
[[gnu::always_inline]] inline void recompute_logits(Problem& p, const TilePair& tile, bool general, bool at_horizon) {
  lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
  if (general) {
    float carry[L], sum[L];
    cope_gates<L, W>(p, tile, sum);
    // Entry carry: saved at the horizon; nearer, the farther tile's entry minus what this tile adds (exact integers).
    for (std::int64_t lane = 0; !at_horizon && lane < tile.rows; ++lane) p.carry[lane] -= terms::fixed_sum(sum[lane]);
    carry_values<L>(p, carry);
    cope_bias<L, W>(p, tile, carry);
  } else if (p.queries.table) {
    add_row_constant<L>(p, tile);
  }
  apply_mask<L>(p.logit.data(), tile, masked);
}

template <int L, int W>
[[gnu::always_inline]] inline void backward_tile(Problem& p, const AttentionGradients& out, const TilePair& tile,
                                                 std::int64_t head, bool general, bool at_horizon, const float* do_t,
                                                 float* dq_t) {
  load_keys(p, tile, head, true);
  recompute_logits<L, W>(p, tile, general, at_horizon);
  float *weight = p.logit.data(), *d_logit = p.d_logit.data();
  // A = exp(logit - lse); d_logit = A (dO·U - delta)
  lanes_product<L, W>(d_logit, p.u_tile.data(), p.columns_p, 1, do_t, tile.keys, p.columns_p, false);
  for (std::int64_t j = 0; j < tile.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      weight[j * L + lane] = fast_exp(weight[j * L + lane] - p.m[lane]);
      d_logit[j * L + lane] = weight[j * L + lane] * (d_logit[j * L + lane] - p.delta[lane]);
    }
  // dU += A dO
  keys_product<L, W>(p.key_sum.data(), weight, p.do_rows.data(), tile.keys, p.columns_p);
  add_to_keys(p, out.dv, tile, head, 0, p.columns_p);
  if (out.dz) add_to_keys(p, out.dz, tile, head, p.depth, p.columns_p);
  if (general) {
    cope_backward<L, W>(p, tile);
  } else if (p.queries.table) {
    for (int n = 0; n < L; n += W) {  // summed like `below` in cope_backward: the same bits
      Reals<W> sum = {};
      for (std::int64_t j = 0; j < tile.keys; ++j) sum += lanes<W>(d_logit + j * L + n);
      lanes<W>(&p.dtable_t[p.last * L + n]) += sum;
    }
  }
  // dq += s d k (s when stored), dk += d (s q)
  lanes_product<L, W>(dq_t, p.k_tile.data(), 1, p.depth_p, d_logit, p.depth_p, tile.keys, true);
  keys_product<L, W>(p.key_sum.data(), d_logit, p.q_rows.data(), tile.keys, p.depth_p);
  add_to_keys(p, out.dk, tile, head, 0, p.depth_p);
}

template <int L, int W>
[[gnu::always_inline]] inline void backward_head(Problem& p, const AttentionGradients& out,
                                                 const AttentionBackwardState& state, const View& d_o,
                                                 const AttentionSaved& saved, const std::vector<TilePair>& pairs,
                                                 std::int64_t head, const AttentionSettings& settings) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  const bool cope = bool(p.queries.table);
  gather_rows(p.q_t.data(), p.q_rows.data(), p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  gather_rows(p.o_t.data(), p.do_rows.data(), d_o, begin, rows, head, p.columns_p, L, 1);  // o_t holds dO here
  if (cope) load_table(p, begin, rows, head, L);
  std::fill(p.dtable_t.begin(), p.dtable_t.end(), 0.0f);
  Floats dq_t(p.depth_p * L, 0.0f);
  for (std::int64_t lane = 0; lane < L; ++lane) {
    const bool live = lane < rows;
    const std::int64_t at = p.at(begin + lane, head);
    p.m[lane] = live ? saved.lse.as<float>()[at] : 0;
    p.delta[lane] = live ? saved.delta.as<float>()[at] : 0;
    p.carry[lane] = live && cope ? state.carry.as<std::int64_t>()[at] : 0;
    p.gate_grad[lane] = live && cope ? state.gate_grad.as<float>()[at] : 0;
  }
  const std::int64_t horizon = cope ? saved.horizon.as<std::int64_t>()[begin / settings.tile * p.heads + head] : 0;
  for (const TilePair& tile : pairs) {
    const std::int64_t first = p.keys.index.as<std::int64_t>()[tile.key_begin];
    backward_tile<L, W>(p, out, tile, head, cope && horizon >= 0 && first >= horizon, first == horizon, p.o_t.data(),
                        dq_t.data());
  }
  scatter_rows(out.dq, dq_t.data(), begin, rows, head, L, p.scale, Into::add);
  if (!cope) return;
  scatter_rows(out.dtable, p.dtable_t.data(), begin, rows, head, L, 1, Into::add);
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    state.carry.as<std::int64_t>()[p.at(begin + lane, head)] = p.carry[lane];
    state.gate_grad.as<float>()[p.at(begin + lane, head)] = p.gate_grad[lane];
  }
}

template <int L, int W>
[[gnu::always_inline]] inline void gate_sum_head(Problem& p, const View& total, const std::vector<TilePair>& pairs,
                                                 std::int64_t head) {
  const std::int64_t begin = pairs[0].query_begin, rows = pairs[0].rows;
  gather_rows(p.q_t.data(), nullptr, p.queries.q, begin, rows, head, p.depth_p, L, p.scale);
  for (const TilePair& tile : pairs) {
    load_keys(p, tile, head, false);
    lanes_product<L, W>(p.logit.data(), p.k_tile.data(), p.depth_p, 1, p.q_t.data(), tile.keys, p.depth_p, false);
    float sum[L];
    cope_gates<L, W>(p, tile, sum);
    for (std::int64_t lane = 0; lane < rows; ++lane)
      total.as<std::int64_t>()[p.at(begin + lane, head)] += terms::fixed_sum(sum[lane]);
  }
}

template <int L, int W> struct Width { static constexpr int lanes = L, registers = W; };

/// Calls body(width, problem, pairs, head) for each query tile and head, compiled for the best instruction set. A chunk of
/// few rows (small tiles, a generated token) gets 16 lanes, else 64.
template <class Body>
void for_each_head(const QueryChunk& queries, const KeyChunk& keys, std::int64_t tile, Walk walk, const Body& body) {
  const Isa isa = best_isa();
  const bool few = isa != Isa::portable && std::min(tile, queries.q.dim(0)) <= 16;
  Problem p(queries, keys, few ? 16 : 64);
  for_each_query_tile(queries, keys, tile, walk, [&](std::int64_t, const std::vector<TilePair>& pairs) {
    const auto run = [&](auto width) __attribute__((always_inline)) {
      for (std::int64_t head = 0; head < p.heads; ++head) body(width, p, pairs, head);
    };
    if (isa == Isa::portable) run_portable([&]() __attribute__((always_inline)) { run(Width<64, 4>{}); });
    else if (isa == Isa::avx2 && few) run_avx2([&]() __attribute__((always_inline)) { run(Width<16, 8>{}); });
    else if (isa == Isa::avx2) run_avx2([&]() __attribute__((always_inline)) { run(Width<64, 8>{}); });
    else if (few) run_avx512([&]() __attribute__((always_inline)) { run(Width<16, 16>{}); });
    else run_avx512([&]() __attribute__((always_inline)) { run(Width<64, 16>{}); });
  });
}

}  // namespace

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  for_each_head(
      queries, keys, settings.tile, Walk::near_to_far,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head) __attribute__((
          always_inline)) { forward_head<width.lanes, width.registers>(p, state, pairs, head, settings, stats); });
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  for_each_head(
      queries, keys, settings.tile, Walk::far_to_near,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head)
          __attribute__((always_inline)) {
            backward_head<width.lanes, width.registers>(p, out, state, d_o, saved, pairs, head, settings);
          });
}

void attention_gate_sum(const View& sum, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  for_each_head(
      queries, keys, settings.tile, Walk::near_to_far,
      [&](auto width, Problem& p, const std::vector<TilePair>& pairs, std::int64_t head)
          __attribute__((always_inline)) { gate_sum_head<width.lanes, width.registers>(p, sum, pairs, head); });
}

}  // namespace capstan::kernels::cpu
