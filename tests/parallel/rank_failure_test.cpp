// What happens when a rank fails, sends the wrong thing, or nothing: an Error that names the cause, never a hang. On
// threads only, where one process can watch all ranks.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/communicator.h"
#include "parallel/failure.h"
#include "tests/support/ranks.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DTypeOf;
using kernels::View;
using parallel::Communicator;
using parallel::Message;
using parallel::run_on_threads;

template <class T> View view_of(std::vector<T>& values) {
  return View(values.data(), DTypeOf<T>::value, Device::ref, {std::int64_t(values.size())});
}

/// The Error that `body` ends with.
template <class Body> Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) { return error; }
  return Error(ExitCode::done, "no error");
}

TEST(RankFailure, BarrierHoldsEverybody) {
  for (const int count : {2, 3, 4, 8}) {
    std::atomic<int> arrived{0};
    run_on_threads(count, [&](Communicator& ranks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * ranks.rank()));
      ++arrived;
      ranks.barrier();
      EXPECT_EQ(arrived.load(), count);
    });
  }
}

TEST(RankFailure, ReachesTheOthersAtOnceAndIsRethrown) {
  for (const int count : {2, 4, 8}) {
    std::atomic<int> told{0};
    const auto start = std::chrono::steady_clock::now();
    const Error error = error_of([&] {
      run_on_threads(count, [&](Communicator& ranks) {
        if (ranks.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          fail(ExitCode::bad_data, "the file a.h5 is cut short");
        }
        const Error mine = error_of([&] { ranks.barrier(); });
        EXPECT_EQ(mine.code(), ExitCode::io);
        EXPECT_STREQ(mine.what(), "rank 1 stopped: the file a.h5 is cut short");
        ++told;
        fail(ExitCode::config, "while saving: {}", mine.what());  // whatever a told rank makes of it, it is no cause
      });
    });
    EXPECT_STREQ(error.what(), "rank 1: the file a.h5 is cut short");
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_EQ(told, count - 1);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

TEST(RankFailure, OfAllRanksIsToldByTheLowest) {
  const Error error = error_of([] {
    run_on_threads(4, [](Communicator& ranks) { fail(ExitCode::usage, "no good on {} ranks", ranks.size()); });
  });
  EXPECT_STREQ(error.what(), "rank 0: no good on 4 ranks");
  EXPECT_EQ(error.code(), ExitCode::usage);
}

TEST(RankFailure, KeepsTheTextOfOtherExceptions) {
  const Error error = error_of([] {
    run_on_threads(2, [](Communicator& ranks) {
      if (ranks.rank() == 1) throw std::out_of_range("vector::at");
      ranks.barrier();
    });
  });
  EXPECT_STREQ(error.what(), "rank 1: vector::at");
  EXPECT_EQ(error.code(), ExitCode::internal);
}

TEST(RankFailure, ReachesGroupsThatTheRankIsNotIn) {
  const Error error = error_of([] {
    run_on_threads(4, [](Communicator& ranks) {
      const auto pair = ranks.split(ranks.rank() / 2, ranks.rank());
      if (ranks.rank() == 3) fail(ExitCode::io, "disk full");
      for (;;) pair->barrier();
    });
  });
  EXPECT_STREQ(error.what(), "rank 3: disk full");
}

TEST(RankFailure, SizesThatDifferAreAnError) {
  for (const std::size_t sent : {2, 4}) {
    const Error error = error_of([&] {
      run_on_threads(2, [&](Communicator& ranks) {
        std::vector<float> out(sent), in(3);
        const Message message{ranks.rank() == 0 ? view_of(out) : view_of(in), 1 - ranks.rank(), 9};
        if (ranks.rank() == 0) ranks.exchange({&message, 1}, {})->wait();
        else ranks.exchange({}, {&message, 1})->wait();
      });
    });
    EXPECT_EQ(error.what(), fmt::format("rank 0: rank 0 sent {} f32 (tag 9) where rank 1 expected 3 f32", sent));
  }
}

TEST(RankFailure, TypesThatDifferAreAnError) {
  const Error error = error_of([] {
    run_on_threads(2, [](Communicator& ranks) {
      std::vector<float> floats(3);
      std::vector<std::int32_t> whole(3);
      ranks.all_reduce(ranks.rank() == 0 ? view_of(floats) : view_of(whole));
    });
  });
  EXPECT_NE(std::string(error.what()).find("expected 3"), std::string::npos) << error.what();
}

TEST(RankFailure, PeerThatNeverSendsIsNamedAtTheDeadline) {
  const ScopedDeadline deadline(0.2);
  const Error error = error_of([] {
    run_on_threads(3, [](Communicator& ranks) {
      std::vector<std::int64_t> a(1), b(2);
      const std::vector<Message> receives{{view_of(a), 1, 4}, {view_of(b), 2, 5}};
      const Message send{view_of(a), 0, 4};
      if (ranks.rank() == 0) ranks.exchange({}, receives)->wait();
      if (ranks.rank() == 1) ranks.exchange({&send, 1}, {})->wait();  // rank 2 sends nothing
    });
  });
  EXPECT_EQ(error.code(), ExitCode::io);
  EXPECT_STREQ(error.what(),
               "rank 0: gave up after 0.2 s without an answer: from rank 2 (tag 5, 16 bytes); that rank "
               "is stuck, lost, or far behind");
}

TEST(RankFailure, CollectiveThatARankLeavesOutIsNamed) {
  const ScopedDeadline deadline(0.2);
  const Error error = error_of([] {
    run_on_threads(2, [](Communicator& ranks) {
      if (ranks.rank() == 0) ranks.barrier();
    });
  });
  EXPECT_NE(std::string(error.what()).find("from rank 1 (barrier, 0 bytes)"), std::string::npos) << error.what();
}

// The buffers of an exchange that nobody waited for are not touched any more once its Pending is gone.
TEST(RankFailure, ExchangeLetsGoOfItsBuffers) {
  const Error error = error_of([] {
    run_on_threads(2, [](Communicator& ranks) {
      if (ranks.rank() == 0) {
        auto in = std::make_unique<std::vector<double>>(100000);
        const Message receive{view_of(*in), 1, 2};
        ranks.exchange({}, {&receive, 1}).reset();
        in.reset();
        ranks.barrier();
        fail(ExitCode::stopped, "as planned");
      }
      std::vector<double> out(100000);
      const Message send{view_of(out), 0, 2};
      ranks.barrier();
      ranks.exchange({&send, 1}, {})->wait();
    });
  });
  EXPECT_STREQ(error.what(), "rank 0: as planned");
}

TEST(RankFailure, WrongCallsAreErrors) {
  const auto self = parallel::make_self_communicator();
  std::vector<float> data(1);
  const Message stranger{view_of(data), 1, 0}, high{view_of(data), 0, 40000}, absent{View(), 0, 0};
  const Message lonely{view_of(data), 0, 0};
  for (const Message& wrong : {stranger, high, absent}) EXPECT_THROW(self->exchange({&wrong, 1}, {}), Error);
  EXPECT_THROW(self->exchange({&lonely, 1}, {})->wait(), Error);
  const auto pending = self->exchange({&lonely, 1}, {&lonely, 1});
  pending->wait();
  EXPECT_THROW(pending->wait(), Error);
  EXPECT_THROW(self->broadcast(view_of(data), 1), Error);
  EXPECT_THROW(self->split(-1, 0), Error);
}

TEST(RankFailure, SelfCopiesMessagesStartedApart) {
  const auto self = parallel::make_self_communicator();
  EXPECT_EQ(self->backend(), "self");
  std::vector<std::int32_t> out{1, 2, 3}, in(3);
  const Message send{view_of(out), 0, 0}, receive{view_of(in), 0, 0};
  const auto receiving = self->exchange({}, {&receive, 1});
  self->exchange({&send, 1}, {})->wait();
  receiving->wait();
  EXPECT_EQ(in, out);
  EXPECT_EQ(self->split(3, 0)->size(), 1);
}

TEST(RankFailure, AbortEndsTheProgramWithItsCode) {
  if (under_mpi()) GTEST_SKIP() << "forks";
  const auto abort_on_rank_1 = [] {
    run_on_threads(2, [](Communicator& ranks) {
      if (ranks.rank() == 1) ranks.abort(ExitCode::bad_data, "two\nlines");
      ranks.barrier();
    });
  };
  EXPECT_EXIT(abort_on_rank_1(), testing::ExitedWithCode(65), "capstan: rank 1 of 2 \\(.+\\): two lines");
  const auto guarded = [] {
    const auto self = parallel::make_self_communicator();
    parallel::run_guarded(*self, [] { fail(ExitCode::config, "no such recipe"); });
  };
  EXPECT_EXIT(guarded(), testing::ExitedWithCode(78), "^capstan: no such recipe\n$");
}

}  // namespace
}  // namespace capstan::tests
