#pragma once
// The conformance matrix: every encoding under every schedule against the dense oracle (oracle_model.h).

#include <functional>
#include <string>
#include <vector>

#include "tests/support/oracle_model.h"
#include "tests/support/tiny_model.h"

namespace capstan::tests {

/// A row of the matrix: a kind with options of its own.
struct EncodingCase {
  std::string name, kind;
  std::function<void(framework::PositionConfig&)> set = [](framework::PositionConfig&) {};
};
const std::vector<EncodingCase>& encoding_cases();

/// A column: a schedule, and for ulysses how many ranks split the heads (0: all).
struct ScheduleCase {
  std::string name, schedule;
  int heads = 0;
};
const std::vector<ScheduleCase>& schedule_cases();

/// One cell and how it is run.
struct Cell {
  int encoding = 0, schedule = 0, ranks = 1;
  bool packed = false, grouped = false;  ///< several documents; fewer kv heads than query heads
  framework::Keep keep = framework::Keep::everything;
  std::int64_t tile = 4;
  int form = 0;  ///< of the block, in block_forms()
  std::string text() const;
};

/// Why the cell cannot run; empty if it does. As the recipe's check says it.
std::string refusal_of(const Cell& cell);

/// Cells of the full matrix, refused ones included; all in Llama's block.
std::vector<Cell> all_cells();
/// Cells that hold every pair of values of two factors that runs at all: in these forms of the block, which are one factor.
std::vector<Cell> covering_cells(const std::vector<int>& forms);
/// The indices of block_forms().
std::vector<int> all_forms();
/// Where encoding_cases() has the case of that name.
int encoding_named(const std::string& name);

/// What cells are computed in, and how near the oracle, which has the same parameters, the results must be:
///   f64   on ref, within 1e-10;
///   f32   on cpu or cuda, twice the error of plain implementations: the oracle's formulas in f32, and the ref kernels in f32;
///   bf16  on cpu or cuda, twice the error of the same formulas in f64 and in f32, rounded where bf16 is stored.
/// A plain implementation may be lucky in a tensor of a dozen numbers: its error in one is the worst over four texts (eight in other
/// blocks than Llama's, which have up to seven biases more in each layer), and counts at least as much as the mean over all tensors.
struct Arithmetic {
  kernels::Device device;
  kernels::DType type;
};
constexpr Arithmetic exact_arithmetic{kernels::Device::ref, kernels::DType::f64},
    f32_arithmetic{kernels::Device::cpu, kernels::DType::f32},
    bf16_arithmetic{kernels::Device::cpu, kernels::DType::bf16};

/// Runs a cell on the ranks of `comm` and compares with the oracle, whose results are kept between calls: each token's NLL,
/// TAPE's states, the gradient of every parameter and of the residual stream.
class Conformance {
 public:
  /// Sequences of so many tokens; packed ones hold documents of 7, 3, 1 and the rest.
  Conformance(std::int64_t plain_tokens, std::int64_t packed_tokens, Arithmetic arithmetic = exact_arithmetic)
      : plain_tokens_(plain_tokens), packed_tokens_(packed_tokens), arithmetic_(arithmetic) {}
  /// Evaluates the oracle of the cell; before the ranks run.
  void prepare(const Cell& cell);

  /// The result that comes nearest to its bound, or is farthest over it.
  struct Worst {
    double error = 0, bound = 1;
    std::string name;
  };
  Worst run(parallel::Communicator& comm, const Cell& cell) const;

 private:
  using Results = std::map<std::string, std::vector<double>>;
  using Bounds = std::map<std::string, double>;
  struct Expected {
    Results exact;
    Bounds bounds;
  };
  TinyShape shape_of(const Cell& cell, const Arithmetic& arithmetic) const;
  std::string key_of(const Cell& cell) const;
  std::vector<std::int64_t> documents_of(const Cell& cell) const;
  std::int64_t tokens_of(const Cell& cell) const { return cell.packed ? packed_tokens_ : plain_tokens_; }
  Results oracle_results(const Cell& cell, OracleArithmetic arithmetic, std::uint64_t seed) const;
  Results model_results(parallel::Communicator& comm, const Cell& cell, const Arithmetic& arithmetic,
                        const ScheduleCase& schedule) const;
  Bounds naive_errors(const Cell& cell, const Results& exact) const;

  std::int64_t plain_tokens_, packed_tokens_;
  Arithmetic arithmetic_;
  std::map<std::string, Expected> expected_;
};

}  // namespace capstan::tests
