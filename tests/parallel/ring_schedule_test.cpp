// Plays every schedule on paper, for 1 to 64 ranks: who holds what when, without a communicator.

#include "parallel/ring_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "kernels/check.h"

namespace capstan::tests {
namespace {

using parallel::RingPlan;
using parallel::RingRequest;
using parallel::SequenceLayout;
using parallel::Slot;
using parallel::SlotTable;
using parallel::Transfer;
using parallel::Work;

using Parcel = std::pair<int, int>;           // chunk, head group
using Link = std::tuple<int, int, int, int>;  // chunk, group, from, to
using List = std::vector<Transfer> Slot::*;

struct Case {
  RingRequest request;
  RingPlan plan;
  int ranks() const { return plan.layout.ranks(); }
  int groups() const { return plan.schedule.groups; }
  int owner(int chunk) const { return plan.layout.chunks()[std::size_t(chunk)].owner; }
  int chunks() const { return int(plan.layout.chunks().size()); }
};

constexpr std::int64_t tile = 4;

/// Every chunk of the schedule has `tiles` tiles.
Case make_case(const std::string& schedule, int ranks, int heads = 0, std::int64_t tiles = 1) {
  RingRequest request{schedule, ranks, heads, schedule == "ulysses" ? (heads ? heads : ranks) : 3, 0, tile};
  const int chunks = int(plan_ring(request).layout.chunks().size());
  request.length = chunks * tiles * tile;
  return {request, plan_ring(request)};
}

std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const std::string& name : parallel::schedule_names())
    if (name != "auto") cases.push_back(make_case(name, ranks));
  for (int heads : {1, 2, 4, 8})
    if (heads < ranks && ranks % heads == 0) cases.push_back(make_case("ulysses", ranks, heads));
  return cases;
}

std::string name_of(const Case& c) {
  return c.request.schedule + " ranks " + std::to_string(c.ranks()) + " heads " + std::to_string(c.request.heads);
}

std::multiset<Link> links(const SlotTable& table, std::size_t slot, List list, bool sending) {
  std::multiset<Link> out;
  for (int rank = 0; slot < table[0].size() && rank < std::ssize(table); ++rank)
    for (const Transfer& t : table[std::size_t(rank)][slot].*list)
      out.emplace(t.chunk, t.group, sending ? rank : t.peer, sending ? t.peer : rank);
  return out;
}

/// Sends and receives meet: keys and rows in one slot, all else from one slot to the next; nobody sends to itself; one
/// message per kind and link in the whole walk, so that tags cannot mix up messages.
void expect_transfers_match(const SlotTable& table) {
  struct Kind {
    List send, receive;
    std::size_t later;
  };
  for (const Kind& kind : {Kind{&Slot::send_keys, &Slot::receive_keys, 0},
                           {&Slot::send_rows, &Slot::receive_rows, 0},
                           {&Slot::send_states, &Slot::receive_states, 1},
                           {&Slot::send_gradients, &Slot::receive_gradients, 1},
                           {&Slot::send_results, &Slot::receive_results, 1}}) {
    std::multiset<Link> all;
    for (std::size_t s = 0; s < table[0].size(); ++s) {
      const auto sent = links(table, s, kind.send, true);
      ASSERT_EQ(sent, links(table, s + kind.later, kind.receive, false)) << "slot " << s;
      all.insert(sent.begin(), sent.end());
    }
    if (kind.later) { ASSERT_TRUE(links(table, 0, kind.receive, false).empty()); }
    for (const Link& link : all) {
      ASSERT_EQ(all.count(link), 1u);
      ASSERT_NE(std::get<2>(link), std::get<3>(link));
    }
  }
}

