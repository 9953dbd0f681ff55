// Plays every schedule on paper: who holds what when, without a communicator.

#include "parallel/ring_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "kernels/check.h"

namespace capstan::tests {
namespace {

using parallel::RingSchedule;
using parallel::SequenceLayout;
using parallel::Slot;
using parallel::Transfer;
using parallel::Work;

using Table = std::vector<std::vector<Slot>>;

SequenceLayout layout_of(int ranks) { return SequenceLayout::contiguous(4 * ranks, ranks, 4); }

std::size_t slots_of(const Table& table) { return table.at(0).size(); }

/// (chunk, from, to) of all transfers of one slot, as senders or as receivers see them.
using Links = std::multiset<std::tuple<int, int, int>>;

Links sent(const Table& table, std::size_t slot, std::vector<Transfer> Slot::*list) {
  Links links;
  for (int rank = 0; rank < std::ssize(table); ++rank)
    for (const Transfer& t : table[rank][slot].*list) links.emplace(t.chunk, rank, t.peer);
  return links;
}

Links received(const Table& table, std::size_t slot, std::vector<Transfer> Slot::*list) {
  Links links;
  for (int rank = 0; rank < std::ssize(table); ++rank)
    for (const Transfer& t : table[rank][slot].*list) links.emplace(t.chunk, t.peer, rank);
  return links;
}

/// Sends and receives of keys meet in one slot, those of gradients in the next; nobody sends to itself; one message per
/// (chunk, from, to) in the whole walk, so that tags cannot mix up messages.
void expect_transfers_match(const Table& table) {
  const std::size_t slots = slots_of(table);
  Links keys, gradients;
  for (const auto& row : table) ASSERT_EQ(row.size(), slots);
  for (std::size_t s = 0; s < slots; ++s) {
    ASSERT_EQ(sent(table, s, &Slot::send_keys), received(table, s, &Slot::receive_keys)) << "slot " << s;
    ASSERT_TRUE(s > 0 || received(table, 0, &Slot::receive_gradients).empty());
    const Links arriving = s + 1 < slots ? received(table, s + 1, &Slot::receive_gradients) : Links();
    ASSERT_EQ(sent(table, s, &Slot::send_gradients), arriving) << "slot " << s;
    keys.merge(sent(table, s, &Slot::send_keys));
    gradients.merge(sent(table, s, &Slot::send_gradients));
  }
  for (const Links& links : {keys, gradients})
    for (const auto& link : links) {
      ASSERT_EQ(links.count(link), 1u);
      ASSERT_NE(std::get<1>(link), std::get<2>(link));
    }
}

/// Every causal pair of chunks is computed once, at the owner of the query chunk, in the given order of key chunks, and
/// only with keys in hand: its own ones, or such as arrived in an earlier slot. Whatever is sent is in hand, too.
void expect_work_is_possible(const Table& table, const SequenceLayout& layout, bool near_to_far) {
  const int chunks = int(layout.chunks().size());
  std::vector<std::set<int>> held(table.size());
  std::map<int, std::vector<int>> met;  // key chunks of a query chunk, in the order of work
  for (int rank = 0; rank < std::ssize(table); ++rank)
    for (int chunk : layout.owned(rank)) held[rank].insert(chunk);
  for (std::size_t s = 0; s < slots_of(table); ++s) {
    for (int rank = 0; rank < std::ssize(table); ++rank) {
      for (const Work& work : table[rank][s].work) {
        ASSERT_EQ(layout.chunks()[work.query_chunk].owner, rank);
        ASSERT_TRUE(held[rank].contains(work.key_chunk))
            << "rank " << rank << " slot " << s << " chunk " << work.key_chunk;
        met[work.query_chunk].push_back(work.key_chunk);
      }
      for (const Transfer& t : table[rank][s].send_keys) ASSERT_TRUE(held[rank].contains(t.chunk));
    }
    for (int rank = 0; rank < std::ssize(table); ++rank)
      for (const Transfer& t : table[rank][s].receive_keys)
        ASSERT_TRUE(held[rank].insert(t.chunk).second) << "received twice";
  }
  for (int query = 0; query < chunks; ++query) {
    std::vector<int> expected;
    for (int key = 0; key <= query; ++key) expected.push_back(key);
    if (near_to_far) std::reverse(expected.begin(), expected.end());
    ASSERT_EQ(met[query], expected) << "query chunk " << query;
  }
}

/// Follows each chunk's gradient: a sum of parts, each made by a rank that worked on the chunk, that ends at the owner
/// and holds every part once.
void expect_gradients_come_home(const Table& table, const SequenceLayout& layout) {
  const int chunks = int(layout.chunks().size());
  std::vector<std::map<int, std::multiset<int>>> sums(table.size());  // [rank][chunk]: query chunks summed so far
  std::map<std::tuple<int, int, int>, std::multiset<int>> on_the_way;
  for (std::size_t s = 0; s < slots_of(table); ++s) {
    for (int rank = 0; rank < std::ssize(table); ++rank) {
      const Slot& slot = table[rank][s];
      for (const Work& work : slot.work) sums[rank][work.key_chunk].insert(work.query_chunk);
      for (const Transfer& t : slot.receive_gradients)
        sums[rank][t.chunk].merge(on_the_way.at({t.chunk, t.peer, rank}));
    }
    for (int rank = 0; rank < std::ssize(table); ++rank)
      for (const Transfer& t : table[rank][s].send_gradients) {
        on_the_way[{t.chunk, rank, t.peer}] = sums[rank].at(t.chunk);
        sums[rank].erase(t.chunk);
      }
  }
  for (int rank = 0; rank < std::ssize(table); ++rank)
    for (const auto& [chunk, parts] : sums[rank])
      ASSERT_EQ(layout.chunks()[chunk].owner, rank) << "gradient of " << chunk << " left behind";
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::multiset<int> all;
    for (int query = chunk; query < chunks; ++query) all.insert(query);
    ASSERT_EQ(sums[layout.chunks()[chunk].owner].at(chunk), all) << "chunk " << chunk;
  }
}

TEST(RingSchedule, ContiguousIsExactForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    const SequenceLayout layout = layout_of(ranks);
    const RingSchedule schedule = contiguous_schedule(layout);
    ASSERT_EQ(std::ssize(schedule.forward), ranks);
    ASSERT_EQ(std::ssize(schedule.backward), ranks);
    expect_transfers_match(schedule.forward);
    expect_work_is_possible(schedule.forward, layout, true);
    expect_transfers_match(schedule.backward);
    expect_work_is_possible(schedule.backward, layout, false);
    expect_gradients_come_home(schedule.backward, layout);
    if (HasFatalFailure()) return;
  }
}

