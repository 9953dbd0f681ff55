#pragma once
// One layer's attention on a GPU, as launch/gpu_check times it: one sequence, `heads` heads with keys of their own, q, k and v in bf16.

#include <array>
#include <cstdint>

#include "kernels/attention_tile.h"
#include "kernels/tensor.h"

namespace capstan::tests {

/// Rows that differ; longer tensors repeat them, which changes no time and spares the host minutes of random numbers.
constexpr std::int64_t distinct_rows = 4096;
/// [tokens, heads, depth] on the GPU.
kernels::Tensor gpu_random(std::int64_t tokens, std::int64_t heads, std::int64_t depth, kernels::DType type,
                           std::uint64_t seed);
/// 0, 1, … on the GPU.
kernels::Tensor gpu_index(std::int64_t tokens);

enum class Kind { plain, cope_unsaturated, cope_half, hierarchical, tape };

struct GpuProblem {
  Kind kind;
  std::int64_t tokens, heads, depth;
  kernels::AttentionSettings settings;
  kernels::Tensor q, k, v, z, index, document, block_keys, d_o;
  std::array<kernels::Tensor, kernels::gated_sums> table, dtable, carry, horizon, carry_back, gate_grad;
  kernels::Tensor o, m, l, delta, narrow_o, dq, dk, dv, dz, d_block_keys;

  GpuProblem(Kind kind_in, std::int64_t tokens_in, std::int64_t heads_in, std::int64_t depth_in);
  void forward();
  /// After forward. delta is part of it.
  void backward();
  /// FLOP of forward's two products of causal pairs (TAPE: its values are twice as wide). Backward: 2.5 times that.
  double forward_flop() const;
  /// Share of tiles without gates, by a forward of its own.
  double saturated();

 private:
  void add_sum(int which, const kernels::GateRule& rule);
  kernels::QueryChunk queries() const;
  kernels::KeyChunk keys() const;
  kernels::AttentionState state() const;
};

}  // namespace capstan::tests