/// Every causal pair of chunks of every head group is computed once, in the declared order of key chunks, only with keys
/// and rows in hand; and rows end at home.
void expect_work_is_possible(const Case& c, const SlotTable& table, bool near_to_far, bool ordered) {
  std::vector<std::set<Parcel>> keys(table.size()), rows(table.size());
  std::map<Parcel, std::vector<int>> met;
  std::map<Parcel, int> at_home;
  for (int chunk = 0; chunk < c.chunks(); ++chunk)
    for (int group = 0; group < c.groups(); ++group) {
      keys[std::size_t(c.owner(chunk))].emplace(chunk, group);
      rows[std::size_t(c.owner(chunk))].emplace(chunk, group);
    }
  for (std::size_t s = 0; s < table[0].size(); ++s) {
    for (std::size_t r = 0; r < table.size(); ++r)
      for (const Transfer& t : table[r][s].receive_states) rows[r].emplace(t.chunk, t.group);
    for (std::size_t r = 0; r < table.size(); ++r) {
      const Slot& slot = table[r][s];
      for (const Work& w : slot.work) {
        ASSERT_TRUE(keys[r].contains({w.key_chunk, w.group}))
            << "rank " << r << " slot " << s << " key " << w.key_chunk;
        ASSERT_TRUE(rows[r].contains({w.query_chunk, w.group})) << "rank " << r << " slot " << s;
        met[{w.query_chunk, w.group}].push_back(w.key_chunk);
      }
      for (const Transfer& t : slot.send_keys) { ASSERT_TRUE(keys[r].contains({t.chunk, t.group})); }
      for (const Transfer& t : slot.send_rows) { ASSERT_EQ(rows[r].erase({t.chunk, t.group}), 1u); }
      for (List list : {&Slot::send_states, &Slot::send_results})
        for (const Transfer& t : slot.*list) { ASSERT_EQ(rows[r].erase({t.chunk, t.group}), 1u); }
    }
    for (std::size_t r = 0; r < table.size(); ++r) {
      for (const Transfer& t : table[r][s].receive_keys) {
        ASSERT_TRUE(keys[r].emplace(t.chunk, t.group).second) << "received twice";
      }
      for (List list : {&Slot::receive_rows, &Slot::receive_results})
        for (const Transfer& t : table[r][s].*list) rows[r].emplace(t.chunk, t.group);
    }
  }
  for (int chunk = 0; chunk < c.chunks(); ++chunk)
    for (int group = 0; group < c.groups(); ++group) {
      ASSERT_TRUE(rows[std::size_t(c.owner(chunk))].contains({chunk, group})) << "rows of " << chunk << " not at home";
      std::vector<int> expected(std::size_t(chunk) + 1), got = met[{chunk, group}];
      std::iota(expected.begin(), expected.end(), 0);
      if (near_to_far) std::reverse(expected.begin(), expected.end());
      if (!ordered) {
        std::sort(expected.begin(), expected.end());
        std::sort(got.begin(), got.end());
      }
      ASSERT_EQ(got, expected) << "query chunk " << chunk << " group " << group;
    }
}

/// Follows each key chunk's gradient: a sum of parts, each made by a rank that worked on the chunk, that ends at the
/// owner and holds every part once.
void expect_gradients_come_home(const Case& c, const SlotTable& table) {
  std::vector<std::map<Parcel, std::multiset<int>>> sums(table.size());  // query chunks summed so far
  std::map<Link, std::multiset<int>> on_the_way;
  for (std::size_t s = 0; s < table[0].size(); ++s) {
    for (std::size_t r = 0; r < table.size(); ++r) {
      for (const Work& w : table[r][s].work) sums[r][{w.key_chunk, w.group}].insert(w.query_chunk);
      for (const Transfer& t : table[r][s].receive_gradients)
        sums[r][{t.chunk, t.group}].merge(on_the_way.at({t.chunk, t.group, t.peer, int(r)}));
    }
    for (std::size_t r = 0; r < table.size(); ++r)
      for (const Transfer& t : table[r][s].send_gradients) {
        on_the_way[{t.chunk, t.group, int(r), t.peer}] = sums[r].at({t.chunk, t.group});
        sums[r].erase({t.chunk, t.group});
      }
  }
  for (int chunk = 0; chunk < c.chunks(); ++chunk)
    for (int group = 0; group < c.groups(); ++group) {
      std::multiset<int> all;
      for (int query = chunk; query < c.chunks(); ++query) all.insert(query);
      for (int r = 0; r < c.ranks(); ++r) {
        const auto found = sums[std::size_t(r)].find({chunk, group});
        if (found == sums[std::size_t(r)].end()) continue;
        ASSERT_EQ(r, c.owner(chunk)) << "gradient of " << chunk << " left behind";
        ASSERT_EQ(found->second, all) << "chunk " << chunk;
      }
    }
}

/// Work of a pair in tiles: whole, or a triangle on the diagonal.
double tiles_of(const Case& c, const Work& w) {
  const double m = double(c.plan.layout.chunks()[std::size_t(w.query_chunk)].steps(tile)),
               n = double(c.plan.layout.chunks()[std::size_t(w.key_chunk)].steps(tile));
  return w.query_chunk == w.key_chunk ? m * (m + 1) / 2 : m * n;
}

