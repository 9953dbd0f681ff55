#pragma once
// Attention over a long sequence on a ring of ranks, forward and backward, held against sampled rows and key columns
// that are computed directly, in O(T) each, from the formulas of dense_attention.h:
//
//   rows      all of o, lse, dq and the tables' gradients of 256 rows, from q, k, v and d_o alone
//   columns   dk, dv of 64 keys and the pooled gate keys' gradient of a few blocks; each takes a part of every later
//             row, whose lse and o (for δ = d_o·o) are the ring's own: the sampled rows speak for these
//
// Both are computed in f64 and, naively, in f32.

#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "tests/support/long_problem.h"

namespace capstan::tests {

/// Error of one result over its samples: the root mean square of ‖got - exact‖ / ‖exact‖, so that every sample counts
/// alike.
struct LongError {
  std::string name;
  double error = 0;
  double bound = 0;  ///< twice the naive f32's error (f32_bound, tests/support/tensors.h)
  std::int64_t samples = 0;
};

/// The same on all ranks.
struct LongResult {
  int ranks = 1;
  std::string schedule;
  double forward_seconds = 0, backward_seconds = 0;  ///< of the slowest rank
  double cpu_seconds = 0;                            ///< of all ranks' processors, for both
  std::int64_t tensor_bytes = 0;    ///< most that the Tensors of a rank held; where ranks are threads, their mean
  std::int64_t resident_bytes = 0;  ///< of the fullest process, when attention was done
  bool new_peak = false;            ///< false: the process had held more before, and tensor_bytes says nothing
  double flat_share = 0;            ///< tiles without a gate per key
  std::vector<LongError> rows, columns;
};

LongResult run_long_attention(parallel::Communicator& comm, const LongProblem& problem);

/// A markdown table, its head first.
std::string long_table_head();
std::string long_table_row(const LongProblem& problem, const LongResult& result);

}  // namespace capstan::tests
