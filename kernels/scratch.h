#pragma once
// Working memory that an operation keeps from call to call, per thread: `thread_local Scratch memory;` where it is used. It is
// counted as "scratch" (kernels/memory.h).

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/memory.h"

namespace capstan::kernels {

/// n elements that begin with a cache line, of unspecified values; give_memory takes them back. Throws std::bad_alloc.
template <class T> T* take_scratch(std::int64_t n) {
  const MemoryPurpose purpose("scratch");
  void* const memory = take_lasting_memory(n * std::int64_t(sizeof(T)));
  if (!memory && n > 0) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { give_memory(memory_); }

  /// At least n elements of unspecified values, valid until the next call. They begin with a cache line.
  template <class T> T* of(std::int64_t n) {
    const std::int64_t bytes = n * std::int64_t(sizeof(T));
    if (bytes_ < bytes) {
      give_memory(memory_);
      memory_ = nullptr;
      bytes_ = 0;
      memory_ = take_scratch<std::byte>(bytes);
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// For vectors that are kept between calls: memory that begins with a cache line, so that no register's load or store lies
/// across two.
template <class T> struct CacheLines {
  using value_type = T;
  CacheLines() = default;
  template <class U> explicit CacheLines(const CacheLines<U>&) {}
  T* allocate(std::size_t n) { return take_scratch<T>(std::int64_t(n)); }
  void deallocate(T* memory, std::size_t) { give_memory(memory); }
  bool operator==(const CacheLines&) const { return true; }
};

}  // namespace capstan::kernels
