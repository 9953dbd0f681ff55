#include "parallel/sequence_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace capstan::tests {
namespace {

using parallel::Chunk;
using parallel::SequenceLayout;

void expect_sound(std::int64_t length, int ranks, std::int64_t unit) {
  SCOPED_TRACE(testing::Message() << "S " << length << " ranks " << ranks << " unit " << unit);
  const SequenceLayout layout = SequenceLayout::contiguous(length, ranks, unit);
  ASSERT_EQ(int(layout.chunks().size()), ranks);
  ASSERT_EQ(layout.length(), length);
  std::int64_t next = 0, fewest = length, most = 0;
  bool past_the_end = false;
  for (int rank = 0; rank < ranks; ++rank) {
    const Chunk& chunk = layout.chunks()[rank];
    ASSERT_EQ(chunk.begin, next);  // covers every token once, in order
    ASSERT_GE(chunk.end, chunk.begin);
    next = chunk.end;
    ASSERT_EQ(chunk.owner, rank);
    ASSERT_TRUE(chunk.end % unit == 0 || chunk.end == length);
    ASSERT_FALSE(past_the_end && chunk.tokens() > 0) << "an empty rank before the end";
    past_the_end = chunk.tokens() == 0;
    const std::int64_t units = (chunk.tokens() + unit - 1) / unit;
    fewest = std::min(fewest, units);
    most = std::max(most, units);
    ASSERT_EQ(layout.owned(rank), std::vector<int>{rank});
    ASSERT_EQ(layout.local_tokens(rank), chunk.tokens());
    ASSERT_EQ(layout.local_offset(rank), 0);
    const std::vector<std::int64_t> index = layout.local_index(rank);
    ASSERT_EQ(std::ssize(index), chunk.tokens());
    for (std::int64_t t = 0; t < chunk.tokens(); ++t) ASSERT_EQ(index[t], chunk.begin + t);
  }
  ASSERT_EQ(next, length);
  ASSERT_LE(most - fewest, 1);  // as even as units go
  const auto longest = std::max_element(layout.chunks().begin(), layout.chunks().end(),
                                        [](const Chunk& a, const Chunk& b) { return a.tokens() < b.tokens(); });
  ASSERT_EQ(layout.largest_chunk(), longest->tokens());
}

TEST(SequenceLayout, ContiguousCoversEveryTokenOnce) {
  for (std::int64_t length = 1; length <= 300; ++length)
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (std::int64_t unit : {1, 4, 64}) {
        expect_sound(length, ranks, unit);
        if (HasFatalFailure()) return;
      }
}

TEST(SequenceLayout, LongSequences) {
  expect_sound(1'000'003, 64, 256);
  expect_sound(1'000'003, 1000, 64);
}

TEST(SequenceLayout, EmptySequenceLeavesAllRanksEmpty) {
  const SequenceLayout layout = SequenceLayout::contiguous(0, 3, 64);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(layout.local_tokens(rank), 0);
}

TEST(SequenceLayout, TheExampleInTheHeader) {
  const SequenceLayout layout = SequenceLayout::contiguous(10 * 64, 3, 64);
  EXPECT_EQ(layout.local_tokens(0), 4 * 64);
  EXPECT_EQ(layout.local_tokens(1), 3 * 64);
  EXPECT_EQ(layout.local_tokens(2), 3 * 64);
}

}  // namespace
}  // namespace capstan::tests
