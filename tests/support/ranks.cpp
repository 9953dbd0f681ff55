#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/failure.h"

namespace capstan::tests {

namespace {

using parallel::Communicator;

constexpr double body_deadline = 60;     // seconds without an answer inside a test
constexpr double verdict_deadline = 10;  // seconds that a failed rank waits for the others to come to an end too
const std::string assertion_failed = "a fatal assertion failed";

Communicator* mpi_world = nullptr;
std::unique_ptr<Communicator> mpi_verdict;  // of its own, so that no message of an unfinished body comes in

/// The body on one rank; throws after a fatal assertion, because the other ranks may wait for this one.
void run_body(Communicator& ranks, const std::function<void(Communicator&)>& body) {
  SCOPED_TRACE(fmt::format("rank {} of {} ({})", ranks.rank(), ranks.size(), ranks.backend()));
  body(ranks);
  if (testing::Test::HasFatalFailure()) fail(ExitCode::internal, "{}", assertion_failed);
}

void report(int count, const Error& error) {
  const std::string text = error.what();
  if (text.find(assertion_failed) == std::string::npos) ADD_FAILURE() << "with " << count << " ranks: " << text;
}

void run_as_threads(int count, const std::function<void(Communicator&)>& body) {
  try {
    parallel::run_on_threads(count, [&](Communicator& ranks) { run_body(ranks, body); });
  } catch (const Error& error) { report(count, error); }
}

/// All ranks come to the verdict, failed or not. If one has failed and the others do not come, they wait for a message
/// that it will never send: it ends them all.
void run_as_processes(const std::function<void(Communicator&)>& body) {
  try {
    const std::unique_ptr<Communicator> fresh = mpi_world->split(0, mpi_world->rank());
    run_body(*fresh, body);
    mpi_verdict->barrier();
  } catch (...) {
    const Error error = parallel::current_error();
    report(mpi_world->size(), error);
    const ScopedDeadline shorter(verdict_deadline);
    try {
      mpi_verdict->barrier();
    } catch (const Error&) {
      const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
      mpi_world->abort(ExitCode::internal,
                       fmt::format("test {}.{}: {}", test.test_suite_name(), test.name(), error.what()));
    }
  }
}

}  // namespace

void for_rank_counts(std::initializer_list<int> counts, const std::function<void(Communicator&)>& body) {
  const ScopedDeadline deadline(body_deadline);
  if (!under_mpi()) {
    for (const int count : counts) {
      run_as_threads(count, body);
      if (testing::Test::HasFatalFailure()) return;
    }
    return;
  }
  if (std::find(counts.begin(), counts.end(), mpi_world->size()) == counts.end())
    GTEST_SKIP() << "not a test for " << mpi_world->size() << " ranks";
  run_as_processes(body);
}

bool under_mpi() { return mpi_world != nullptr; }

void use_communicator(Communicator* world) {
  mpi_world = world;
  mpi_verdict = world ? world->split(0, world->rank()) : nullptr;
}

}  // namespace capstan::tests
