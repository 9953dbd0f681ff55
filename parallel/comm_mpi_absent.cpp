// Linked instead of comm_mpi.cpp where MPI was not found at build time.

#include "parallel/communicator.h"
#include "parallel/failure.h"

namespace capstan::parallel {

std::unique_ptr<Communicator> make_mpi_communicator() {
  // Under a launcher every process would believe that it is the only one, and all would write the same files.
  if (const Launcher launcher = find_launcher(); launcher.size > 0)
    fail(ExitCode::config,
         "built without MPI: an MPI launcher started this program with {} rank(s) ({} is set); start it without "
         "mpirun, or build with -DCAPSTAN_MPI=ON",
         launcher.size, launcher.variable);
  return nullptr;
}

void finalize_mpi() {}

}  // namespace capstan::parallel
