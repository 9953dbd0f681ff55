#pragma once
// Runs the tile kernels over a problem: keys in pieces, near → far and back, as a ring does.

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "kernels/attention_tile.h"
#include "tests/support/dense_attention.h"

namespace capstan::tests {

struct TileRun {
  kernels::Tensor o, lse;
  std::array<kernels::Tensor, kernels::gated_sums> carry, horizon;
  kernels::Tensor dq, dk, dv, dz, dtable;
  TermTensors d_terms;
  std::array<kernels::Tensor, kernels::gated_sums> carry_left, gate_grad;  ///< what backward's state ends with
  kernels::AttentionStats stats;
};

/// How to cut the work. Rows [begin, end) of the queries (-1: all) meet all keys, which are cut at `key_edges`.
struct TileCuts {
  std::vector<std::int64_t> key_edges;
  std::int64_t query_begin = 0, query_end = -1;
  bool frozen = false;            ///< no gradients of terms are wanted
  bool values_are_gates = false;  ///< gate_k of sum 0 is v itself, and its gradient dv
};

/// What kernels take of a problem, in a type and on a device, with the memory that it needs. In bf16, gate_q and gate_k of sum 0
/// are bf16, too, those of sum 1 f32, and all that is wide is f32.
class TileInputs {
 public:
  TileInputs(const AttentionProblem& problem, kernels::DType type, kernels::Device device,
             bool values_are_gates = false);
  kernels::QueryChunk queries(std::int64_t begin, std::int64_t end) const;
  kernels::KeyChunk keys(std::int64_t begin, std::int64_t end) const;
  /// The problem's terms with the weights that all rows share.
  kernels::AttentionSettings settings(const kernels::AttentionSettings& wish) const;
  /// Gradients of keys [begin, end), of all queries in `run`, and of the weights.
  kernels::AttentionGradients gradients(const TileRun& run, std::int64_t begin, std::int64_t end, bool frozen) const;
  const kernels::Tensor& d_o() const { return d_o_; }
  /// A tensor per present gated sum, zero.
  std::array<kernels::Tensor, kernels::gated_sums> per_sum(kernels::Shape shape, kernels::DType type) const;
  TileRun empty_run(std::int64_t begin, std::int64_t end, std::int64_t tile) const;

 private:
  kernels::View gate_keys(int which) const;

  std::array<kernels::GateRule, kernels::gated_sums> gates_;
  bool values_are_gates_;
  kernels::Tensor q_, k_, v_, z_, table_, d_o_, index_, document_, position_, row_offset_, key_offset_;
  TermTensors terms_;
};

/// Both views of an array of two.
std::array<kernels::View, kernels::gated_sums> views_of(
    const std::array<kernels::Tensor, kernels::gated_sums>& tensors);

/// What runs: the kernels of the device, unless a test brings others.
struct TileKernels {
  decltype(&kernels::attention_forward) forward = kernels::attention_forward;
  decltype(&kernels::attention_backward) backward = kernels::attention_backward;
};

/// Forward and backward.
TileRun run_tiles(const AttentionProblem& problem, kernels::DType type, kernels::Device device,
                  const kernels::AttentionSettings& settings, const TileCuts& cuts = {},
                  const TileKernels& tile_kernels = {});
/// Every array that a run leaves, with its name.
std::vector<std::pair<std::string, kernels::View>> arrays_of(const TileRun& run);
/// All arrays and statistics, bit for bit.
void expect_same_run(const TileRun& a, const TileRun& b);

/// Gradients jump where a position is an integer. There f32 and f64 may fall on different sides, both the kernel and
/// the naive implementation, each by its own chance. A table that hardly rises keeps the jumps below the rounding
/// errors that are compared.
kernels::Tensor gentle_table(const kernels::Tensor& table);
/// A copy of a problem with q, k, v, d_o and the gates of sum 0 rounded to bf16.
AttentionProblem rounded_to_bf16(const AttentionProblem& problem);

/// The settings that a problem asks for, but for the shared weights, which run_tiles fills in.
kernels::AttentionSettings settings_for(const AttentionProblem& problem, std::int64_t tile);

/// body(name, of the run, of the oracle) for o, lse and all gradients.
void for_each_result(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients,
                     const std::function<void(const char*, const kernels::Tensor&, const kernels::Tensor&)>& body);

/// What is the same for all keys of a row has the gradient Σ_j dlogit_j = 0 (tables of one column, FIRE's out_bias, a
/// row offset without a table): there is only rounding in the f64 oracle's.
bool vanishes(const kernels::Tensor& gradient);

/// Worst relative error (absolute, where the gradient vanishes) over o, lse and all gradients, with the name of the
/// tensor that has it.
struct Worst {
  double error = 0;
  std::string name;
};
Worst worst_error(const TileRun& run, const DenseOutputs& outputs, const DenseGradients& gradients);

}  // namespace capstan::tests
