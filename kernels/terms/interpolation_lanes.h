#pragma once
// Row tables across lanes (kernels/terms/interpolation.h in the same order of operations): table_t [P + 2][lane], with
// entry P twice, places and logits [keys][lane].
//
// W lanes at a time from one end of the tile to the other. Places are monotone along the way, so that a lane's place in
// the table moves seldom while gates are sparse, which is when many tiles need them: the table is only read, and its
// gradient only written, where some lane has moved.

#include <cstdint>

#include "kernels/attention_lanes.h"

namespace capstan::kernels::cpu {

/// Where places fall in the table: weight of the entry above `low`, which P has too. Slopes are 0 at integers.
template <int W> struct LanePlaces {
  Ints<W> low;
  Reals<W> weight;
  [[gnu::always_inline]] explicit LanePlaces(const Reals<W>& place)
      : low(__builtin_convertvector(place, Ints<W>)), weight(place - __builtin_convertvector(low, Reals<W>)) {}
};

/// The two entries beside a place; table_t points at the first of W lanes.
template <int L, int W>
[[gnu::always_inline]] inline void read_entries(Reals<W>& below, Reals<W>& above, const float* table_t,
                                                const Ints<W>& low) {
  for (int lane = 0; lane < W; ++lane) below[lane] = table_t[low[lane] * L + lane];
  for (int lane = 0; lane < W; ++lane) above[lane] = table_t[(low[lane] + 1) * L + lane];
}

template <int W>
[[gnu::always_inline]] inline void interpolate(Reals<W>& value, const Reals<W>& below, const Reals<W>& above,
                                               const Reals<W>& weight) {
  value = (1 - weight) * below + weight * above;
}

/// Its adjoint; below and above hold sums of gradients here.
template <int W>
[[gnu::always_inline]] inline void interpolate_backward(Reals<W>& below, Reals<W>& above, const Reals<W>& d_value,
                                                        const Reals<W>& weight) {
  below += (1 - weight) * d_value;
  above += weight * d_value;
}

/// True if all lanes are at one entry, as where carries are saturated.
template <int W> [[gnu::always_inline]] inline bool at_one_entry(const Ints<W>& low) {
  return !any_differs<W>(low, Ints<W>{} + low[0]);
}

/// place = min(P, start + place), logit += interp(table, place), slope = its derivative. start [lane].
template <int L, int W>
[[gnu::always_inline]] inline void add_interpolated(float* logit_in, float* place_in, float* slope_in,
                                                    const float* table_t, std::int64_t last_place, const float* start,
                                                    std::int64_t keys) {
  const Reals<W> last = Reals<W>{} + float(last_place);
  for (int n = 0; n < L; n += W) {
    float *logit = logit_in + n, *place = place_in + n, *slope = slope_in + n;
    Ints<W> low = Ints<W>{} - 1;
    Reals<W> below = {}, above = {}, value;
    for (std::int64_t at = 0; at < keys * L; at += L) {
      const Reals<W> free = lanes<W>(start + n) + lanes<W>(place + at), bounded = free < last ? free : last;
      const LanePlaces<W> here(bounded);
      if (any_differs<W>(here.low, low)) {
        low = here.low;
        read_entries<L, W>(below, above, table_t + n, low);
      }
      lanes<W>(place + at) = bounded;
      interpolate<W>(value, below, above, here.weight);
      lanes<W>(logit + at) += value;
      lanes<W>(slope + at) = here.weight > 0 ? above - below : Reals<W>{};
    }
  }
}

/// Its adjoint for W lanes from n on: dtable_t adds to; each(at, d) gets every key's d_logit, far → near.
template <int L, int W, class Each>
[[gnu::always_inline]] inline void interpolated_backward(float* dtable_t, const float* d_logit, const float* place,
                                                         std::int64_t keys, const Each& each) {
  Ints<W> low = LanePlaces<W>(lanes<W>(place)).low;
  Reals<W> below = {}, above = {};  // not yet in dtable[low], dtable[low + 1]
  const auto flush = [&](const Ints<W>& next) __attribute__((always_inline)) {
    for (int lane = 0; lane < W; ++lane) {
      if (next[lane] == low[lane]) continue;
      dtable_t[low[lane] * L + lane] += below[lane];
      dtable_t[(low[lane] + 1) * L + lane] += above[lane];
      below[lane] = above[lane] = 0;
    }
    low = next;
  };
  for (std::int64_t at = 0; at < keys * L; at += L) {
    const LanePlaces<W> here(lanes<W>(place + at));
    if (any_differs<W>(here.low, low)) flush(here.low);
    const Reals<W> d = lanes<W>(d_logit + at);
    interpolate_backward<W>(below, above, d, here.weight);
    each(at, d);
  }
  flush(Ints<W>{} - 1);
}

/// One place [lane] for all keys: constant [lane] = interp(table, place), to be added to each logit.
template <int L, int W>
[[gnu::always_inline]] inline void find_row_constant(float* constant, const float* place, const float* table_t) {
  for (int n = 0; n < L; n += W) {
    const LanePlaces<W> here(lanes<W>(place + n));
    Reals<W> below = {}, above = {}, value;
    read_entries<L, W>(below, above, table_t + n, here.low);
    interpolate<W>(value, below, above, here.weight);
    lanes<W>(constant + n) = value;
  }
}

/// Adjoint of read_entries.
template <int L, int W>
[[gnu::always_inline]] inline void add_entries(float* dtable_t, const Reals<W>& below, const Reals<W>& above,
                                               const Ints<W>& low) {
  if (at_one_entry<W>(low)) {
    lanes<W>(dtable_t + low[0] * L) += below;
    lanes<W>(dtable_t + (low[0] + 1) * L) += above;
    return;
  }
  for (int lane = 0; lane < W; ++lane) {
    dtable_t[low[lane] * L + lane] += below[lane];
    dtable_t[(low[lane] + 1) * L + lane] += above[lane];
  }
}

/// Its adjoint, with the sum over keys in the order of interpolated_backward: the same bits. place_grad [lane] += Σ_j d_logit_j slope.
/// d_sum [lane]: Σ_j d_logit_j in that order, or null.
template <int L, int W>
[[gnu::always_inline]] inline void row_constant_backward(float* dtable_t, float* place_grad, const float* d_logit,
                                                         const float* d_sum, const float* place, const float* table_t,
                                                         std::int64_t keys) {
  for (int n = 0; n < L; n += W) {
    const LanePlaces<W> here(lanes<W>(place + n));
    Reals<W> below = {}, above = {};
    read_entries<L, W>(below, above, table_t + n, here.low);
    const Reals<W> slope = here.weight > 0 ? above - below : Reals<W>{};
    below = above = Reals<W>{};
    if (!any_differs<W>(here.weight > 0, Ints<W>{})) {  // none between two entries, as where carries are saturated
      if (d_sum) below = lanes<W>(d_sum + n);
      for (std::int64_t at = n; !d_sum && at < keys * L; at += L) below += lanes<W>(d_logit + at);
    } else {
      Reals<W> grad = lanes<W>(place_grad + n);
      for (std::int64_t at = n; at < keys * L; at += L) {
        const Reals<W> d = lanes<W>(d_logit + at);
        interpolate_backward<W>(below, above, d, here.weight);
        grad += d * slope;
      }
      lanes<W>(place_grad + n) = grad;
    }
    add_entries<L, W>(dtable_t + n, below, above, here.low);
  }
}

}  // namespace capstan::kernels::cpu
