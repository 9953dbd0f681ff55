#pragma once
// Runs the tile kernels over a problem: keys in pieces, near → far and back, as a ring does.

#include <string>
#include <vector>

#include "kernels/attention_tile.h"
#include "tests/support/dense_attention.h"

namespace capstan::tests {

struct TileRun {
  kernels::Tensor o, lse, carry, horizon, horizon_carry;
  kernels::Tensor dq, dk, dv, dz, dtable;
  kernels::Tensor carry_left;  ///< what backward's carry ends with
  kernels::AttentionStats stats;
};

/// How to cut the work. Rows [begin, end) of the queries (-1: all) meet all keys, which are cut at `key_edges`.
struct TileCuts {
  std::vector<std::int64_t> key_edges;
  std::int64_t query_begin = 0, query_end = -1;
};

/// Forward and backward.
TileRun run_tiles(const AttentionProblem& problem, kernels::DType type, kernels::Device device,
                  const kernels::AttentionSettings& settings, const TileCuts& cuts = {});

/// The settings that a problem asks for.
kernels::AttentionSettings settings_for(const AttentionProblem& problem, std::int64_t tile);

/// Worst relative error over o, lse and all gradients, with the name of the tensor that has it.
struct Worst {
  double error = 0;
  std::string name;
};
Worst worst_error(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients);

}  // namespace capstan::tests
