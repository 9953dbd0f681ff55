#pragma once
// The emulated device's memory: one range of addresses, of which no part is ever given out twice, so that freed memory stays
// out of bounds; and host memory that is pinned, which kernels may touch.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/simt/reserve.h"
#include "tests/support/simt/shadow.h"

namespace simt {

class DeviceMemory {
 public:
  DeviceMemory();

  /// While one is alive, device work may touch the memory. At other times host code that does so is ended by the system, as it
  /// would be beside a GPU.
  class Open {
   public:
    explicit Open(DeviceMemory& memory) : memory_(memory) {
      if (memory_.open_++ == 0 && memory_.next_ > 0) allow(memory_.begin_, memory_.next_);
    }
    ~Open() {
      if (--memory_.open_ == 0 && memory_.next_ > 0) forbid(memory_.begin_, memory_.next_);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    DeviceMemory& memory_;
  };

  /// 256-byte aligned, nullptr if the capacity does not suffice.
  void* allocate(std::size_t bytes);
  /// False if nothing that is allocated begins there.
  bool release(void* memory);
  void release_all();
  /// What is allocated stays so, but counts as never written.
  void forget_contents();
  std::size_t capacity() const { return capacity_; }
  void set_capacity(std::size_t bytes) { capacity_ = bytes; }
  std::size_t used() const { return used_; }

  bool contains(const void* address) const { return offset_of(address) < reserved; }
  std::size_t offset_of(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(begin_);
  }
  /// Whether all bytes are allocated.
  bool valid(std::size_t offset, std::size_t size) const {
    const std::size_t g = offset / granule, end = offset + size;
    return end <= (g + 1) * granule ? offset < reserved && valid_[g] >= end - g * granule : valid_range(offset, size);
  }
  /// "4 bytes past the end of an allocation of 1024 bytes"
  std::string place(const void* address) const;
  Shadow& shadow() { return shadow_; }

  /// What a copy or a fill by the host leaves. Both ranges are valid.
  void note_copy(const void* to, const void* from, std::size_t size);
  void note_fill(const void* to, std::size_t size) { shadow_.mark_written(offset_of(to), size); }

 private:
  static constexpr std::size_t reserved = std::size_t(1) << 38;
  static constexpr std::size_t granule = 16;
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t margin = 256;  // before and after each allocation, at least

  struct Allocation {
    std::size_t bytes;
    bool freed;
  };
  bool valid_range(std::size_t offset, std::size_t size) const;
  void forget_bytes(std::size_t offset, std::size_t bytes);
  void set_valid(std::size_t offset, std::size_t bytes, bool valid);

  std::byte* begin_;
  std::uint8_t* valid_;  // of each 16 bytes, how many are allocated
  Shadow shadow_;
  std::map<std::size_t, Allocation> allocations_;  // by offset
  int open_ = 0;
  std::size_t next_ = 0, used_ = 0, capacity_ = std::size_t(16) << 30;
};

/// Host memory that kernels may touch, by its begin.
class PinnedMemory {
 public:
  void add(const void* begin, std::size_t bytes) { ranges_[reinterpret_cast<std::uintptr_t>(begin)] = bytes; }
  bool remove(const void* begin) { return ranges_.erase(reinterpret_cast<std::uintptr_t>(begin)) == 1; }
  bool contains(const void* address, std::size_t size) const;

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;
};

/// What the loader has mapped: code, constants and variables of the program and its libraries.
class LoadedSections {
 public:
  bool contains(std::uintptr_t address);

 private:
  struct Range {
    std::uintptr_t begin, end;
  };
  bool find(std::uintptr_t address);
  std::vector<Range> ranges_;
  std::size_t last_ = 0;  // the one that was found last
};

}  // namespace simt
