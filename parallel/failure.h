#pragma once
// How a program of many ranks starts and how it ends: which launcher started it, on which host, and the one line that
// names the root cause when it fails.
//
// The line of the rank that failed comes first, then that rank ends the others. A rank that merely notices that its
// peer is gone holds its tongue for a while, because the peer's own line says more.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace capstan::parallel {

class Communicator;

/// Tags from `first` on belong to the collectives, one each. Messages of one pair and tag keep their order and every
/// rank calls the collectives in the same order, so one tag each is enough.
namespace tags {
constexpr int first = 32768;
constexpr int barrier = first, broadcast = first + 1, all_gather = first + 2, reduce = first + 3, scan = first + 4;
constexpr int last = scan;
}  // namespace tags

/// "tag 7", or the collective's name.
std::string text_of_tag(int tag);

/// A message that did not go through, for error texts. Ranks are world ranks.
struct Missing {
  bool is_send;
  int peer;
  int tag;
  std::int64_t bytes;
};

/// "from rank 2 (tag 5, 16 bytes)"
std::string text_of(const Missing& message);

/// Error(io) that names the peers and tags this rank has waited for in vain.
[[noreturn]] void fail_deadline(const std::vector<Missing>& missing);

std::string host_name();

/// Who started this process, from the environment. `size` 0: no launcher. Sizes and ranks are what the launcher claims.
struct Launcher {
  std::string variable;  ///< where we saw it
  int size = 0;
  int rank = 0;
};
Launcher find_launcher();

/// Prints "capstan: rank r of W (host): reason" (one rank: "capstan: reason") to stderr, in one piece.
void print_failure(int rank, int size, const std::string& reason);

/// print_failure, once per process, then the end of the process.
[[noreturn]] void end_process(ExitCode code, int rank, int size, const std::string& reason);

/// The text and the exit code of the exception that is being handled.
Error current_error();

/// Runs body; an exception ends every rank of the program through world.abort. For main, once MPI runs.
void run_guarded(Communicator& world, const std::function<void()>& body);

}  // namespace capstan::parallel
