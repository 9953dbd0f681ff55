#pragma once
// Working memory that an operation keeps from call to call, per thread: `thread_local Scratch memory;` where it is used.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace capstan::kernels {

class Scratch {
 public:
  /// At least n elements of unspecified values, valid until the next call. They begin with a cache line.
  template <class T> T* of(std::int64_t n) {
    constexpr std::size_t line = 64;
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (memory_.size() < bytes + line) memory_ = std::vector<std::byte>(bytes + line);
    void* begin = memory_.data();
    std::size_t room = memory_.size();
    return static_cast<T*>(std::align(line, bytes, begin, room));
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace capstan::kernels
