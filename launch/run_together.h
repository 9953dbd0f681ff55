#pragma once
// How all ranks of the program end: together, with one exit code and one line that says why.

#include <functional>
#include <string>

#include "kernels/check.h"
#include "parallel/communicator.h"

namespace capstan::launch {

/// How all ranks came out of a body.
struct JointOutcome {
  ExitCode code = ExitCode::done;
  std::string line;    ///< why it failed: the root cause; empty if it did not
  int rank = 0;        ///< of the root cause
  bool alike = false;  ///< all ranks failed, with this line
  bool failed() const { return !line.empty(); }
};

/// What run_together does, but nothing is printed: the same outcome on all ranks.
JointOutcome run_jointly(parallel::Communicator& world, const std::function<ExitCode()>& body, double grace = 2);

/// Runs body on every rank and waits until every rank is through with it, however long that takes: a rank without work
/// just returns. Returns the exit code of the program, the same on all ranks, and prints the error if there is one:
///   all ranks failed alike (a mistyped option)    once, without a rank
///   otherwise                                     the root cause, with its rank
/// A rank that fails while others still wait for it in a collective cannot be met here: after `grace` seconds it ends
/// them all through world.abort.
ExitCode run_together(parallel::Communicator& world, const std::function<ExitCode()>& body, double grace = 2);

}  // namespace capstan::launch
