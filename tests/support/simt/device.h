#pragma once
// The state of the emulated device behind the API functions, and what they have in common.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/simt/machine.h"
#include "tests/support/simt/runtime_api.h"
#include "tests/support/simt/streams.h"

namespace simt {

struct Device {
  std::recursive_mutex lock;  // one API call at a time, in all threads of the host together
  Streams streams;
  std::vector<std::unique_ptr<SimtEvent>> events;
  std::map<const void*, int> shared_limits;  // of kernels that asked for more than the usual
  std::map<void*, std::unique_ptr<std::byte[]>> host_allocations;
  std::string fault;                 // what the kernel did that failed
  cudaError_t broken = cudaSuccess;  // a failed launch; every later call fails with it until the device is reset
  cudaError_t last_error = cudaSuccess;
  int count = 1, driver = CUDART_VERSION;  // what a program sees of the machine

  /// Remembers an error for cudaGetLastError, and returns it.
  cudaError_t note(cudaError_t status);
  /// Queues an operation; work of a broken device is never run.
  cudaError_t queue(cudaStream_t stream, std::function<cudaError_t()> run, std::vector<Mark> after = {});
  cudaError_t wait(cudaStream_t stream);
  cudaError_t run_kernel(KernelCall& call);
  /// What is queued, and a fault, are forgotten.
  void forget_work();
};

/// The one of this process.
Device& device();

}  // namespace simt
