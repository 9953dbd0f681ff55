// Every encoding under every schedule, exact. The whole matrix has the label `matrix`; cells that cover every pair of factors
// run by default (label `covering`).

#include "tests/support/conformance.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

namespace capstan::tests {
namespace {

void run_cells(Conformance& conformance, const std::vector<Cell>& cells) {
  for (const Cell& cell : cells) conformance.prepare(cell);
  for (int ranks : {1, 2, 3, 4, 8})
    parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
      for (const Cell& cell : cells) {
        if (cell.ranks != ranks) continue;
        const Conformance::Worst worst = conformance.run(comm, cell);
        EXPECT_LE(worst.error, worst.bound) << cell.text() << ": " << worst.name;
      }
    });
}

/// In parts, so that they run beside each other and none takes long.
class ConformanceCovering : public testing::TestWithParam<int> {};
constexpr int parts = 8;

TEST_P(ConformanceCovering, AgreesWithTheDenseOracle) {
  std::vector<Cell> cells;
  for (const Cell& cell : covering_cells(all_forms()))
    if (cell.encoding % parts == GetParam()) cells.push_back(cell);
  ASSERT_FALSE(cells.empty());
  Conformance conformance(61, 70);
  run_cells(conformance, cells);
}

INSTANTIATE_TEST_SUITE_P(Part, ConformanceCovering, testing::Range(0, parts), testing::PrintToStringParamName());

/// The fast kernels: the covering cells of Llama's block in turn in f32 and in bf16, and all encodings in both.
TEST_P(ConformanceCovering, FastKernelsErrAtMostTwiceAsMuchAsPlainOnes) {
  std::vector<Cell> cells[2];
  int number = 0;
  for (const Cell& cell : covering_cells({0}))
    if (cell.encoding % parts == GetParam()) cells[number++ % 2].push_back(cell);
  for (int which : {0, 1}) {
    Conformance conformance(61, 70, which == 0 ? f32_arithmetic : bf16_arithmetic);
    run_cells(conformance, cells[which]);
  }
}

/// Other blocks on the fast kernels, under the encoding whose errors say most of them: it adds no bends, at which rounding moves a
/// gradient by as much as itself (CoPE's, between two positions).
TEST(ConformanceOfBlocksCovering, FastKernelsErrAtMostTwiceAsMuchAsPlainOnes) {
  std::vector<Cell> cells;
  for (const int form : all_forms())
    for (const bool packed : {false, true})
      for (const bool grouped : {false, true})
        cells.push_back({encoding_named("rope"), 0, grouped ? 1 : 2, packed, grouped, framework::Keep::ring, 4, form});
  for (const Arithmetic& arithmetic : {f32_arithmetic, bf16_arithmetic}) {
    Conformance conformance(61, 70, arithmetic);
    run_cells(conformance, cells);
  }
}

class ConformanceMatrix : public testing::TestWithParam<int> {};

/// One encoding: all that runs, and how many cells are refused, appended to the file that CAPSTAN_MATRIX_LOG names.
TEST_P(ConformanceMatrix, AgreesWithTheDenseOracle) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Cell> cells;
  std::size_t refused = 0;
  for (const Cell& cell : all_cells()) {
    if (cell.encoding != GetParam()) continue;
    if (refusal_of(cell).empty()) cells.push_back(cell);
    else ++refused;
  }
  Conformance conformance(131, 256);
  run_cells(conformance, cells);
  if (const char* path = std::getenv("CAPSTAN_MATRIX_LOG")) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::ofstream(path, std::ios::app) << fmt::format("| {} | {} | {} | {:.0f} | {} |\n",
                                                      encoding_cases()[std::size_t(GetParam())].name, cells.size(),
                                                      refused, seconds.count(), HasFailure() ? "FAILED" : "passed");
  }
}

INSTANTIATE_TEST_SUITE_P(Encoding, ConformanceMatrix, testing::Range(0, int(encoding_cases().size())),
                         testing::PrintToStringParamName());

/// What runs and what is refused: no cell falls between, and only for the reasons that there are.
TEST(ConformanceCells, RunOrAreRefused) {
  std::map<std::string, std::set<std::string>> refused;  // encoding → schedules, for 4 ranks
  for (const Cell& cell : all_cells()) {
    const std::string reason = refusal_of(cell);
    if (cell.ranks != 4 || reason.empty()) continue;
    refused[encoding_cases()[std::size_t(cell.encoding)].name].insert(
        schedule_cases()[std::size_t(cell.schedule)].name);
  }
  std::set<std::string> names;
  for (const auto& [encoding, schedules] : refused) {
    EXPECT_EQ(schedules, std::set<std::string>{"zigzag"}) << encoding;
    EXPECT_NE(encoding.find("cope"), std::string::npos) << encoding;
    names.insert(encoding);
  }
  for (const EncodingCase& c : encoding_cases()) {
    const bool in_order = c.kind.find("cope") != std::string::npos && c.name.find("token gates") == std::string::npos;
    EXPECT_EQ(names.contains(c.name), in_order) << c.name;
  }
}

}  // namespace
}  // namespace capstan::tests
