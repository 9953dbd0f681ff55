#pragma once
// The one place that looks at what calls of the CUDA run time return.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kernels/memory.h"

namespace capstan::kernels {

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
