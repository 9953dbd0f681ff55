#pragma once
// A pass of the tiny model, or of one layer's attention, on any ranks, put together in sequence order: so that passes
// on other ranks, under other schedules, of other tokens or at other positions can be compared.

#include <map>
#include <string>
#include <vector>

#include "tests/support/tiny_model.h"

namespace capstan::tests {

using Numbers = std::vector<double>;
using NamedNumbers = std::map<std::string, Numbers>;

/// ‖got - expected‖ / ‖expected‖; the absolute norm where `expected` is all zero.
double relative_difference(const Numbers& got, const Numbers& expected);
/// The worst relative_difference of entries that both have, and its name. An entry whose norm is below 1/1000 of the
/// largest counts as if it had that norm: one that is zero, as that of a bias which all of a row's logits share, is
/// rounding of larger numbers.
struct NamedDifference {
  double difference = 0;
  std::string name;
};
NamedDifference worst_difference(const NamedNumbers& got, const NamedNumbers& expected);
/// Entries that both have and whose numbers are not all the same.
std::vector<std::string> unequal_names(const NamedNumbers& got, const NamedNumbers& expected);

/// Schedules that can bring keys from near to far, on two kv heads.
std::vector<framework::GridConfig> ordered_grids(int ranks);

/// Local rows [B, T, …] in their places of a whole [B, S, columns].
Numbers gathered(const parallel::Ring& ring, const kernels::View& local, std::int64_t sequences, std::int64_t columns);
/// Row of token t in a batch of one sequence; -1: on another rank.
std::int64_t row_of_token(const framework::Batch& batch, std::int64_t t);

struct ModelRun {
  TinyShape shape = {};
  std::int64_t length = 45, sequences = 1;
  std::vector<std::int64_t> documents = {};
  framework::GridConfig grid = {};
  framework::Keep keep = framework::Keep::ring;
  bool backward = true;
  std::function<void(framework::Model&)> set_model = [](framework::Model&) {};
  std::function<void(framework::Batch&)> set_batch = [](framework::Batch&) {};  ///< of the rank's tokens
};

struct ModelResult {
  Numbers nll;                  ///< [B, S]
  std::vector<Numbers> states;  ///< [B, S, G D] that enter each layer, where there are any
  Numbers input_gradient;       ///< [B, S, C] of the residual stream
  NamedNumbers gradients;       ///< of each parameter, summed over the ranks
  double loss() const;
};

ModelResult run_model(parallel::Communicator& comm, const ModelRun& run);
/// On so many threads.
ModelResult run_model(int ranks, const ModelRun& run);

/// Copies the values of the parameters that both models have.
void copy_shared(framework::Model& to, const framework::Model& from);
/// Zeroes the values of the parameters whose names end so.
void zero_parameters(framework::Model& model, const std::string& ending);

/// One layer's attention on one sequence. Tensors are whole, [S, …], by the names q, k, v, z, table0, table1, gate_q0,
/// gate_q1, gate_k0, gate_k1, offset_source, offset_table, relative, and d_o; what is not there is no term.
struct RingRun {
  std::int64_t tokens = 45;
  std::map<std::string, kernels::Tensor> x = {};
  std::vector<std::int64_t> documents = {};
  framework::GridConfig grid = {};
  kernels::AttentionSettings settings = {};
  parallel::OffsetSettings offset = {};
  std::vector<std::uint64_t> dropout_seeds = {};
};

struct RingResult {
  NamedNumbers rows;       ///< o, lse, carry0, carry1
  NamedNumbers gradients;  ///< by the names of x
  std::int64_t saturated_tiles = 0;
};

RingResult run_ring(int ranks, const RingRun& run);

constexpr std::int64_t ring_heads = 4, ring_groups = 2, ring_depth = 8;  ///< H, G, D
/// Adds random q, k, v, d_o; with z also z.
void add_random(RingRun& run, kernels::DType type, kernels::Device device, bool z = false);
/// Adds a random tensor [S, rows, columns].
void add_random(RingRun& run, const std::string& name, std::int64_t rows, std::int64_t columns, double scale = 1);

}  // namespace capstan::tests
