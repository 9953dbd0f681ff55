#pragma once
// A GPU's queues (streams), and how work in one is ordered after work in another, for code that sees no CUDA header.
//
// A thread queues its work on a queue of its own, from UseDevice on. What moves beside it (an exchange) has another. Nothing
// is known of their order but what a DeviceMark says:
//   compute   … write buffer | mark a                               | wait for mark b | read what came …
//   exchange                  | wait for mark a | copy, send, receive | mark b
// A buffer that is read or written on the exchange's queue may be given back or written again once its owner's queue has waited
// for mark b; its owner need not wait itself. Without CUDA every constructor throws.

#include <memory>

namespace capstan::kernels {

/// The calling thread works with this GPU, on a queue of its own, until the end of the scope, which waits for that queue. What the
/// thread made on the GPU must be gone, or kept (memory.h), by then. Scopes do not nest.
class UseDevice {
 public:
  /// Error (config): there is no such GPU, or its driver is too old.
  explicit UseDevice(int device);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A queue beside the thread's own, on the GPU that the thread works with. Its end waits for it.
class DeviceQueue {
 public:
  DeviceQueue();
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  /// cudaStream_t, for libraries that take one.
  void* stream() const;

 private:
  friend class OnQueue;
  struct State;
  std::unique_ptr<State> state_;
};

/// What the calling thread queues goes to `queue` until the end of the scope; scopes nest.
class OnQueue {
 public:
  explicit OnQueue(const DeviceQueue& queue);
  ~OnQueue();
  OnQueue(const OnQueue&) = delete;
  OnQueue& operator=(const OnQueue&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A point of a queue. A mark that was never recorded is passed. Another thread than the one that recorded it may wait for it and
/// ask for it, if the threads themselves order that.
class DeviceMark {
 public:
  DeviceMark();
  ~DeviceMark();
  DeviceMark(DeviceMark&&) noexcept;
  DeviceMark& operator=(DeviceMark&&) noexcept;

  /// The end of what the calling thread has queued so far.
  void record();
  /// What the calling thread queues from now on comes after the mark. The thread itself goes on.
  void hold_back() const;
  /// Whether all before it is done. Throws what went wrong on the GPU, if anything did.
  bool passed() const;
  /// The thread itself waits. Throws as passed().
  void wait() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace capstan::kernels
