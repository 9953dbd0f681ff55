#include "launch/run_together.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <new>
#include <thread>

namespace capstan::launch {
namespace {

using Body = std::function<ExitCode(parallel::Communicator&)>;

struct Ending {
  std::vector<ExitCode> codes;
  std::string printed;
};

Ending run(int ranks, const Body& body) {
  Ending ending;
  ending.codes.resize(std::size_t(ranks));
  testing::internal::CaptureStderr();
  parallel::run_on_threads(ranks, [&](parallel::Communicator& world) {
    ending.codes[std::size_t(world.rank())] = run_together(world, [&] { return body(world); });
  });
  ending.printed = testing::internal::GetCapturedStderr();
  return ending;
}

void expect_codes(const Ending& ending, ExitCode code) {
  for (const ExitCode one : ending.codes) EXPECT_EQ(int(one), int(code));
}

TEST(RunTogether, EndsWellOrStopped) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (const ExitCode code : {ExitCode::done, ExitCode::stopped}) {
      const Ending ending =
          run(ranks, [&](parallel::Communicator& world) { return world.rank() == 0 ? code : ExitCode::done; });
      expect_codes(ending, code);
      EXPECT_EQ(ending.printed, "");
    }
}

TEST(RunTogether, PrintsOnceWhatAllRanksFoundOut) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const Ending ending =
        run(ranks, [](parallel::Communicator&) -> ExitCode { fail(ExitCode::usage, "unknown option --x"); });
    expect_codes(ending, ExitCode::usage);
    EXPECT_EQ(ending.printed, "capstan: unknown option --x\n");
  }
}

TEST(RunTogether, PrintsTheRootCauseWithItsRank) {
  const Ending ending = run(3, [](parallel::Communicator& world) -> ExitCode {
    if (world.rank() == 2) fail(ExitCode::bad_data, "a.h5: truncated");
    fail(ExitCode::io, "rank 2 no longer answers");
  });
  expect_codes(ending, ExitCode::bad_data);
  EXPECT_EQ(ending.printed.substr(0, 22), "capstan: rank 2 of 3 (");
  EXPECT_NE(ending.printed.find("): a.h5: truncated\n"), std::string::npos);
}

TEST(RunTogether, WaitsForTheRankThatWorks) {
  const double before = parallel::deadline();
  parallel::set_deadline(0.05);  // shorter than the work
  const Ending ending = run(2, [](parallel::Communicator& world) -> ExitCode {
    if (world.rank() == 1) return ExitCode::done;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    throw std::bad_alloc();
  });
  parallel::set_deadline(before);
  expect_codes(ending, ExitCode::internal);
  EXPECT_NE(ending.printed.find("rank 0 of 2"), std::string::npos);
  EXPECT_NE(ending.printed.find("out of memory"), std::string::npos);
}

TEST(RunTogether, ForeignExceptionsAreInternalErrors) {
  const Ending ending = run(2, [](parallel::Communicator&) -> ExitCode { throw std::runtime_error("odd"); });
  expect_codes(ending, ExitCode::internal);
  EXPECT_EQ(ending.printed, "capstan: odd\n");
}

}  // namespace
}  // namespace capstan::launch
