// The exchanges of every schedule, as NCCL would see them: no tags, one exchange of a rank after the other, each of which waits
// for its peers to have come to theirs.

#include "parallel/ring_exchanges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace capstan::tests {
namespace {

using parallel::RingCargo;
using parallel::RingExchange;
using parallel::RingMessage;
using parallel::Slot;
using parallel::SlotTable;

/// What a message is, for comparison of its two ends.
struct Label {
  RingCargo cargo;
  int chunk, group, tag;
  bool operator==(const Label&) const = default;
};

/// One exchange of a rank: what it sends to each peer and receives from it, in order.
struct Posted {
  int number;  // the same for all ranks: twice the slot, and one more for what is awaited after its work
  std::map<int, std::vector<Label>> to, from;
};

std::vector<Posted> exchanges_of_rank(const SlotTable& table, int rank, int groups) {
  const std::vector<Slot>& slots = table[std::size_t(rank)];
  std::vector<Posted> all;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const parallel::SlotExchanges both = parallel::exchanges_of(slots, s);
    int number = int(2 * s);
    for (const RingExchange* exchange : {&both.states, &both.others}) {
      Posted posted{number++, {}, {}};
      const auto label = [&](const RingMessage& m) {
        return Label{m.cargo, m.way.chunk, m.way.group, parallel::tag_of(m, groups)};
      };
      for (const auto* sends : {&exchange->done, &exchange->sends})
        for (const RingMessage& m : *sends) posted.to[m.way.peer].push_back(label(m));
      for (const RingMessage& m : exchange->receives) posted.from[m.way.peer].push_back(label(m));
      if (!posted.to.empty() || !posted.from.empty()) all.push_back(std::move(posted));
    }
  }
  return all;
}

std::vector<std::vector<Posted>> exchanges_of_all(const SlotTable& table, int groups) {
  std::vector<std::vector<Posted>> ranks;
  for (int rank = 0; rank < std::ssize(table); ++rank) ranks.push_back(exchanges_of_rank(table, rank, groups));
  return ranks;
}

std::vector<Label> by_tag(std::vector<Label> labels) {
  std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.tag < b.tag; });
  return labels;
}

/// Rule 1 and 2 of communicator.h: a message has one number on both sides, and of a pair the n-th send of an exchange is the
/// n-th receive of its other side, both as listed and in the order of tags, which are all different.
void expect_both_ends_alike(const std::vector<std::vector<Posted>>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Posted& mine : ranks[rank])
      for (const auto& [peer, sent] : mine.to) {
        const auto& others = ranks[std::size_t(peer)];
        const auto other = std::find_if(others.begin(), others.end(),
                                        [&](const Posted& posted) { return posted.number == mine.number; });
        ASSERT_TRUE(other != others.end()) << "rank " << peer << " posts no exchange " << mine.number;
        ASSERT_TRUE(other->from.contains(int(rank)));
        const std::vector<Label>& received = other->from.at(int(rank));
        ASSERT_EQ(sent, received) << "exchange " << mine.number << " from rank " << rank << " to rank " << peer;
        ASSERT_EQ(by_tag(sent), by_tag(received));
        std::set<int> tags;
        for (const Label& label : sent) { ASSERT_TRUE(tags.insert(label.tag).second) << "tag " << label.tag; }
      }
}

/// The messages from one rank to another that both have come to pass: the first with the first, and so on.
void pass_messages(std::vector<Label>& sent, std::vector<Label>& received) {
  const std::size_t passed = std::min(sent.size(), received.size());
  for (std::size_t i = 0; i < passed; ++i) ASSERT_EQ(sent[i], received[i]);
  sent.erase(sent.begin(), sent.begin() + std::ptrdiff_t(passed));
  received.erase(received.begin(), received.begin() + std::ptrdiff_t(passed));
}

bool is_done(const Posted& posted) {
  const auto empty = [](const auto& entry) { return entry.second.empty(); };
  return std::all_of(posted.to.begin(), posted.to.end(), empty) &&
         std::all_of(posted.from.begin(), posted.from.end(), empty);
}

