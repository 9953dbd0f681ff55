#pragma once
// The state of the emulated device behind the API functions, and what they have in common.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/simt/lock.h"
#include "tests/support/simt/machine.h"
#include "tests/support/simt/runtime_api.h"
#include "tests/support/simt/streams.h"

namespace simt {

struct Device {
  DeviceLock lock;  // one API call at a time, in all threads of the host together
  Streams streams;
  std::vector<std::unique_ptr<SimtEvent>> events;
  std::map<const void*, int> shared_limits;  // of kernels that asked for more than the usual
  std::map<void*, std::unique_ptr<std::byte[]>> host_allocations;
  std::string fault;                 // what the kernel did that failed
  cudaError_t broken = cudaSuccess;  // a failed launch; every later call fails with it until the device is reset
  static thread_local cudaError_t last_error;
  int count = 1, driver = CUDART_VERSION;  // what a program sees of the machine
  double patience = 60;                    // seconds that a wait may last without another thread doing anything

  /// Remembers an error for cudaGetLastError, and returns it.
  cudaError_t note(cudaError_t status);
  /// Every later call fails, and says why.
  cudaError_t break_down(cudaError_t error, const std::string& why);
  /// Queues an operation; work of a broken device is never run.
  cudaError_t queue(cudaStream_t stream, std::function<cudaError_t()> run, std::vector<Mark> after = {},
                    std::shared_ptr<const Meeting> meeting = nullptr);
  cudaError_t wait(cudaStream_t stream);
  /// What waits for other threads of the host sleeps until they have come; what can never go on breaks the device.
  cudaError_t wait(const Mark& mark);
  /// All streams of the calling thread's device.
  cudaError_t synchronize();
  cudaError_t run_kernel(KernelCall& call);
  /// What is queued, and a fault, are forgotten.
  void forget_work();
};

/// The one of this process. What the program takes for several devices are numbers of it, each with streams of its own.
Device& device();

/// The number that the calling thread works with.
int device_of_thread();
/// Copies now, inside of device work; checks both sides as a queued copy does.
cudaError_t copy_on_device(void* to, const void* from, std::size_t bytes);

}  // namespace simt
