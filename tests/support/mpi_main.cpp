// main() of the MPI test program: mpirun -n W tests_mpi [gtest options]. All ranks run all tests in the same order.
// Rank 0 alone prints; after each test the ranks agree whether it failed, and rank 0 shows what the others have to say.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "kernels/flush_denormals.h"
#include "parallel/failure.h"
#include "tests/support/ranks.h"

namespace {

using capstan::parallel::Communicator;

/// Ends a rank whose test does not end; the launcher then ends the others.
class Watchdog {
 public:
  explicit Watchdog(int rank) : rank_(rank), thread_([this](std::stop_token stop) { watch(stop); }) {}

  /// "" between tests.
  void now_running(const std::string& test) {
    const std::lock_guard lock(mutex_);
    test_ = test;
    since_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop) {
    const char* given = std::getenv("CAPSTAN_TEST_SECONDS");
    const double limit = given ? std::atof(given) : 120;
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      wake_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
      if (test_.empty() || std::chrono::duration<double>(Clock::now() - since_).count() < limit) continue;
      std::fprintf(stderr, "test %s did not end within %g s on rank %d\n", test_.c_str(), limit, rank_);
      _exit(1);
    }
  }

  const int rank_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::string test_;
  Clock::time_point since_ = Clock::now();
  std::jthread thread_;  // last: it uses all of the above, and ends first
};

class AgreeOnFailures : public testing::EmptyTestEventListener {
 public:
  AgreeOnFailures(Communicator& world, Watchdog& watchdog)
      : ranks_(world.split(0, world.rank())), watchdog_(watchdog) {}

  void OnTestStart(const testing::TestInfo& test) override {
    watchdog_.now_running(std::string(test.test_suite_name()) + "." + test.name());
    in_test_ = true;
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string file = result.file_name() ? result.file_name() : "?";
    const std::string text = fmt::format("{}:{}: {}\n", file, result.line_number(), result.message());
    failures_ += text;
    // After a fatal failure the others may wait for this rank and the test may never end; outside of tests nobody asks.
    // (GoogleTest holds its lock here: asking it which test runs would never return.)
    if (ranks_->rank() > 0 && (result.fatally_failed() || !in_test_))
      std::fprintf(stderr, "rank %d: %s", ranks_->rank(), text.c_str());
  }

  void OnTestEnd(const testing::TestInfo&) override {
    const std::vector<std::string> all = ranks_->all_gather(failures_);
    for (std::size_t rank = 1; rank < all.size() && ranks_->rank() == 0; ++rank)
      if (!all[rank].empty()) ADD_FAILURE() << "on rank " << rank << ":\n" << all[rank];
    failures_.clear();
    in_test_ = false;
    watchdog_.now_running("");
  }

 private:
  std::unique_ptr<Communicator> ranks_;
  Watchdog& watchdog_;
  std::string failures_;  // of the current test, on this rank
  bool in_test_ = false;
};

int run_tests(Communicator& world) {
  Watchdog watchdog(world.rank());
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank() > 0) {
    delete listeners.Release(listeners.default_result_printer());
    GTEST_FLAG_SET(output, "");  // one report file
  }
  // Shuffled tests have the same order on all ranks: a seed of 0 would mean each rank's own clock.
  const std::int64_t seed = GTEST_FLAG_GET(random_seed) ? GTEST_FLAG_GET(random_seed) : getpid() % 99999 + 1;
  GTEST_FLAG_SET(random_seed, std::int32_t(world.all_reduce(seed, capstan::parallel::Reduce::max)));
  // Events that end something reach the last listener first: failures from other ranks are known before the printer
  // speaks.
  auto* agreeing = new AgreeOnFailures(world, watchdog);
  listeners.Append(agreeing);
  capstan::tests::use_communicator(&world);
  const int mine = RUN_ALL_TESTS();
  capstan::tests::use_communicator(nullptr);
  delete listeners.Release(agreeing);
  return int(world.all_reduce(std::int64_t(mine), capstan::parallel::Reduce::max));
}

}  // namespace

int main(int argc, char** argv) {
  capstan::kernels::flush_denormals();
  testing::InitGoogleTest(&argc, argv);
  int result = 1;
  try {
    std::unique_ptr<Communicator> world = capstan::parallel::make_mpi_communicator();
    if (!world) world = capstan::parallel::make_self_communicator();
    capstan::parallel::set_deadline(60);
    capstan::parallel::run_guarded(*world, [&] { result = run_tests(*world); });
  } catch (const capstan::Error& error) {  // a wrong launch
    capstan::parallel::print_failure(0, 1, error.what());
    return int(error.code());
  }
  capstan::parallel::finalize_mpi();
  return result;
}