/// Whether all exchanges come to an end. A rank is in one at a time, and leaves it when its messages have passed; a message
/// passes when its sender and its receiver are in the exchanges that hold it, since there is no place where it could wait.
bool come_to_an_end(std::vector<std::vector<Posted>> ranks) {
  std::vector<std::size_t> at(ranks.size(), 0);
  const auto is_in_one = [&](std::size_t rank) { return at[rank] < ranks[rank].size(); };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!is_in_one(rank)) continue;
      Posted& mine = ranks[rank][at[rank]];
      for (auto& [peer, sent] : mine.to)
        if (is_in_one(std::size_t(peer)))
          pass_messages(sent, ranks[std::size_t(peer)][at[std::size_t(peer)]].from[int(rank)]);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      if (is_in_one(rank) && is_done(ranks[rank][at[rank]])) ++at[rank], moved = true;
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (is_in_one(rank)) return false;
  return true;
}

std::vector<parallel::RingSchedule> schedules_of(int ranks) {
  constexpr std::int64_t tile = 4;
  std::vector<parallel::RingSchedule> all;
  const auto add = [&](const std::string& name, int heads, int kv_heads) {
    all.push_back(parallel::plan_ring({name, ranks, heads, kv_heads, 16 * ranks * tile, tile}).schedule);
  };
  for (const std::string& name : parallel::schedule_names())
    if (name != "auto" && name != "ulysses") add(name, 0, 3);
  for (int heads = 1; heads <= ranks; ++heads)
    if (ranks % heads == 0) add("ulysses", heads, heads);
  // Chunked prefill: a cache that went round twice, and the queries of its last segment or of both.
  std::vector<parallel::Chunk> chunks;
  for (int c = 0; c < 2 * ranks; ++c) chunks.push_back({c * tile, (c + 1) * tile, c % ranks});
  const auto cache = parallel::SequenceLayout::of_chunks(chunks, ranks, tile);
  for (const int first : {0, ranks}) all.push_back(parallel::pass_q_schedule(cache, first));
  return all;
}

TEST(RingExchanges, EveryScheduleKeepsTheRulesOfNccl) {
  int tables = 0;
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const parallel::RingSchedule& schedule : schedules_of(ranks))
      for (const SlotTable* table : {&schedule.forward, &schedule.backward}) {
        SCOPED_TRACE(schedule.name + " on " + std::to_string(ranks) + " ranks, groups " +
                     std::to_string(schedule.groups) + (table == &schedule.forward ? ", forward" : ", backward"));
        if (table->empty()) continue;  // prefill has no backward
        const auto all = exchanges_of_all(*table, schedule.groups);
        ASSERT_NO_FATAL_FAILURE(expect_both_ends_alike(all));
        ASSERT_TRUE(come_to_an_end(all));
        ++tables;
      }
  EXPECT_GT(tables, 100);
}

/// What a slot has finished leaves in an exchange of its own, before the next one.
std::vector<Posted> with_done_apart(const std::vector<Posted>& exchanges) {
  std::vector<Posted> apart;
  for (Posted rest : exchanges) {
    Posted alone{rest.number, {}, {}};
    for (auto& [peer, labels] : rest.to) {
      const auto first_other = std::find_if(labels.begin(), labels.end(), [](const Label& label) {
        return label.cargo == RingCargo::keys || label.cargo == RingCargo::rows;
      });
      alone.to[peer].assign(labels.begin(), first_other);
      labels.erase(labels.begin(), first_other);
    }
    apart.push_back(std::move(alone));
    apart.push_back(std::move(rest));
  }
  return apart;
}

// Without the first rule rings stand still.
TEST(RingExchanges, FinishedWorkThatLeavesAloneStopsRings) {
  std::set<std::string> stuck;
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (const parallel::RingSchedule& schedule : schedules_of(ranks))
      for (const SlotTable* table : {&schedule.forward, &schedule.backward}) {
        if (table->empty()) continue;
        auto all = exchanges_of_all(*table, schedule.groups);
        for (std::vector<Posted>& rank : all) rank = with_done_apart(rank);
        if (!come_to_an_end(all)) stuck.insert(schedule.name);
      }
  EXPECT_TRUE(stuck.contains("zigzag"));
  EXPECT_TRUE(stuck.contains("ordered_pull"));
}

}  // namespace
}  // namespace capstan::tests
