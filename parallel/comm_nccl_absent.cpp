// Linked instead of comm_nccl.cpp in a build without CUDA, or where NCCL was not found.

#include "parallel/communicator.h"

namespace capstan::parallel {

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&) {
  fail(ExitCode::config,
       "built without NCCL: several GPUs need it; use one GPU or the device cpu, or build with -DCAPSTAN_CUDA=ON "
       "-DCAPSTAN_NCCL=ON where nccl.h and libnccl are installed");
}

}  // namespace capstan::parallel
