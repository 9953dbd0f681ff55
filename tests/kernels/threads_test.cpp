// kernels/threads.h and kernels/bfloat16.h.

#include "kernels/threads.h"

#include <gmock/gmock.h>
#include <xmmintrin.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/check.h"
#include "tests/support/without_traps.h"

namespace capstan::kernels {
namespace {

/// A rank of its own: the setting is gone with it.
template <class Body> void with_threads(int count, Body&& body) {
  std::thread rank([&] {
    set_threads(count);
    body();
  });
  rank.join();
}

TEST(Threads, DoEveryPieceOnce) {
  for (int count : {1, 2, 3, 8})
    with_threads(count, [&] {
      EXPECT_EQ(threads(), count);
      for (std::int64_t pieces : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(pieces));
        parallel_for(pieces, [&](std::int64_t i) { ++done[std::size_t(i)]; });
        for (const auto& n : done) EXPECT_EQ(n, 1);
      }
    });
}

TEST(Threads, TakePiecesAtTheSameTime) {
  with_threads(2, [] {
    std::atomic<int> arrived = 0;
    parallel_for(2, [&](std::int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();  // ends only if both are under way
    });
    EXPECT_EQ(arrived, 2);
  });
}

TEST(Threads, RunNestedLoopsOnTheSpot) {
  with_threads(3, [] {
    std::atomic<int> done = 0;
    parallel_for(5, [&](std::int64_t) {
      const std::thread::id me = std::this_thread::get_id();
      parallel_for(7, [&](std::int64_t) {
        EXPECT_EQ(std::this_thread::get_id(), me);
        ++done;
      });
    });
    EXPECT_EQ(done, 35);
  });
}

TEST(Threads, PassOnTheFirstFailureAndGoOn) {
  with_threads(4, [] {
    for (int repeat = 0; repeat < 20; ++repeat) {
      try {
        parallel_for(100, [](std::int64_t i) {
          if (i == 3) throw std::runtime_error("piece 3");
        });
        FAIL() << "no exception";
      } catch (const std::runtime_error& error) { EXPECT_STREQ(error.what(), "piece 3"); }
      std::atomic<int> done = 0;
      parallel_for(10, [&](std::int64_t) { ++done; });
      EXPECT_EQ(done, 10);
    }
  });
}

TEST(Threads, FlushSubnormalsInEveryWorker) {
  with_threads(4, [] {
    const std::thread::id rank = std::this_thread::get_id();
    std::atomic<int> arrived = 0, flushing = 0;
    parallel_for(4, [&](std::int64_t) {
      ++arrived;
      while (arrived < 4) std::this_thread::yield();  // so that each of the four has one
      constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
      if (std::this_thread::get_id() != rank)
        flushing += (_mm_getcsr() & (flush_to_zero | denormals_are_zero)) == (flush_to_zero | denormals_are_zero);
    });
    EXPECT_EQ(flushing, 3);
  });
}

TEST(Threads, CutRowsWhateverTheirNumber) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> cuts;
  for (int count : {1, 2, 4})
    with_threads(count, [&] {
      std::vector<std::pair<std::int64_t, std::int64_t>> pieces(64, {-1, -1});
      parallel_rows(
          1000, 4096,
          [&](std::int64_t begin, std::int64_t end) {
            pieces[std::size_t(begin / 16)] = {begin, end};
          },
          16);
      cuts.push_back(pieces);
    });
  EXPECT_EQ(cuts[0], cuts[1]);
  EXPECT_EQ(cuts[0], cuts[2]);
  EXPECT_EQ(cuts[0].front(), std::make_pair(std::int64_t(0), std::int64_t(16)));
}

TEST(Threads, CutExtentsEvenlyAtMultiplesOf64) {
  for (const std::int64_t extent : {0, 1, 63, 64, 65, 500, 513, 768, 1025, 50304})
    for (const std::int64_t largest : {64, 256, 512}) {
      const Cut cut(extent, largest);
      EXPECT_EQ(cut.length % 64, 0);
      EXPECT_LE(cut.length, largest);
      std::int64_t covered = 0;
      for (std::int64_t i = 0; i < cut.pieces; ++i) {
        EXPECT_EQ(cut.begin(i), covered);
        EXPECT_GT(cut.count(i), 0);
        covered = cut.end(i);
      }
      EXPECT_EQ(covered, extent);
    }
}

TEST(Threads, RefuseNone) { EXPECT_THROW(set_threads(0), Error); }

// ---- bfloat16 -------------------------------------------------------------------------------------------------------

TEST(BFloat16, RoundsToTheNearestOfItsNeighbours) {
  const testing::WithoutTraps some_are_nan;
  for (std::uint32_t step = 0; step < 70000; ++step) {
    const std::uint32_t bits = step * 61357u;
    const float x = std::bit_cast<float>(bits);
    const float y = to_float(to_bfloat16(x));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(y));
      continue;
    }
    const double below = to_float(BFloat16{std::uint16_t(bits >> 16)});
    const double above = to_float(BFloat16{std::uint16_t((bits >> 16) + 1)});
    if (!std::isfinite(x) || !std::isfinite(above)) continue;
    const double down = std::abs(x - below), up = std::abs(above - x);
    const double wanted = down < up ? below : up < down ? above : (bits >> 16 & 1) ? above : below;
    EXPECT_EQ(double(y), wanted) << x;
  }
}

TEST(BFloat16, KeepsWhatItHolds) {
  const testing::WithoutTraps some_are_nan;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(BFloat16{std::uint16_t(bits)});
    EXPECT_TRUE(std::isnan(x) || to_bfloat16(x).bits == bits) << bits;
  }
  EXPECT_EQ(to_float(to_bfloat16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace capstan::kernels
