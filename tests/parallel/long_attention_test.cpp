#include "tests/support/long_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace capstan::tests {
namespace {

constexpr int ranks = 2;

LongResult run(const LongProblem& problem) {
  LongResult result;
  parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
    const LongResult mine = run_long_attention(comm, problem);
    if (comm.rank() == 0) result = mine;
  });
  fmt::print("{}", long_table_row(problem, result));
  return result;
}

void expect_right(const LongResult& result) {
  EXPECT_EQ(result.schedule, "ordered_pull");
  for (const std::vector<LongError>* errors : {&result.rows, &result.columns})
    for (const LongError& e : *errors) {
      EXPECT_GE(e.samples, e.name.starts_with("d_gate_k") ? 3 : 60) << e.name;
      EXPECT_LE(e.error, e.bound) << e.name << ", " << e.samples << " samples";
    }
}

/// Results of both sizes are right, and memory grows with the sequence and no faster.
void check_sizes(LongEncoding encoding, std::int64_t small, std::int64_t large) {
  fmt::print("{}", long_table_head());
  const LongProblem problems[] = {{encoding, small}, {encoding, large}};
  double per_token[2];
  bool measured = true;
  for (int n = 0; n < 2; ++n) {
    SCOPED_TRACE(problems[n].tokens);
    const LongResult result = run(problems[n]);
    expect_right(result);
    EXPECT_GT(result.flat_share, 0.9);  // each row sums the gates of some 130 keys, or of its own block
    EXPECT_LT(result.flat_share, 1);
    per_token[n] = double(result.tensor_bytes) / double(problems[n].tokens);
    measured = measured && result.new_peak;
  }
  if (!measured) {
    fmt::print("memory is not compared: other tests of this process have held more (run this one alone)\n");
    return;
  }
  EXPECT_NEAR(per_token[1], per_token[0], 0.1 * per_token[0]);
}

TEST(LongAttentionCovering, CopeOf65536TokensAgreesWithSamples) { check_sizes(LongEncoding::cope, 16'384, 65'536); }

TEST(LongAttentionCovering, HierarchicalCopeOf65536TokensAgreesWithSamples) {
  check_sizes(LongEncoding::hierarchical, 16'384, 65'536);
}

TEST(LongAttentionMatrix, CopeOf262144TokensAgreesWithSamples) { check_sizes(LongEncoding::cope, 65'536, 262'144); }

TEST(LongAttentionMatrix, HierarchicalCopeOf262144TokensAgreesWithSamples) {
  check_sizes(LongEncoding::hierarchical, 65'536, 262'144);
}

}  // namespace
}  // namespace capstan::tests
