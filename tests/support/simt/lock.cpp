#include "tests/support/simt/lock.h"

#include <chrono>
#include <utility>

namespace simt {

void DeviceLock::lock() {
  const std::thread::id me = std::this_thread::get_id();
  if (owner_ == me) {
    ++depth_;
    return;
  }
  mutex_.lock();
  owner_ = me;
  depth_ = 1;
}

void DeviceLock::unlock() {
  if (--depth_ > 0) return;
  owner_ = std::thread::id();
  mutex_.unlock();
}

void DeviceLock::changed() {
  ++changes_;
  woken_.notify_all();
}

bool DeviceLock::sleep(double seconds) {
  const int depth = std::exchange(depth_, 0);
  owner_ = std::thread::id();
  std::unique_lock lock(mutex_, std::adopt_lock);
  const bool in_time =
      woken_.wait_for(lock, std::chrono::duration<double>(seconds), [&, seen = changes_] { return changes_ != seen; });
  lock.release();  // it stays locked
  owner_ = std::this_thread::get_id();
  depth_ = depth;
  return in_time;
}

}  // namespace simt
