#pragma once
// FIRE across lanes: see kernels/terms/fire.h.

#include <bit>
#include <cstdint>

#include "kernels/attention_lanes.h"
#include "kernels/terms/fire.h"

namespace capstan::kernels::cpu {

/// ln(y) for y >= 1, finite, within 2 ulp. y = 2ⁿ m with m in [√½, √2): ln y = n ln 2 + ln m, the latter by Cephes'
/// logf polynomial in m - 1. No branch, no library call, so that plain loops vectorise.
[[gnu::always_inline]] inline float fast_log(float y) {
  constexpr std::int32_t half_root = 0x3f3504f3;  // √½
  const std::int32_t shifted = std::bit_cast<std::int32_t>(y) - half_root;
  const float n = float(shifted >> 23);
  const float r = std::bit_cast<float>((shifted & 0x007fffff) + half_root) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const float square = r * r;
  const float tail = (p * r) * square - n * 2.12194440e-4f - 0.5f * square;
  return n * 0.693359375f + (r + tail);
}

/// For one (query tile, head), and for the tile at hand. Kept between calls.
struct FireLanes {
  terms::Fire<float> fire;  ///< of the head; width 0: absent
  int lane_count = 0;
  float curvature = 0;               ///< |c|
  Floats bottom, reach, beyond;      ///< [lane] B; max(i, |L|); 1 where |L| > i, else 0
  Floats x, dx;                      ///< [keys][lane]
  Floats d_in, d_in_bias, d_out;     ///< [R][lane]
  Floats d_out_bias, d_c, d_length;  ///< [lane]: of out_bias, |c|, |L|

  void begin_call(const SharedTerms& shared, int lane_count_in) {
    lane_count = lane_count_in;
    fire.width = 0;
    if (!shared.fire.in) return;
    fire.width = shared.fire.in.dim(0);
    for (Floats* y : {&bottom, &reach, &beyond, &d_out_bias, &d_c, &d_length}) grow(*y, lane_count);
    for (Floats* y : {&x, &dx}) grow(*y, largest_tile * lane_count);
    for (Floats* y : {&d_in, &d_in_bias, &d_out}) grow(*y, fire.width * lane_count);
  }

