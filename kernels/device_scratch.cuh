#pragma once
// Working memory on the device that an operation keeps from call to call: the counterpart of scratch.h.
// `thread_local DeviceScratch memory;` where it is used.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/check_cuda.h"

namespace capstan::kernels {

/// Calls that use one scratch are ordered by their stream. A thread that changes streams waits for the old one in between.
class DeviceScratch {
 public:
  DeviceScratch() = default;
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  ~DeviceScratch() { drop(); }

  /// At least n elements of unspecified values, valid until the next call, 256-byte aligned.
  template <class T> T* of(std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (bytes > bytes_) {
      drop();  // waits for the device, so that no kernel still uses what goes
      check_cuda(cudaMalloc(&memory_, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void drop() {
    bytes_ = 0;
    // Fails only where the device is lost, and the memory with it; whoever waits for the device next is told so.
    if (cudaFree(memory_) != cudaSuccess) memory_ = nullptr;
    memory_ = nullptr;
  }

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace capstan::kernels
