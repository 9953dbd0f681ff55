#pragma once
#include <vector>
#include "kernels/tensor.h"

namespace capstan::kernels {

// Rotate-half pairing: elements f and f + D/2 of a head are the real and the imaginary part of one complex number.
// A phase array z holds complex numbers the same way: [T, Gz, D], with Gz = 1 (RoPE: one phase for all heads) or the kv heads
// (TAPE: a state per head). Query head h of H uses z head h / (H / Gz).

/// z[t, 0] = amplitude · exp(i position[t] · frequency[f]).  z [T, 1, D] overwrites; position [T] i64; frequency has D/2 entries.
/// The angle is formed and reduced in double for every device and cast last, so that it stays exact at a million tokens.
void rotary_phases(const View& z, const View& position, const std::vector<double>& frequency, double amplitude);

/// z[t, 0] *= exp((position[t] - centre) · log_base[f]), real and imaginary part alike.  z [T, 1, D]; position [T] i64;
/// log_base has D/2 entries. xPos (arXiv 2212.10554, §2.2): keys take the opposite of the queries' log_base.
void rotary_decay(const View& z, const View& position, const std::vector<double>& log_base, double centre);

/// y = x · z, complex product per f.  y [T, H, D] overwrites; x [T, H, D]; z [T, Gz, D].  y, x of one type; z wide.
void rotary_forward(const View& y, const View& x, const View& z);
/// dx = conj(z) · dy, overwrites (may be the same memory as dy when dz is absent; then x may be absent too);
/// dz[t, g] += Σ_{h in g} conj(x) · dy, adds to, or absent (RoPE).  dx, dy, x [T, H, D]; dz, z [T, Gz, D].
/// x of any type; the gradients, which are sums, and z wide.
void rotary_backward(const View& dx, const View& dz, const View& dy, const View& x, const View& z);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::rotary_phases) rotary_phases;
decltype(kernels::rotary_decay) rotary_decay;
decltype(kernels::rotary_forward) rotary_forward;
decltype(kernels::rotary_backward) rotary_backward;
}  // namespace ref

namespace cpu {
decltype(kernels::rotary_phases) rotary_phases;
decltype(kernels::rotary_decay) rotary_decay;
decltype(kernels::rotary_forward) rotary_forward;
decltype(kernels::rotary_backward) rotary_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::rotary_phases) rotary_phases;
decltype(kernels::rotary_decay) rotary_decay;
decltype(kernels::rotary_forward) rotary_forward;
decltype(kernels::rotary_backward) rotary_backward;
}  // namespace cuda

}  // namespace capstan::kernels
