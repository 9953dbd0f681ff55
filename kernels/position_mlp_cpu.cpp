#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/isa.h"
#include "kernels/position_mlp.h"
#include "kernels/row_sums.h"
#include "kernels/simd_math.h"

// The matrices are tiny (G ≤ 32 heads, I = 4G), so each product is a sum of rows of D columns, which stay in the first cache.

namespace capstan::kernels::cpu {

namespace {

/// `width` columns of one row of y (+)= w x. A constant width keeps the sums in registers.
template <int width>
[[gnu::always_inline]] inline void mix_columns(float* __restrict y, const float* w, std::int64_t step,
                                               const float* __restrict x, std::int64_t S, std::int64_t D, bool add) {
  float sum[width];
  for (int d = 0; d < width; ++d) sum[d] = add ? y[d] : 0;
  for (std::int64_t s = 0; s < S; ++s)
    for (int d = 0; d < width; ++d) sum[d] += w[s * step] * x[s * D + d];
  for (int d = 0; d < width; ++d) y[d] = sum[d];
}

/// y (+)= w x:  y [R, D], x [S, D], w(r, s) = w[r · row + s · column], so that a transpose is a choice of strides.
[[gnu::always_inline]] inline void mix(float* __restrict y, std::int64_t R, const float* w, std::int64_t row,
                                       std::int64_t column, const float* __restrict x, std::int64_t S, std::int64_t D,
                                       bool add) {
  for (std::int64_t r = 0; r < R; ++r) {
    float* const Y = y + r * D;  // [D]
    std::int64_t d = 0;
    for (; d + 64 <= D; d += 64) mix_columns<64>(Y + d, w + r * row, column, x + d, S, D, add);
    for (; d + 16 <= D; d += 16) mix_columns<16>(Y + d, w + r * row, column, x + d, S, D, add);
    for (; d < D; ++d) mix_columns<1>(Y + d, w + r * row, column, x + d, S, D, add);
  }
}

/// dw[r, s] += y[r] · x[s], the gradient of y = w x for w [R, S]; nothing if dw is null.
[[gnu::always_inline]] inline void add_outer(float* dw, const float* y, std::int64_t R, const float* x, std::int64_t S,
                                             std::int64_t D) {
  if (!dw) return;
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t s = 0; s < S; ++s) {
      const float *const Y = y + r * D, *const X = x + s * D;
      dw[r * S + s] += lane_sum(
          D, [=](std::int64_t d) __attribute__((always_inline)) { return Y[d] * X[d]; });
    }
  }
}

/// y[r] = factor[r] x[r], rows of D.
[[gnu::always_inline]] inline void scale_rows(float* y, const float* factor, const float* x, std::int64_t R,
                                              std::int64_t D) {
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t d = 0; d < D; ++d) y[r * D + d] = factor[r] * x[r * D + d];
}

struct Weights {
  const float *alpha, *up, *down;  // [G, G], [I, G], [G, I]
  std::int64_t G, I, D;
};

/// What lies between z and z', of one token.
struct Hidden {
  float *zc, *a, *b;  // [G, D], [I, D], [I, D]
};

/// The calling thread's.
Hidden hidden_of(const Weights& w) {
  thread_local Scratch memory;
  float* const zc = memory.of<float>((w.G + 2 * w.I) * w.D);
  float* const a = zc + w.G * w.D;
  return {zc, a, a + w.I * w.D};
}

/// Elements touched per token.
std::int64_t cost_of(const Weights& w) { return w.G * w.D * (w.G + 2 * w.I); }

/// zc = z + alpha p;  a = w_up zc;  b = g ∘ a
[[gnu::always_inline]] inline void make_hidden(const Hidden& to, const float* z, const float* p, const float* gate,
                                               const Weights& w) {
  std::copy(z, z + w.G * w.D, to.zc);
  mix(to.zc, w.G, w.alpha, w.G, 1, p, w.G, w.D, true);
  mix(to.a, w.I, w.up, w.G, 1, to.zc, w.G, w.D, false);
  scale_rows(to.b, gate, to.a, w.I, w.D);
}

/// Where one token's gradients go.
struct TokenGradients {
  float *dz, *dp, *dgate;       // [G, D], [G, D], [I]
  float *dalpha, *dup, *ddown;  // [G, G], [I, G], [G, I], or null
};

