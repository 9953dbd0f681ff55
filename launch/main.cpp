// The program `capstan`.

#include <algorithm>

#include "kernels/flush_denormals.h"
#include "launch/command.h"
#include "launch/run_together.h"
#include "parallel/failure.h"

namespace {

using namespace capstan;

/// The ranks of this start: those of an MPI launcher, or this process alone.
std::unique_ptr<parallel::Communicator> make_world() {
  auto world = parallel::make_mpi_communicator();
  return world ? std::move(world) : parallel::make_self_communicator();
}

ExitCode run(const std::vector<std::string>& words) {
  const auto world = make_world();
  return launch::run_together(*world, [&] { return launch::run_program(launch::commands(), words, *world); });
}

}  // namespace

int main(int count, char** words) {
  kernels::flush_denormals();
  try {
    const ExitCode code = run({words + std::min(count, 1), words + count});
    parallel::finalize_mpi();
    return int(code);
  } catch (...) {  // before the ranks knew each other, or after they parted
    const Error error = parallel::current_error();
    parallel::print_failure(0, 1, error.what());
    return int(error.code());
  }
}
