#pragma once
// Runs of ring attention over random problems, on any device: one rank's shard at a time, against the same on one rank.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/ring_attention.h"
#include "tests/support/dense_attention.h"

namespace capstan::tests {

namespace ring_runs {
constexpr std::int64_t batch = 2, heads = 4, groups = 2, depth = 8;
}

/// Two sequences: the first is one document, the second holds several.
using Problems = std::array<AttentionProblem, ring_runs::batch>;
std::shared_ptr<const Problems> make_problems(std::int64_t tokens, bool z, std::int64_t npos);

struct Case {
  std::int64_t tokens, tile;
  kernels::DType type;
  kernels::Device device;
  std::shared_ptr<const Problems> problems;

  bool cope() const { return bool(problems->front().table); }
  std::string text() const;
  kernels::AttentionSettings settings() const;
};

/// The rows `index` of both sequences' tensors as one [B, T, …].
kernels::Tensor stacked(const kernels::Tensor& first, const kernels::Tensor& second,
                        const std::vector<std::int64_t>& index, kernels::DType type, kernels::Device device);

/// What one rank holds of inputs, and what it computed; in the host's memory.
struct Shard {
  std::vector<std::int64_t> index;
  kernels::Tensor o, lse, horizon, carry;
  kernels::Tensor dq, dk, dv, dz, dtable;
};

parallel::Ring make_ring(parallel::Communicator& comm, std::int64_t tokens, std::int64_t tile,
                         const std::string& schedule, int head_ranks = 0);
Shard run_shard(const parallel::Ring& ring, const Case& c);
Shard run_alone(const Case& c);

void expect_close_rows(const Shard& whole, const Shard& part, const kernels::Tensor Shard::*x, double tolerance,
                       const char* name);
void expect_close_gradients(const Shard& whole, const Shard& part, double tolerance);
void expect_same_gradients(const Shard& a, const Shard& b);

std::vector<Case> cases_of(const std::vector<std::int64_t>& lengths, std::int64_t npos, kernels::DType type,
                           kernels::Device device);
/// Schedules that this number of ranks can play with two kv heads, and how many ranks split the heads.
std::vector<std::pair<std::string, int>> schedules_of(int ranks, bool ordered);

/// One rank's shard under a schedule against the same rows on one rank: the same bits, but for zigzag, which adds in another order, and
/// for gradients.
void compare_with_one_rank(parallel::Communicator& comm, const Case& c, const Shard& alone, const std::string& schedule,
                           int head_ranks, double tolerance);

/// One rank against the dense oracle.
class Oracle {
 public:
  explicit Oracle(const Problems& problems);
  void expect(const Shard& whole, double tolerance = 1e-10) const;

 private:
  std::vector<DenseOutputs> outputs_;
  std::vector<DenseGradients> gradients_;
};

}  // namespace capstan::tests
