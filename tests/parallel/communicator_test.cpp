// The interface on every backend: data are whole numbers, so that sums are exact and compared with ==, except where the
// order of the additions is what is tested.

#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/communicator_bodies.h"
#include "tests/support/ranks.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::DTypeOf;
using kernels::Tensor;
using kernels::View;
using parallel::Communicator;
using parallel::Reduce;

constexpr auto counts = {1, 2, 3, 4, 8};

template <class T> View view_of(std::vector<T>& values) {
  return View(values.data(), DTypeOf<T>::value, Device::ref, {std::int64_t(values.size())});
}

TEST(Communicator, KnowsItsPlace) {
  for_rank_counts(counts, [](Communicator& ranks) {
    EXPECT_GE(ranks.rank(), 0);
    EXPECT_LT(ranks.rank(), ranks.size());
    EXPECT_EQ(ranks.backend() == "threads", !under_mpi());
    EXPECT_EQ(ranks.all_reduce(std::int64_t(1)), ranks.size());
    EXPECT_EQ(ranks.all_reduce(std::int64_t(ranks.rank()), Reduce::max), ranks.size() - 1);
    EXPECT_EQ(ranks.all_reduce(double(ranks.rank()), Reduce::min), 0.0);
  });
}

TEST(Communicator, ExchangesUnevenAndEmptyMessages) {
  for_rank_counts(counts, [](Communicator& ranks) { exchanges_uneven_and_empty_messages(ranks, Device::ref); });
}

TEST(Communicator, MovesMessagesWhileAllRanksCompute) {
  for_rank_counts({2, 3, 4}, [](Communicator& ranks) { moves_messages_while_all_ranks_compute(ranks, Device::ref); });
}

TEST(Communicator, KeepsManyTagsApart) {
  for_rank_counts(counts, [](Communicator& ranks) { keeps_many_tags_apart(ranks, Device::ref); });
}

TEST(Communicator, KeepsTheOrderOfOneTag) {
  for_rank_counts(counts, [](Communicator& ranks) { keeps_the_order_of_one_tag(ranks, Device::ref); });
}

TEST(Communicator, SplitsLargeMessages) {
  const std::int64_t before = parallel::message_split();
  parallel::set_message_split(1000);
  for_rank_counts(counts, [](Communicator& ranks) { splits_large_messages(ranks, Device::ref); });
  parallel::set_message_split(before);
}

TEST(Communicator, Gathers) {
  for_rank_counts(counts, [](Communicator& ranks) { gathers(ranks, Device::ref); });
}

TEST(Communicator, KeepsPartsApart) {
  for_rank_counts(counts, [](Communicator& ranks) { keeps_parts_apart(ranks, Device::ref); });
}

TEST(Communicator, GoesRoundWithTwoBuffers) {
  for_rank_counts(counts, [](Communicator& ranks) { goes_round_with_two_buffers(ranks, Device::ref); });
}

template <class T> void check_sums(Communicator& ranks, std::int64_t length) {
  const int size = ranks.size();
  const auto value = [](int rank, std::int64_t i) { return T((rank + 1) * (i % 5 + 1)); };
  const auto sum_of = [&](int below, std::int64_t i) { return T(below * (below + 1) / 2 * (i % 5 + 1)); };

  std::vector<T> mine, all;
  for (std::int64_t i = 0; i < length; ++i) mine.push_back(value(ranks.rank(), i));
  std::vector<T> reduced = mine, scanned = mine, highest = mine, gathered(std::size_t(length * size));
  ranks.all_reduce(view_of(reduced));
  ranks.all_reduce(view_of(highest), Reduce::max);
  ranks.exclusive_scan(view_of(scanned));
  ranks.all_gather(view_of(mine), view_of(gathered));
  for (std::int64_t i = 0; i < length; ++i) {
    ASSERT_EQ(reduced[std::size_t(i)], sum_of(size, i)) << "all_reduce at " << i << " of " << length;
    ASSERT_EQ(highest[std::size_t(i)], value(size - 1, i)) << "maximum at " << i << " of " << length;
    ASSERT_EQ(scanned[std::size_t(i)], sum_of(ranks.rank(), i)) << "exclusive_scan at " << i << " of " << length;
    for (int rank = 0; rank < size; ++rank)
      ASSERT_EQ(gathered[std::size_t(rank * length + i)], value(rank, i)) << "all_gather, rank " << rank << " at " << i;
  }

  for (std::int64_t i = 0; i < length * size; ++i) all.push_back(value(ranks.rank(), i));
  const std::vector<T> untouched = all;
  ranks.reduce_scatter(view_of(all), view_of(mine));
  EXPECT_EQ(all, untouched);
  const View piece = view_of(all).rows(ranks.rank() * length, (ranks.rank() + 1) * length);
  ranks.reduce_scatter(view_of(all), piece);  // in place
  for (std::int64_t i = 0; i < length; ++i) {
    ASSERT_EQ(mine[std::size_t(i)], sum_of(size, ranks.rank() * length + i)) << "reduce_scatter at " << i;
    ASSERT_EQ(piece.as<T>()[i], mine[std::size_t(i)]) << "reduce_scatter in place at " << i;
  }
}

