#pragma once
// What a run will need, computed without running it: layout, schedule, bytes that move, memory by name.

#include <cstdint>
#include <string>
#include <vector>

#include "framework/arithmetic.h"
#include "framework/encoding.h"
#include "parallel/ring_attention.h"

namespace capstan::framework {

struct MemoryLine {
  std::string name;
  std::int64_t bytes = 0;
  std::string how;  ///< the arithmetic in words
};

struct Plan {
  int ranks = 1, data = 1, ring = 1;
  std::int64_t parameters = 0, trainable = 0;
  std::vector<std::int64_t> local_tokens;  ///< per ring rank
  std::string schedule;
  std::int64_t forward_slots = 0, backward_slots = 0;
  std::int64_t bytes_per_hop_forward = 0,
               bytes_per_hop_backward = 0;  ///< of the largest chunk, one layer, one micro-batch
  std::int64_t forward_bytes_per_rank = 0,
               backward_bytes_per_rank = 0;  ///< most that a rank sends for one layer and micro-batch
  std::vector<MemoryLine> memory;            ///< of the fullest rank
  std::int64_t memory_total() const;
  std::int64_t checkpoint_bytes = 0;
  std::int64_t tokens_per_step = 0, total_tokens = 0;
  ForwardFlops flops;  ///< of one sequence
};

/// Attention inputs of a layer by their shapes alone, without memory: for parallel::bytes_sent.
parallel::RingInputs ring_shapes(const Recipe& recipe, const Encoding& encoding, int layer, std::int64_t local_tokens);

/// The recipe must be resolved (vocabulary known, sizes not 0). Errors: config (ranks that do not divide, …).
Plan make_plan(const Recipe& recipe, int ranks);

/// For people.
std::string text_of(const Plan& plan, const Recipe& recipe);

/// "1.5 MiB"
std::string bytes_text(std::int64_t bytes);

}  // namespace capstan::framework
