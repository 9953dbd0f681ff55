#pragma once
// Forward, backward and gate sums of a run of query tiles, and the pieces of work that they are cut into, over `Products`, the
// products between a key tile and a query tile (kernels/attention_f32_cpu.h, attention_bf16_cpu.h).
//
// Keys go down, queries across the lanes: the rows of a query tile lie side by side, so that the softmax maximum, a gated sum
// and its adjoint are vertical operations, and no result depends on which other rows are present. What runs in parallel
// never changes a bit: in forward a run of query tiles and a head is independent of all others; in backward a kv head is,
// and what kv heads share is added in their order.

#include <cmath>
#include <vector>

#include "kernels/attention_call_cpu.h"
#include "kernels/attention_terms_cpu.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

// ---- forward --------------------------------------------------------------------------------------------------------

/// A logit with the constants of its row, if `biased`.
template <bool biased>
[[gnu::always_inline]] inline float with_constants(float logit, const RowConstants& constants, int lane) {
  return biased ? (logit + constants.first[lane]) + constants.second[lane] : logit;
}

/// logit → exp(logit - m), with m, l and shrink = exp(old m - m) brought up to date.
template <int L, bool biased>
[[gnu::always_inline]] inline void softmax_weights(KeyTile& t, RowTile& r, float* shrink,
                                                   const RowConstants& constants) {
  float *logit = t.logit.data(), *m = r.m.data(), *l = r.l.data();
  // The constants join the maximum afterwards: rounding keeps the order of numbers, so that the bits are the same.
  alignas(64) float highest[L];
  for (int lane = 0; lane < L; ++lane) highest[lane] = biased ? masked : m[lane];
  for (std::int64_t j = 0; j < t.keys; ++j)
    for (int lane = 0; lane < L; ++lane)
      highest[lane] = logit[j * L + lane] > highest[lane] ? logit[j * L + lane] : highest[lane];
  for (int lane = 0; lane < L; ++lane) {
    const float of_tile = with_constants<biased>(highest[lane], constants, lane);
    highest[lane] = of_tile > m[lane] ? of_tile : m[lane];
    shrink[lane] = fast_exp(m[lane] - highest[lane]);
    m[lane] = highest[lane];
  }
  float sum[L] = {};  // of the tile alone: one chain over all keys would lose bits as it grows
  for (std::int64_t j = 0; j < t.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      float& weight = logit[j * L + lane];
      weight = fast_exp(with_constants<biased>(weight, constants, lane) - highest[lane]);
      sum[lane] += weight;
    }
  for (int lane = 0; lane < L; ++lane) l[lane] = l[lane] * shrink[lane] + sum[lane];
}

template <class Products>
[[gnu::always_inline]] inline void softmax_step(const Call& call, KeyTile& t, RowTile& r,
                                                const RowConstants& constants) {
  constexpr int L = Products::row_lanes;
  alignas(64) float shrink[L];
  if (constants.present) softmax_weights<L, true>(t, r, shrink, constants);
  else softmax_weights<L, false>(t, r, shrink, constants);
  if (r.dropout) {
    find_kept<L>(call, t, r);
    for (std::int64_t at = 0; at < t.keys * L; ++at) t.logit[std::size_t(at)] *= t.kept[std::size_t(at)];
  }
  Products::add_values(call, t, r, shrink);
}

template <class Products>
[[gnu::always_inline]] inline void forward_tile(const Call& call, const AttentionState& state, KeyTile& t, RowTile& r,
                                                AttentionStats& stats) {
  constexpr int L = Products::row_lanes, W = Products::width;
  Products::scores(call, t, r);
  stats.tiles += 1;
  RowConstants constants;
  if (!r.sums.empty()) constants = gated_forward<L, W>(call, state, t, r, stats);
  if (r.order_free) add_order_free<L, W>(call, constants, t, r);
  apply_mask<L>(t.logit.data(), r.pair, masked);
  softmax_step<Products>(call, t, r, constants);
}

