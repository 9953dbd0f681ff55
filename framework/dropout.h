#pragma once
// Where dropout stands in the model, and what its masks are a function of: the sequence's draw (training step and sample), the
// layer and site, the token's global index and the channel. So they are the same for any ranks, under recompute, after resume.

#include <string_view>
#include <vector>

#include "framework/random.h"
#include "kernels/tensor.h"

namespace capstan::framework {

/// Dropout of a training pass; nothing in evaluation.
struct Dropout {
  double rate = 0;                   ///< of the embedding and of what each sublayer adds
  double attention_rate = 0;         ///< of attention weights
  std::vector<std::uint64_t> draws;  ///< [B]
};

/// site: "embedding", "attention", "mlp", "weights".
inline std::uint64_t dropout_seed(std::uint64_t draw, int layer, std::string_view site) {
  return random_bits(draw, stream_of(site), std::uint64_t(layer));
}

/// Drops entries of x [N, C] in place, at this site; forward and, on gradients, backward. index [B, T].
void drop(const kernels::View& x, const kernels::View& index, const Dropout& dropout, int layer, std::string_view site);

}  // namespace capstan::framework
