#pragma once
// Working memory on the device that an operation keeps from call to call: the counterpart of scratch.h.
// `thread_local DeviceScratch memory;` where it is used. It is counted as "scratch" (kernels/memory.h).

#include <cstddef>
#include <cstdint>

#include "kernels/memory.h"

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
    const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(T));
    if (bytes > bytes_) {
      drop();
      const MemoryPurpose purpose("scratch");
      memory_ = take_lasting_memory(bytes, MemoryPlace::gpu);
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void drop() {
    bytes_ = 0;
    give_memory(memory_, MemoryPlace::gpu);
    memory_ = nullptr;
  }

  void* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace capstan::kernels