/// Finishing time of the last rank over the mean work, if each rank begins a slot when the one before is done and its
/// messages are there, transfers being free: keys and rows are there when the sender has begun the slot, states when it
/// has finished the one before.
double makespan(const Case& c, const SlotTable& table) {
  std::vector<double> begin(table.size()), end(table.size());
  double total = 0;
  for (std::size_t s = 0; s < table[0].size(); ++s) {
    const std::vector<double> before = end;
    for (std::size_t r = 0; r < table.size(); ++r) {
      begin[r] = before[r];
      for (const Transfer& t : table[r][s].receive_states) begin[r] = std::max(begin[r], before[std::size_t(t.peer)]);
    }
    for (std::size_t r = 0; r < table.size(); ++r) {
      double work = 0;
      for (const Work& w : table[r][s].work) work += tiles_of(c, w);
      total += work;
      end[r] = begin[r] + work;
      for (List list : {&Slot::receive_keys, &Slot::receive_rows})
        for (const Transfer& t : table[r][s].*list) end[r] = std::max(end[r], begin[std::size_t(t.peer)]);
    }
  }
  return *std::max_element(end.begin(), end.end()) / (total / double(table.size()));
}

class ScheduleTableCovering : public testing::TestWithParam<int> {};

void expect_sound(int ranks) {
  for (const Case& c : all_cases(ranks)) {
    SCOPED_TRACE(name_of(c));
    const bool ordered = parallel::keeps_key_order(c.request.schedule);
    ASSERT_NO_FATAL_FAILURE(expect_transfers_match(c.plan.schedule.forward));
    ASSERT_NO_FATAL_FAILURE(expect_transfers_match(c.plan.schedule.backward));
    ASSERT_NO_FATAL_FAILURE(expect_work_is_possible(c, c.plan.schedule.forward, true, ordered));
    ASSERT_NO_FATAL_FAILURE(expect_work_is_possible(c, c.plan.schedule.backward, false, ordered));
    ASSERT_NO_FATAL_FAILURE(expect_gradients_come_home(c, c.plan.schedule.backward));
  }
}

// All of 1 to 64 ranks; the many in parts, so that they run beside each other.
TEST(RingSchedule, TablesOfFewRanksAreSound) {
  for (int ranks = 1; ranks <= 12; ++ranks) expect_sound(ranks);
}

TEST_P(ScheduleTableCovering, IsSound) {
  for (int ranks = GetParam(); ranks <= 64; ranks += 4) expect_sound(ranks);
}

INSTANTIATE_TEST_SUITE_P(RanksFrom, ScheduleTableCovering, testing::Values(13, 14, 15, 16),
                         testing::PrintToStringParamName());

/// zigzag's own chunks come first in forward and last in backward, near → far: what terms that live in the row's own block
/// rely on.
TEST(RingSchedule, ZigzagBeginsAtHome) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const Case c = make_case("zigzag", ranks);
    for (int r = 0; r < ranks; ++r) {
      std::vector<Work> forward, backward;
      for (const Slot& s : c.plan.schedule.forward[std::size_t(r)])
        forward.insert(forward.end(), s.work.begin(), s.work.end());
      for (const Slot& s : c.plan.schedule.backward[std::size_t(r)])
        backward.insert(backward.end(), s.work.begin(), s.work.end());
      std::reverse(backward.begin(), backward.end());
      for (const auto& work : {forward, backward})
        for (int chunk : {r, 2 * ranks - 1 - r}) {
          const auto first =
              std::find_if(work.begin(), work.end(), [&](const Work& w) { return w.query_chunk == chunk; });
          ASSERT_EQ(first->key_chunk, chunk);
        }
    }
  }
}

void expect_balance(int first, int last) {
  for (int ranks = first; ranks <= last; ++ranks)
    for (std::int64_t tiles : {1, 4})
      for (const Case& c : {make_case("zigzag", ranks, 0, tiles), make_case("ordered_pull", ranks, 0, tiles),
                            make_case("allgather", ranks, 0, tiles), make_case("ulysses", ranks, 0, tiles)}) {
        SCOPED_TRACE(name_of(c) + " tiles " + std::to_string(tiles));
        EXPECT_LE(makespan(c, c.plan.schedule.forward), 1.02);
        EXPECT_LE(makespan(c, c.plan.schedule.backward), 1.02);
      }
  for (int ranks = std::max(first, 4); ranks <= last; ranks *= 2)
    for (int heads : {2, 4}) {
      const Case c = make_case("ulysses", ranks / heads * heads, heads, 2);
      SCOPED_TRACE(name_of(c));
      EXPECT_LE(makespan(c, c.plan.schedule.forward), 1.02);
      EXPECT_LE(makespan(c, c.plan.schedule.backward), 1.02);
    }
}

TEST(RingSchedule, FewBalancedRanksFinishTogether) { expect_balance(1, 12); }
TEST(RingScheduleCovering, BalancedRanksFinishTogether) { expect_balance(13, 64); }