/// A run of query tiles against all keys of the chunk, near → far, for one head.
template <class Products>
[[gnu::always_inline]] inline void forward_run(const Call& call, Scratch& s, const AttentionState& state,
                                               std::int64_t head, AttentionStats& stats) {
  const auto begin = [&](RowTile & r) __attribute__((always_inline)) {
    Products::load_queries(call, r);
    gather_rows(r.o_t.data(), nullptr, state.o, r.begin, r.rows, head, call.columns_p, Products::row_lanes, 1);
    r.begin_terms(call);
    r.read(r.m.data(), state.m, call);
    r.read(r.l.data(), state.l, call);
    for (GatedLanes& g : r.sums) r.read(g.carry.data(), state.carry[g.which], call);
  };
  for_each_key_tile(
      call.keys, call.settings.tile, Walk::near_to_far, [&](std::int64_t key_begin) __attribute__((always_inline)) {
        s.meet_keys(
            call, key_begin, begin,
            [&]() __attribute__((always_inline)) { Products::load_keys(call, s.key_tile, head, Needs::forward); },
            [&](RowTile & r)
                __attribute__((always_inline)) { forward_tile<Products>(call, state, s.key_tile, r, stats); });
      });
  for (RowTile& r : s.run) {
    if (!r.begun) continue;
    scatter_rows(state.o, r.o_t.data(), r.begin, r.rows, head, Products::row_lanes, 1, Into::overwrite);
    r.write(state.m, r.m.data(), call);
    r.write(state.l, r.l.data(), call);
    for (GatedLanes& g : r.sums) r.write(state.carry[g.which], g.carry.data(), call);
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

/// A = exp(logit - lse) in t.logit; d_logit = A (dO·U - delta). If `biased`, also d_sum [lane] = Σ_j d_logit.
template <int L, bool biased>
[[gnu::always_inline]] inline void weights_backward(KeyTile& t, const RowTile& r, const RowConstants& constants,
                                                    float* d_sum_out) {
  float *weight = t.logit.data(), *d_logit = t.d_logit.data(), d_sum[L] = {};
  const float *lse = r.m.data(), *delta = r.delta.data();
  for (std::int64_t j = 0; j < t.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      const std::int64_t at = j * L + lane;
      weight[at] = fast_exp(with_constants<biased>(weight[at], constants, lane) - lse[lane]);
      d_logit[at] = weight[at] * (d_logit[at] - delta[lane]);
      if (biased) d_sum[lane] += d_logit[at];
    }
  if (biased) std::copy_n(d_sum, L, d_sum_out);
}

/// The same with dropout: logit becomes what O was made of, A times `kept`.
template <int L>
[[gnu::always_inline]] inline void dropped_weights_backward(const Call& call, KeyTile& t, const RowTile& r) {
  float *weight = t.logit.data(), *d_logit = t.d_logit.data();
  const float *lse = r.m.data(), *delta = r.delta.data();
  find_kept<L>(call, t, r);
  for (std::int64_t j = 0; j < t.keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      const std::int64_t at = j * L + lane;
      const float full = fast_exp(weight[at] - lse[lane]);
      d_logit[at] = full * (t.kept[at] * d_logit[at] - delta[lane]);
      weight[at] = full * t.kept[at];
    }
}

template <class Products>
[[gnu::always_inline]] inline void backward_tile(const Call& call, const AttentionGradients& out,
                                                 const AttentionSaved& saved, KeyTile& t, RowTile& r) {
  constexpr int L = Products::row_lanes, W = Products::width;
  Products::scores(call, t, r);
  RowConstants constants;
  if (!r.sums.empty()) constants = gated_again<L, W>(call, saved, t, r);
  if (r.order_free) add_order_free<L, W>(call, constants, t, r);
  if (r.dropout) add_constants<L, W>(t.logit.data(), constants, t.keys);
  apply_mask<L>(t.logit.data(), r.pair, masked);
  Products::value_scores(call, t, r);
  alignas(64) float d_sum[L];
  if (r.dropout) dropped_weights_backward<L>(call, t, r);
  else if (constants.present) weights_backward<L, true>(t, r, constants, d_sum);
  else weights_backward<L, false>(t, r, constants, nullptr);
  Products::add_to_values(call, t, r);
  const float* d_score = terms_backward<L, W>(call, out, constants.present ? d_sum : nullptr, t, r);
  Products::add_to_queries(call, t, r, d_score);
  Products::add_to_keys(call, t, r, d_score);
}

/// Sums of a key tile over the run.
[[gnu::always_inline]] inline void clear_key_sums(const Call& call, KeyTile& t) {
  std::fill_n(t.dk.data(), largest_tile * row_stride(call.depth_p), 0.0f);
  std::fill_n(t.du.data(), largest_tile * row_stride(call.columns_p), 0.0f);
}

[[gnu::always_inline]] inline void add_key_sums(const Call& call, const AttentionGradients& out, const KeyTile& t,
                                                std::int64_t head) {
  const auto row_of = [&](std::int64_t j) __attribute__((always_inline)) { return t.begin + j; };
  add_to_keys(call, out.dk, t.dk.data(), t.keys, row_of, head, 0, call.depth_p);
  add_to_keys(call, out.dv, t.du.data(), t.keys, row_of, head, 0, call.columns_p);
  if (out.dz) add_to_keys(call, out.dz, t.du.data(), t.keys, row_of, head, call.depth, call.columns_p);
}

/// What backward reads beside queries and keys, and where it writes.
struct BackwardArrays {
  const AttentionGradients& out;
  const AttentionBackwardState& state;
  const View& d_o;
  const AttentionSaved& saved;
};

/// A run of query tiles against all keys of the chunk, far → near, for one head.
template <class Products>
[[gnu::always_inline]] inline void backward_run(const Call& call, Scratch& s, const BackwardArrays& b,
                                                std::int64_t head, float* fire_shared) {
  const auto begin = [&](RowTile & r) __attribute__((always_inline)) {
    Products::load_queries(call, r, b.d_o);
    std::fill_n(r.dq_t.data(), call.depth_p * call.lane_count, 0.0f);
    r.begin_terms(call);
    r.read(r.m.data(), b.saved.lse, call);
    r.read(r.delta.data(), b.saved.delta, call);
    for (GatedLanes& g : r.sums) {
      r.read(g.carry.data(), b.state.carry[g.which], call);
      r.read(g.gate_grad.data(), b.state.gate_grad[g.which], call);
    }
  };
  KeyTile& t = s.key_tile;
  for_each_key_tile(
      call.keys, call.settings.tile, Walk::far_to_near, [&](std::int64_t key_begin) __attribute__((always_inline)) {
        const auto load = [&]() __attribute__((always_inline)) {
          Products::load_keys(call, t, head, Needs::backward);
          clear_key_sums(call, t);
        };
        if (s.meet_keys(
                call, key_begin, begin, load, [&](RowTile & r) __attribute__((always_inline)) {
                  backward_tile<Products>(call, b.out, b.saved, t, r);
                }))
          add_key_sums(call, b.out, t, head);
      });
  for (RowTile& r : s.run) {
    if (!r.begun) continue;
    scatter_rows(b.out.dq, r.dq_t.data(), r.begin, r.rows, head, Products::row_lanes, call.scale, Into::add);
    end_terms<Products::row_lanes>(call, b.out, b.state, r, fire_shared);
  }
}

// ---- gate sums ------------------------------------------------------------------------------------------------------

template <class Products>
[[gnu::always_inline]] inline void gate_sum_tile(const Call& call, const View& total, int which, KeyTile& t,
                                                 RowTile& r) {
  constexpr int L = Products::row_lanes, W = Products::width;
  GatedLanes& g = r.sums[0].which == which ? r.sums[0] : r.sums[1];
  g.find_gates(r.pair);
  if (!g.gates.any) return;
  if (!g.separate) Products::scores(call, t, r);
  g.path = terms::TilePath(true, g.gates, call.settings.flat_tiles);
  read_gates<L, W>(g, t.logit.data(), r.pair, r.head);
  for (std::int64_t lane = 0; lane < r.rows; ++lane)
    total.as<std::int64_t>()[call.at(r.begin + lane, r.head)] += g.fixed_total(lane);
}

template <class Products>
[[gnu::always_inline]] inline void gate_sum_run(const Call& call, Scratch& s, const View& total, int which,
                                                std::int64_t head) {
  const auto begin = [&](RowTile & r) __attribute__((always_inline)) {
    Products::load_queries(call, r);
    r.begin_terms(call);
  };
  for_each_key_tile(
      call.keys, call.settings.tile, Walk::near_to_far, [&](std::int64_t key_begin) __attribute__((always_inline)) {
        s.meet_keys(
            call, key_begin,
            begin, [&]() __attribute__((always_inline)) { Products::load_keys(call, s.key_tile, head, Needs::scores); },
            [&](RowTile & r)
                __attribute__((always_inline)) { gate_sum_tile<Products>(call, total, which, s.key_tile, r); });
      });
}

// ---- pieces of work -------------------------------------------------------------------------------------------------
//
// `with_products`(body) calls body(products), compiled for an instruction set.

/// body(products, scratch, head, piece) for each run of query tiles and each head, the longest runs first.
template <class WithProducts, class Body>
void for_each_run(const Call& call, const WithProducts& with_products, const Body& body) {
  const std::int64_t runs = call.runs();
  parallel_for(runs * call.heads, [&](std::int64_t piece) {
    Scratch& s = scratch_of_thread();
    const std::int64_t head = piece % call.heads;
    s.begin_run(call, runs - 1 - piece / call.heads, head);
    with_products([&](auto products) __attribute__((always_inline)) {
      products.begin();
      body(products, s, head, piece);
      products.end();
    });
  });
}

/// Memory of the calling thread for one result per piece of work.
template <class T> std::vector<T>& results_of_pieces(std::int64_t pieces) {
  static thread_local std::vector<T> results;
  results.assign(std::size_t(pieces), T{});
  return results;
}

template <class WithProducts>
void forward_pieces(const Call& call, const WithProducts& with_products, const AttentionState& state,
                    AttentionStats& stats) {
  std::vector<AttentionStats>& of_pieces = results_of_pieces<AttentionStats>(call.runs() * call.heads);
  for_each_run(
      call, with_products,
      [&](auto products, Scratch& s, std::int64_t head, std::int64_t piece) __attribute__((always_inline)) {
        forward_run<decltype(products)>(call, s, state, head, of_pieces[std::size_t(piece)]);
      });
  for (const AttentionStats& piece : of_pieces) {
    stats.gate_sum += piece.gate_sum;
    stats.gates += piece.gates;
    stats.tiles += piece.tiles;
    stats.saturated_tiles += piece.saturated_tiles;
  }
}

template <class WithProducts>
void backward_pieces(const Call& call, const WithProducts& with_products, const BackwardArrays& arrays) {
  const FireTerm& fire = call.settings.shared.fire;
  const std::int64_t width = shared_entries(fire), heads_of_group = call.heads / call.groups;
  std::vector<float>& fire_shared = results_of_pieces<float>(call.groups * width);
  parallel_for(call.groups, [&](std::int64_t group) {
    Scratch& s = scratch_of_thread();
    for (std::int64_t run = 0; run < call.runs(); ++run)
      for (std::int64_t head = group * heads_of_group; head < (group + 1) * heads_of_group; ++head) {
        s.begin_run(call, run, head);
        with_products([&](auto products) __attribute__((always_inline)) {
          products.begin();
          backward_run<decltype(products)>(call, s, arrays, head, fire_shared.data() + group * width);
          products.end();
        });
      }
  });
  for (std::int64_t group = 0; width > 0 && group < call.groups; ++group)
    add_shared_fire_gradients(arrays.out.shared.fire, fire_shared.data() + group * width, fire.in.dim(0));
}

template <class WithProducts>
void gate_sum_pieces(const Call& call, const WithProducts& with_products, const View& sum, int which) {
  for_each_run(
      call,
      with_products, [&](auto products, Scratch& s, std::int64_t head, std::int64_t) __attribute__((always_inline)) {
        gate_sum_run<decltype(products)>(call, s, sum, which, head);
      });
}

}  // namespace capstan::kernels::cpu
