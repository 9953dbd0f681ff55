#include "kernels/threads.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/flush_denormals.h"

namespace capstan::kernels {

namespace {

/// True on a thread that is inside a body: what it calls is done on the spot.
thread_local bool inside = false;

/// Workers of one rank. One call at a time: the rank waits for it.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { serve(); });
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    begin_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int workers() const { return int(workers_.size()); }

  void run(std::int64_t count, const FunctionRef<void(std::int64_t)>& body) {
    {
      const std::lock_guard lock(mutex_);
      body_ = &body;
      count_ = count;
      next_ = 0;
      failed_at_ = count;
      failure_ = nullptr;
      busy_ = workers();
      ++call_;
    }
    begin_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void serve() {
    flush_denormals();
    for (std::int64_t seen = 0;;) {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return ending_ || call_ != seen; });
      if (ending_) return;
      seen = call_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  /// Takes indices until none is left, or one has failed.
  void work() {
    inside = true;
    for (std::int64_t i = 0; (i = next_.fetch_add(1)) < count_;) {
      try {
        (*body_)(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (i < failed_at_) {
          failed_at_ = i;
          failure_ = std::current_exception();
        }
        next_ = count_;
      }
    }
    inside = false;
  }

  std::mutex mutex_;
  std::condition_variable begin_, done_;
  std::vector<std::thread> workers_;
  const FunctionRef<void(std::int64_t)>* body_ = nullptr;
  std::int64_t count_ = 0, call_ = 0, failed_at_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::exception_ptr failure_;
  int busy_ = 0;
  bool ending_ = false;
};

thread_local std::unique_ptr<Pool> pool;

}  // namespace

void set_threads(int threads) {
  CAPSTAN_CHECK(threads >= 1 && !inside, "{} threads", threads);
  if (threads == capstan::kernels::threads()) return;
  pool.reset();
  if (threads > 1) pool = std::make_unique<Pool>(threads - 1);
}

int threads() { return pool ? pool->workers() + 1 : 1; }

void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t)> body) {
  if (count > 1 && pool && !inside) return pool->run(count, body);
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace capstan::kernels