TEST(RingSchedule, ContiguousDoesTheOwnChunkFirstAndLast) {
  const RingSchedule schedule = contiguous_schedule(layout_of(5));
  for (int rank = 0; rank < 5; ++rank) {
    const Work first = schedule.forward[rank].front().work.at(0), last = schedule.backward[rank].back().work.at(0);
    EXPECT_EQ(first.key_chunk, rank);
    EXPECT_EQ(last.key_chunk, rank);
  }
}

TEST(RingSchedule, ContiguousHoldsFewChunksAtATime) {
  // Memory: besides its own chunk, a rank needs the one it works on and the one that arrives.
  constexpr int ranks = 16;
  const RingSchedule schedule = contiguous_schedule(layout_of(ranks));
  for (const Table& table : {schedule.forward, schedule.backward})
    for (int rank = 0; rank < ranks; ++rank)
      for (const Slot& slot : table[rank]) {
        EXPECT_LE(slot.work.size(), 1u);
        EXPECT_LE(slot.receive_keys.size(), 1u);
        EXPECT_LE(slot.receive_gradients.size(), 1u);
      }
}

TEST(RingSchedule, Names) {
  const SequenceLayout layout = layout_of(3);
  EXPECT_EQ(parallel::make_schedule("auto", layout).name, "contiguous");
  EXPECT_EQ(parallel::make_schedule("contiguous", layout).name, "contiguous");
  try {
    parallel::make_schedule("zigzig", layout);
    FAIL() << "accepted";
  } catch (const Error& error) { EXPECT_EQ(error.code(), ExitCode::config); }
}

}  // namespace
}  // namespace capstan::tests
