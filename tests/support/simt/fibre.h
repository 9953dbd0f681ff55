#pragma once
// Suspended computations with stacks of their own, all in one thread of the system.

#include <cstddef>
#include <cstdint>

namespace simt {

/// One computation. x86-64 only: the registers that a call keeps lie on its stack while it is suspended.
class Fibre {
 public:
  /// Will begin with entry(), which must never return, on the stack that ends at `top` (16-byte aligned).
  void prepare(std::byte* top, void (*entry)());
  /// Suspends the running computation as `from` and goes on with `to`.
  static void switch_to(Fibre& from, const Fibre& to);

 private:
  void* stack_pointer_ = nullptr;
};

/// The stacks of a block's threads, one after the other, each with a page below it that nobody may touch.
class FibreStacks {
 public:
  static constexpr std::size_t bytes = 128 * 1024;  ///< of one stack
  static constexpr int count = 1024;                ///< the most threads that a block has
  FibreStacks();
  FibreStacks(const FibreStacks&) = delete;
  FibreStacks& operator=(const FibreStacks&) = delete;
  ~FibreStacks();
  std::byte* top(int thread) const { return begin_ + std::size_t(thread + 1) * bytes; }
  bool contains(std::uintptr_t address) const {
    return address - reinterpret_cast<std::uintptr_t>(begin_) < bytes * std::size_t(count);
  }

 private:
  std::byte* begin_;
};

}  // namespace simt
