#pragma once
// The emulator's lock. A thread of the host may take it again while it has it, and lets go of all of it while it sleeps until
// another thread has changed something.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace simt {

class DeviceLock {
 public:
  void lock();
  void unlock();
  /// Something that sleepers may wait for. The lock is held.
  void changed();
  /// Until something is changed; false if nothing was for so long. The lock is held before and after.
  bool sleep(double seconds);

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<std::thread::id> owner_{};
  int depth_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace simt