TEST(RingSchedule, ContiguousIsHalfIdle) {
  const Case c = make_case("contiguous", 64, 0, 4);
  EXPECT_GT(makespan(c, c.plan.schedule.forward), 1.9);
  EXPECT_LT(makespan(c, c.plan.schedule.forward), 2.0);
}

std::int64_t chunks_sent(const SlotTable& table, int rank, List list) {
  std::int64_t sent = 0;
  for (const Slot& slot : table[std::size_t(rank)]) sent += std::int64_t((slot.*list).size());
  return sent;
}

/// Key chunks that all ranks send, against formulas: contiguous W (W - 1) / 2 chunks of T / W; ordered_pull, zigzag and
/// allgather (per head group) 3 W (W - 1) / 2 chunks of T / 2W, 3/4 of the former's tokens plus …: each chunk goes once to
/// every rank that has rows after it.
TEST(RingScheduleCovering, NothingIsSentTwice) {
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (const Case& c : all_cases(ranks)) {
      SCOPED_TRACE(name_of(c));
      std::int64_t sent = 0, gradients = 0;
      for (int r = 0; r < ranks; ++r) {
        sent += chunks_sent(c.plan.schedule.forward, r, &Slot::send_keys);
        gradients += chunks_sent(c.plan.schedule.backward, r, &Slot::send_gradients);
      }
      const std::int64_t w = ranks;
      EXPECT_EQ(sent, gradients);
      if (c.request.schedule == "contiguous") {
        EXPECT_EQ(sent, w * (w - 1) / 2);
      } else if (c.request.schedule == "zigzag" || c.request.schedule == "ordered_pull") {
        EXPECT_EQ(sent, 3 * w * (w - 1) / 2);
      } else if (c.request.schedule == "allgather") {
        EXPECT_EQ(sent, 3 * w * (w - 1) / 2 * c.groups());
      } else if (c.request.schedule == "pass_q") {
        EXPECT_EQ(sent, 0);
      } else if (c.request.heads == 0) {
        EXPECT_EQ(sent, w * (w - 1));  // every piece of every other head group, once
      }
    }
}

/// No rank has to send a chunk to many at a time.
TEST(RingSchedule, OrderedPullSpreadsItsMessages) {
  for (int ranks : {2, 3, 8, 33, 64}) {
    const Case c = make_case("ordered_pull", ranks);
    for (const SlotTable* table : {&c.plan.schedule.forward, &c.plan.schedule.backward})
      for (const auto& slots : *table)
        for (const Slot& slot : slots) {
          std::multiset<Parcel> sent;
          for (const Transfer& t : slot.send_keys) sent.emplace(t.chunk, t.group);
          for (const Parcel& parcel : sent) EXPECT_LE(sent.count(parcel), 2u);
        }
  }
}

TEST(RingSchedule, Names) {
  EXPECT_EQ(parallel::resolve_schedule("auto", 1), "contiguous");
  EXPECT_EQ(parallel::resolve_schedule("auto", 2), "ordered_pull");
  EXPECT_EQ(parallel::resolve_schedule("zigzag", 2), "zigzag");
  for (const RingRequest& bad : {RingRequest{"zigzig", 2, 0, 2, 64, 4}, RingRequest{"ulysses", 4, 0, 2, 64, 4},
                                 RingRequest{"ulysses", 4, 3, 3, 64, 4}, RingRequest{"zigzag", 4, 2, 2, 64, 4}}) {
    try {
      parallel::plan_ring(bad);
      FAIL() << "accepted";
    } catch (const Error& error) { EXPECT_EQ(error.code(), ExitCode::config); }
  }
}

/// Row states visit a cache's chunks wherever they lie.
TEST(RingSchedule, PassQOverACache) {
  using parallel::Chunk;
  const SequenceLayout layout = SequenceLayout::of_chunks(
      {Chunk{0, 8, 0}, Chunk{8, 16, 2}, Chunk{16, 24, 2}, Chunk{24, 32, 0}, Chunk{32, 36, 1}}, 3, 4);
  const parallel::RingSchedule schedule = parallel::pass_q_schedule(layout, 3);
  ASSERT_NO_FATAL_FAILURE(expect_transfers_match(schedule.forward));
  std::map<int, std::vector<int>> met;
  for (std::size_t s = 0; s < schedule.forward[0].size(); ++s)
    for (const auto& slots : schedule.forward)
      for (const Work& w : slots[s].work) met[w.query_chunk].push_back(w.key_chunk);
  EXPECT_EQ(met[3], (std::vector<int>{3, 2, 1, 0}));
  EXPECT_EQ(met[4], (std::vector<int>{4, 3, 2, 1, 0}));
  EXPECT_EQ(met.size(), 2u);
}

}  // namespace
}  // namespace capstan::tests
