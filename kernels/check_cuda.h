#pragma once
// The one place that looks at what calls of the CUDA run time return.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace capstan::kernels {

/// The device has not as much memory as was asked for. Callers that can do with less may catch it.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws unless `status` is success. `call` is the text that the user reads: "cudaMemcpyAsync of 4096 bytes".
inline void check_cuda(cudaError_t status, const std::string& call) {
  if (status == cudaSuccess) return;
  int device = -1;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  const std::string line =
      call + ": " + cudaGetErrorString(status) + " (device " + (known ? std::to_string(device) : "unknown") + ")";
  if (status == cudaErrorMemoryAllocation) throw OutOfDeviceMemory(line);
  throw std::runtime_error(line);
}

}  // namespace capstan::kernels