  void begin_head(const SharedTerms& shared, const std::vector<std::int64_t>& row_position, std::int64_t head) {
    fire = terms::Fire<float>(shared.fire, head, fire.width);
    curvature = std::abs(fire.scale[0]);
    const float length = std::abs(fire.scale[1]);
    for (std::int64_t lane = 0; lane < lane_count; ++lane) {
      bottom[lane] = fire.denominator(row_position[lane]);
      reach[lane] = std::max(float(row_position[lane]), length);
      beyond[lane] = length > float(row_position[lane]) ? 1.0f : 0.0f;
    }
    for (Floats* y : {&d_in, &d_in_bias, &d_out}) std::fill_n(y->begin(), fire.width * lane_count, 0.0f);
    for (Floats* y : {&d_out_bias, &d_c, &d_length}) std::fill_n(y->begin(), lane_count, 0.0f);
  }
};

/// logit += f(d, i); leaves x.
template <int L, int W>
[[gnu::always_inline]] inline void add_fire_bias(FireLanes& f, float* logit, const float* distance, std::int64_t keys) {
  const std::int64_t width = f.fire.width;
  const float *in = f.fire.in, *in_bias = f.fire.in_bias, *out = f.fire.out;
  for (std::int64_t j = 0; j < keys; ++j)
    for (int lane = 0; lane < L; ++lane)
      f.x[j * L + lane] = fast_log(1 + f.curvature * distance[j * L + lane]) / f.bottom[lane];
  constexpr int together = 4;  // registers whose chains of multiply-adds run side by side; L / W of 1 takes four keys
  for (std::int64_t at = 0; at < keys * L; at += together * W) {
    Reals<W> x[together], sum[together];
    for (int n = 0; n < together; ++n) {
      x[n] = lanes<W>(&f.x[at + n * W]);
      sum[n] = Reals<W>{} + *f.fire.out_bias;
    }
    for (std::int64_t r = 0; r < width; ++r)
      for (int n = 0; n < together; ++n) {
        const Reals<W> hidden = in[r] * x[n] + in_bias[r];
        sum[n] += out[r] * (hidden < 0 ? Reals<W>{} : hidden);
      }
    for (int n = 0; n < together; ++n) lanes<W>(logit + at + n * W) += sum[n];
  }
}

/// dx → d_c, d_length: see terms::fire_scale_backward.
template <int L>
[[gnu::always_inline]] inline void fire_scale_backward(FireLanes& f, const float* distance, std::int64_t keys) {
  const float a = f.curvature;
  float by_bottom_c[L], by_bottom_length[L], d_c[L] = {}, d_length[L] = {};
  for (int lane = 0; lane < L; ++lane) {
    const float inverse = 1 / (1 + a * f.reach[lane]);
    by_bottom_c[lane] = f.reach[lane] * inverse;
    by_bottom_length[lane] = f.beyond[lane] * a * inverse;
  }
  for (std::int64_t j = 0; j < keys; ++j)
    for (int lane = 0; lane < L; ++lane) {
      const float d = distance[j * L + lane], d_top = f.dx[j * L + lane] / f.bottom[lane],
                  d_bottom = -d_top * f.x[j * L + lane];
      d_c[lane] += d_top * (d / (1 + a * d)) + d_bottom * by_bottom_c[lane];
      d_length[lane] += d_bottom * by_bottom_length[lane];
    }
  for (int lane = 0; lane < L; ++lane) {
    f.d_c[lane] += d_c[lane];
    f.d_length[lane] += d_length[lane];
  }
}

/// Adjoint of add_fire_bias, from its x.
template <int L, int W>
[[gnu::always_inline]] inline void fire_backward(FireLanes& f, const float* d_logit, const float* distance,
                                                 std::int64_t keys) {
  std::fill_n(f.dx.data(), keys * L, 0.0f);
  for (int n = 0; n < L; n += W) {
    Reals<W> d_sum = {};
    for (std::int64_t j = 0; j < keys; ++j) d_sum += lanes<W>(d_logit + j * L + n);
    lanes<W>(&f.d_out_bias[n]) += d_sum;
    for (std::int64_t r = 0; r < f.fire.width; ++r) {
      const float in = f.fire.in[r], in_bias = f.fire.in_bias[r], out = f.fire.out[r];
      Reals<W> d_in = {}, d_in_bias = {}, d_out = {};
      for (std::int64_t at = n; at < keys * L; at += L) {
        const Reals<W> x = lanes<W>(&f.x[at]), d = lanes<W>(d_logit + at), hidden = in * x + in_bias;
        const Reals<W> open = hidden > 0 ? d : Reals<W>{}, d_hidden = open * out;
        d_out += open * hidden;
        d_in += d_hidden * x;
        d_in_bias += d_hidden;
        lanes<W>(&f.dx[at]) += d_hidden * in;
      }
      lanes<W>(&f.d_in[r * L + n]) += d_in;
      lanes<W>(&f.d_in_bias[r * L + n]) += d_in_bias;
      lanes<W>(&f.d_out[r * L + n]) += d_out;
    }
  }
  fire_scale_backward<L>(f, distance, keys);
}

/// Gradients of `in`, `in_bias` and `scale`, which all heads share: what one kv head's rows give, [R], [R] and [2] in a row.
inline std::int64_t shared_entries(const FireTerm& fire) { return fire.in ? 2 * fire.in.dim(0) + 2 : 0; }

/// What the head's lanes hold goes to its own gradients, each of which may be absent, and to `shared`.
template <int L>
void add_fire_gradients(const FireLanes& f, const FireTerm& out_views, std::int64_t head, float* shared) {
  const std::int64_t width = f.fire.width;
  const terms::Fire<float> out(out_views, head, width);
  for (std::int64_t r = 0; r < width; ++r) {
    shared[r] += sum_of_lanes<L>(&f.d_in[r * L]);
    shared[width + r] += sum_of_lanes<L>(&f.d_in_bias[r * L]);
    if (out.out) out.out[r] += sum_of_lanes<L>(&f.d_out[r * L]);
  }
  if (out.out_bias) *out.out_bias += sum_of_lanes<L>(f.d_out_bias.data());
  shared[2 * width] += terms::sign(f.fire.scale[0]) * sum_of_lanes<L>(f.d_c.data());
  shared[2 * width + 1] += terms::sign(f.fire.scale[1]) * sum_of_lanes<L>(f.d_length.data());
}

/// One kv head's `shared` joins the gradients.
inline void add_shared_fire_gradients(const FireTerm& out_views, const float* shared, std::int64_t width) {
  const terms::Fire<float> out(out_views, 0, width);
  const auto add = [](float* target, const float* sum, std::int64_t entries) {
    for (std::int64_t r = 0; target && r < entries; ++r) target[r] += sum[r];
  };
  add(out.in, shared, width);
  add(out.in_bias, shared + width, width);
  add(out.scale, shared + 2 * width, 2);
}

}  // namespace capstan::kernels::cpu
