#pragma once
#include "kernels/tensor.h"

namespace capstan::parallel {

using kernels::View;

/// The three arrays that travel with the keys, for the rank's local tokens. All [B, T] i64.
struct TokenRows {
  View index;     ///< global, strictly increasing: causality and tiles
  View position;  ///< phases and distances: restarts per document
  View document;  ///< keys are seen only by queries of the same document (a run of tokens)
};

}  // namespace capstan::parallel