/// `from` as make_hidden left it; its zc and b are used up.
[[gnu::always_inline]] inline void backward_token(const TokenGradients& out, const float* dnext, const Hidden& from,
                                                  const float* p, const float* gate, const Weights& w) {
  const auto [zc, a, b] = from;
  add_outer(out.ddown, dnext, w.G, b, w.I, w.D);  // dw_down += G bᵀ
  float* const db = b;
  mix(db, w.I, w.down, 1, w.I, dnext, w.G, w.D, false);  // db = w_downᵀ G
  for (std::int64_t i = 0; i < w.I; ++i) {               // dg = Σ_D db a
    const float *const dB = db + i * w.D, *const A = a + i * w.D;
    out.dgate[i] = lane_sum(
        w.D, [=](std::int64_t d) __attribute__((always_inline)) { return dB[d] * A[d]; });
  }
  float* const da = b;
  scale_rows(da, gate, db, w.I, w.D);         // da = g ∘ db
  add_outer(out.dup, da, w.I, zc, w.G, w.D);  // dw_up += da zcᵀ
  float* const dzc = zc;
  std::copy(dnext, dnext + w.G * w.D, dzc);
  mix(dzc, w.G, w.up, 1, w.G, da, w.I, w.D, true);                   // dzc = G + w_upᵀ da
  add_outer(out.dalpha, dzc, w.G, p, w.G, w.D);                      // dalpha += dzc pᵀ
  mix(out.dp, w.G, w.alpha, 1, w.G, dzc, w.G, w.D, false);           // dp = alphaᵀ dzc
  for (std::int64_t i = 0; i < w.G * w.D; ++i) out.dz[i] += dzc[i];  // dz += dzc
}

}  // namespace

// zc = z + alpha p;  a = w_up zc;  z' = zc + w_down (g ∘ a)
void position_mlp_forward(const View& z_next, const View& z, const View& p, const View& gate, const View& alpha,
                          const View& w_up, const View& w_down) {
  const std::int64_t G = z.dim(1), D = z.dim(2), I = gate.dim(1);
  const Weights w{alpha.as<float>(), w_up.as<float>(), w_down.as<float>(), G, I, D};
  float* const next = z_next.as<float>();  // [T, G, D]
  const float *const Z = z.as<float>(), *const P = p.as<float>(),
                     *const g = gate.as<float>();  // [T, G, D], [T, G, D], [T, I]
  parallel_rows(z.dim(0), cost_of(w), [=](std::int64_t begin, std::int64_t end) {
    const Hidden hidden = hidden_of(w);
    on_best_isa([=]() __attribute__((always_inline)) {
      for (std::int64_t t = begin; t < end; ++t) {
        make_hidden(hidden, Z + t * G * D, P + t * G * D, g + t * I, w);
        std::copy(hidden.zc, hidden.zc + G * D, next + t * G * D);
        mix(next + t * G * D, G, w.down, I, 1, hidden.b, I, D, true);
      }
    });
  });
}

// Of zc = z + alpha p;  a = w_up zc;  z' = zc + w_down b with b = g ∘ a;  G = dz': see backward_token, line by line.
void position_mlp_backward(const PositionMlpGradients& out, const View& dz_next, const View& z, const View& p,
                           const View& gate, const View& alpha, const View& w_up, const View& w_down) {
  const std::int64_t T = z.dim(0), G = z.dim(1), D = z.dim(2), I = gate.dim(1);
  const Weights w{alpha.as<float>(), w_up.as<float>(), w_down.as<float>(), G, I, D};
  const float *const Z = z.as<float>(), *const P = p.as<float>(), *const g = gate.as<float>(),
                     *const dnext = dz_next.as<float>();
  const TokenGradients first{out.dz.as<float>(), out.dp.as<float>(), out.dgate.as<float>(), nullptr, nullptr, nullptr};
  const auto tokens = [=](std::int64_t begin, std::int64_t end, const std::array<float*, 3>& sums) {
    const auto [dalpha, dup, ddown] = sums;
    const Hidden hidden = hidden_of(w);
    on_best_isa([=]() __attribute__((always_inline)) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t at = t * G * D;
        const TokenGradients token{first.dz + at, first.dp + at, first.dgate + t * I, dalpha, dup, ddown};
        make_hidden(hidden, Z + at, P + at, g + t * I, w);
        backward_token(token, dnext + at, hidden, P + at, g + t * I, w);
      }
    });
  };
  sum_over_rows<3>({out.dalpha, out.dw_up, out.dw_down}, T, cost_of(w), tokens);
}

// For the log, once per step: the sums in double cost little, and the reference's are good enough for each block of rows.
MagnitudeSum complex_magnitude(const View& z) {
  constexpr std::int64_t length = 64;
  thread_local Scratch memory;
  const std::int64_t T = z.dim(0), blocks = (T + length - 1) / length;
  MagnitudeSum* const part = memory.of<MagnitudeSum>(blocks);  // [blocks]
  parallel_for(blocks, [&](std::int64_t b) {
    part[b] = ref::complex_magnitude(z.rows(b * length, std::min(T, (b + 1) * length)));
  });
  MagnitudeSum out{0, 0, 0};
  for (std::int64_t b = 0; b < blocks; ++b)
    out = {out.sum + part[b].sum, std::max(out.max, part[b].max), out.count + part[b].count};
  return out;
}

}  // namespace capstan::kernels::cpu
