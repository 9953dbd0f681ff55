#pragma once
// The emulated multiprocessor: runs the blocks of a launch one after the other, the threads of a block in turns, and checks
// what they do. One launch runs at a time in a process (runtime.cpp holds the lock).

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "tests/support/simt/clock.h"
#include "tests/support/simt/fibre.h"
#include "tests/support/simt/kernel_call.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/shadow.h"
#include "tests/support/simt/simt.h"
#include "tests/support/simt/warp.h"

namespace simt {

/// What ended a launch.
struct Fault {
  enum class Kind : std::uint8_t { none, illegal_address, misaligned, other };
  Kind kind = Kind::none;
  std::string text;
};

class Machine {
 public:
  static constexpr std::size_t shared_limit = 227 * 1024;  ///< per block, as on sm_90

  Machine();
  Fault run(KernelCall& call, const Order& order);
  DeviceMemory& memory() { return memory_; }
  PinnedMemory& pinned() { return pinned_; }

  // Called by the running kernel thread.
  void access(const void* address, std::size_t size, Access access, const void* code);
  void misaligned(const void* address, std::size_t alignment, const void* code);
  /// How many threads of the block came with a value that is not 0.
  int meet_block(const char* name, int value, std::source_location where);
  void meet_warp(const char* name, std::uint32_t mask, void* data, WarpStep step, bool orders_memory,
                 std::source_location where);
  std::byte* shared_memory(std::size_t bytes);
  bool is_shared(const void* address) const;
  int thread() const { return running_; }
  int threads() const { return count_; }
  std::uint32_t active_lanes() const;  ///< of the running thread's warp
  [[noreturn]] void refuse(const std::string& what) { fail(Fault::Kind::other, what); }
  void begin_copy(void* shared, const void* global, bool valid);
  void commit_copies();
  void wait_copies(int groups);

 private:
  enum class State : std::uint8_t { ready, at_barrier, at_warp_operation, done };
  struct Copy {
    std::byte* shared;
    const std::byte* global;  // nullptr: zeros
    int group;
  };
  struct Thread {
    Fibre fibre;
    State state = State::ready;
    const char* waits_in = "";  // the operation that it waits in, and where
    std::source_location where;
    std::uint32_t mask = 0;
    void* data = nullptr;
    std::vector<Copy> copies;
    int open_group = 0;
  };

  struct Warp {
    std::uint32_t exists = 0, waiting = 0, at_barrier = 0, done = 0;  // lanes; waiting: in warp operations
  };

  static void enter();
  void run_block(std::uint64_t block);
  void deal_turns();
  void go_on(Fibre& from);
  [[noreturn]] void finish_thread();
  [[noreturn]] void fail(Fault::Kind kind, const std::string& what);
  [[noreturn]] void fail_access(const void* address, std::size_t size, Access access, const void* code,
                                const std::string& what);
  Thread& self() { return threads_[static_cast<std::size_t>(running_)]; }
  Thread& lane(int number) { return threads_[static_cast<std::size_t>(running_ / warp_width * warp_width + number)]; }
  Warp& warp() { return warps_[static_cast<std::size_t>(running_ / warp_width)]; }
  std::uint32_t own_lane() const { return 1u << running_ % warp_width; }
  void check_warp_needs_not(const char* what);
  void check_can_meet();
  void check_all_agree();
  void release_barrier();
  void finish_warp_operation(WarpStep step, bool orders_memory);
  std::string waiting() const;
  std::string name_of(int thread) const;
  void touch(Shadow& shadow, std::size_t offset, const void* address, std::size_t size, Access access,
             const void* code);
  void access_elsewhere(const void* address, std::size_t size, Access access, const void* code);
  void land(const Copy& copy);

  KernelCall* call_ = nullptr;
  Order order_;
  std::mt19937_64 random_;
  Fault fault_;
  Clock clock_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  LoadedSections sections_;
  FibreStacks stacks_;
  Shadow shared_shadow_{Shadow::Kind::shared, shared_limit};
  std::byte* shared_arena_;  // the block's memory, with room before and after it that is out of bounds

  Fibre scheduler_;
  std::array<Thread, block_threads> threads_;
  std::array<Warp, block_threads / warp_width> warps_;
  std::vector<int> turns_;  // the order of threads
  std::size_t turn_ = 0;
  int count_ = 0, at_barrier_ = 0, done_ = 0, running_ = -1;
  std::source_location barrier_;         // where those at the barrier wait
  int values_ = 0, barrier_values_ = 0;  // that are not 0: at the barrier that fills, at the last one
};

/// The one of this process.
Machine& machine();

/// Whether the calling thread of the system is inside kernel code, whose memory accesses are checked.
extern thread_local constinit bool in_kernel;

/// Inside of functions of the emulator that a kernel calls.
class OutsideKernel {
 public:
  OutsideKernel() { in_kernel = false; }
  ~OutsideKernel() { in_kernel = true; }
  OutsideKernel(const OutsideKernel&) = delete;
  OutsideKernel& operator=(const OutsideKernel&) = delete;
};

}  // namespace simt
