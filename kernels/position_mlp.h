#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// TAPE's update of the position state at the end of a layer (arXiv 2501.00712; notes: zc = z + alpha p, z' = zc + W_d diag(g) W_u zc).
// All matrices act on the head axis only, the same for each of the D columns: mixing along D would break rotation equivariance.
// Per token t, with z, p, zc, z' as G × D matrices:
//   zc = z + alpha p             alpha [G, G]
//   a  = w_up zc                 w_up [I, G],  a: I × D
//   z' = zc + w_down (g ∘ a)     w_down [G, I], g [I] scales the rows of a
// All of one type, never bf16: the state's rounding would add up over the layers.

/// z_next [T, G, D] overwrites; z, p [T, G, D]; gate [T, I]; alpha [G, G]; w_up [I, G]; w_down [G, I].
void position_mlp_forward(const View& z_next, const View& z, const View& p, const View& gate, const View& alpha,
                          const View& w_up, const View& w_down);

struct PositionMlpGradients {
  View dz, dp;                  ///< [T, G, D]; dz adds to, dp overwrites
  View dgate;                   ///< [T, I] overwrites
  View dalpha, dw_up, dw_down;  ///< add to; each may be absent (frozen)
};
/// G = dz': dw_down += G bᵀ with b = g ∘ a; db = w_downᵀ G; dg = Σ_D db a; da = g ∘ db; dw_up += da zcᵀ; dzc = G + w_upᵀ da;
/// dalpha += dzc pᵀ; dp = alphaᵀ dzc; dz += dzc.  zc and a are computed again.
void position_mlp_backward(const PositionMlpGradients& out, const View& dz_next, const View& z, const View& p,
                           const View& gate, const View& alpha, const View& w_up, const View& w_down);

/// Σ over all complex elements of |z|, and the largest: the |z| log line. z [T, G, D].
struct MagnitudeSum {
  double sum, max;
  std::int64_t count;
};
MagnitudeSum complex_magnitude(const View& z);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::position_mlp_forward) position_mlp_forward;
decltype(kernels::position_mlp_backward) position_mlp_backward;
decltype(kernels::complex_magnitude) complex_magnitude;
}  // namespace ref

namespace cpu {
decltype(kernels::position_mlp_forward) position_mlp_forward;
decltype(kernels::position_mlp_backward) position_mlp_backward;
decltype(kernels::complex_magnitude) complex_magnitude;
}  // namespace cpu

namespace cuda {
decltype(kernels::position_mlp_forward) position_mlp_forward;
decltype(kernels::position_mlp_backward) position_mlp_backward;
decltype(kernels::complex_magnitude) complex_magnitude;
}  // namespace cuda

}  // namespace capstan::kernels
