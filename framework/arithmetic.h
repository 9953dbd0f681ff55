#pragma once
// How much arithmetic a sequence is: the products of matrices of a forward pass, two FLOP for each multiply-add. What is done
// element by element (softmax, norms, sigmoids of gates, rotations) is not counted, as usual in papers' tables.

#include "framework/model.h"

namespace capstan::framework {

struct ForwardFlops {
  double linear = 0;     ///< all linear layers, the output projection among them
  double attention = 0;  ///< q·k and weights times values, over the T (T + 1) / 2 causal pairs
  double position = 0;   ///< what the encoding adds to both
  double total() const { return linear + attention + position; }
};

/// Of one sequence of `tokens`, whatever the ranks that share it. Training is three times that, and recomputation its part more.
ForwardFlops forward_flops(const Model& model, std::int64_t tokens);

}  // namespace capstan::framework
