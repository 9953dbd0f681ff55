#pragma once
// Test bodies that run on several ranks. The same object files are linked twice: with an ordinary gtest main, where
// ranks are threads, and with mpi_main.cpp, where they are the processes that mpirun started.

#include <functional>
#include <initializer_list>

#include "parallel/communicator.h"

namespace capstan::tests {

/// Runs body on each count of ranks: on threads; or, in the MPI test program, on its ranks if their number is in
/// `counts` (else the test is skipped). Failures name the rank, and a fatal one (ASSERT_…) or an exception ends the
/// other ranks.
void for_rank_counts(std::initializer_list<int> counts, const std::function<void(parallel::Communicator&)>& body);

/// True in the MPI test program: for tests that fork or that only threads can fail.
bool under_mpi();

/// Called by mpi_main: the ranks of this test program. Null at the end, before MPI is finalised.
void use_communicator(parallel::Communicator* world);

/// Another deadline for the length of a scope.
class ScopedDeadline {
 public:
  explicit ScopedDeadline(double seconds) : before_(parallel::deadline()) { parallel::set_deadline(seconds); }
  ~ScopedDeadline() { parallel::set_deadline(before_); }
  ScopedDeadline(const ScopedDeadline&) = delete;
  ScopedDeadline& operator=(const ScopedDeadline&) = delete;

 private:
  double before_;
};

}  // namespace capstan::tests