TEST(Communicator, SumsEveryType) {
  for_rank_counts(counts, [](Communicator& ranks) {
    for (const std::int64_t length : {0, 1, 7, 20001}) {  // 20001: above the limit of the small path except for u8
      check_sums<double>(ranks, length);
      check_sums<float>(ranks, length);
      check_sums<std::int64_t>(ranks, length);
      check_sums<std::int32_t>(ranks, length);
      check_sums<std::uint8_t>(ranks, length);
    }
  });
}

// The buffers of a reduction hold 8 MiB: two slabs, the second one short and of another length on the last rank.
TEST(Communicator, SumsInSlabs) {
  for_rank_counts({2, 3}, [](Communicator& ranks) {
    const std::int64_t length = (std::int64_t(8) << 20) / 8 + 100001;
    Tensor data({length}, DType::f64, Device::ref);
    for (std::int64_t i = 0; i < length; ++i) data.as<double>()[i] = double((i % 1000) * (ranks.rank() + 1));
    ranks.all_reduce(data);
    const int factor = ranks.size() * (ranks.size() + 1) / 2;
    for (std::int64_t i = 0; i < length; ++i) ASSERT_EQ(data.as<double>()[i], double((i % 1000) * factor)) << i;
  });
}

// 1e8, 1, -1e8, 1, …: in f32 the sum depends on the order of the additions.
TEST(Communicator, AddsInRankOrder) {
  for_rank_counts({3, 4, 8}, [](Communicator& ranks) {
    const auto value = [](int rank) { return rank % 2 ? 1.0f : (rank % 4 ? -1e8f : 1e8f); };
    float forward = value(0), backward = value(ranks.size() - 1), below = 0;
    for (int rank = 0; rank < ranks.rank(); ++rank) below += value(rank);
    for (int rank = 1; rank < ranks.size(); ++rank) forward += value(rank), backward += value(ranks.size() - 1 - rank);
    if (ranks.size() > 3) { ASSERT_NE(forward, backward); }
    for (const std::size_t length : {3, 50000}) {
      std::vector<float> reduced(length, value(ranks.rank())), scanned = reduced, mine(length);
      std::vector<float> all(length * std::size_t(ranks.size()), value(ranks.rank()));
      ranks.all_reduce(view_of(reduced));
      ranks.reduce_scatter(view_of(all), view_of(mine));
      ranks.exclusive_scan(view_of(scanned));
      EXPECT_EQ(reduced, std::vector<float>(length, forward));
      EXPECT_EQ(mine, std::vector<float>(length, forward));
      EXPECT_EQ(scanned, std::vector<float>(length, below));
    }
  });
}

TEST(Communicator, ShowsNotANumberInEveryReduction) {
  for_rank_counts(counts, [](Communicator& ranks) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int broken = 0; broken < ranks.size(); ++broken)
      for (const Reduce how : {Reduce::sum, Reduce::max, Reduce::min})
        EXPECT_TRUE(std::isnan(ranks.all_reduce(ranks.rank() == broken ? nan : 1.0, how)));
  });
}

TEST(Communicator, BroadcastsFromEveryRoot) {
  for_rank_counts(counts, [](Communicator& ranks) {
    broadcasts_from_every_root(ranks, Device::ref);
    const std::string text("héllo\0x", 8);
    for (int root = 0; root < ranks.size(); ++root)
      EXPECT_EQ(ranks.broadcast(ranks.rank() == root ? text : "", root), text);
  });
}

TEST(Communicator, GathersTextsOfAnyLength) {
  for_rank_counts(counts, [](Communicator& ranks) {
    const std::vector<std::string> all = ranks.all_gather(std::string(std::size_t(ranks.rank() * 100), 'x'));
    ASSERT_EQ(int(all.size()), ranks.size());
    for (int rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(all[std::size_t(rank)], std::string(std::size_t(rank * 100), 'x'));
    EXPECT_EQ(ranks.all_gather(std::string()), std::vector<std::string>(std::size_t(ranks.size())));
  });
}

TEST(Communicator, SplitsByColorAndKey) {
  for_rank_counts(counts, [](Communicator& ranks) {
    const int me = ranks.rank(), size = ranks.size();
    const auto half = ranks.split(me % 2, -me);  // even and odd ranks, the highest first
    const int members = (size + 1 - me % 2) / 2;
    EXPECT_EQ(half->size(), members);
    EXPECT_EQ(half->rank(), members - 1 - me / 2);
    std::int64_t expected = 0;
    for (int rank = me % 2; rank < size; rank += 2) expected += rank;
    EXPECT_EQ(half->all_reduce(std::int64_t(me)), expected);
    const auto alone = half->split(half->rank(), 0);  // split again: everybody alone
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->all_reduce(std::int64_t(me)), me);
    const auto same = ranks.split(0, 0);  // equal keys keep the order
    EXPECT_EQ(same->rank(), me);
  });
}

TEST(Communicator, GroupsOfDifferentSpeedDoNotMix) {
  for_rank_counts({4, 8}, [](Communicator& ranks) {
    const auto half = ranks.split(ranks.rank() % 2, ranks.rank());
    for (int i = 0; i < (ranks.rank() % 2 ? 3 : 200); ++i)
      ASSERT_EQ(half->all_reduce(std::int64_t(i)), i * half->size());
    ranks.barrier();
  });
}

}  // namespace
}  // namespace capstan::tests
