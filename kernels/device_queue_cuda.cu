#include <cuda_runtime.h>

#include <optional>

#include "kernels/check.h"
#include "kernels/check_cuda.h"
#include "kernels/device_cuda.h"
#include "kernels/device_queue.h"
#include "kernels/stream_cuda.h"

namespace capstan::kernels {

namespace {

/// A stream that does not wait for the default one, nor it for this one.
class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() {
    // What went wrong in it is told by whoever waits for its work; nobody can be told here.
    if (cudaStreamSynchronize(stream_) != cudaSuccess || cudaStreamDestroy(stream_) != cudaSuccess) return;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

struct UseDevice::State {
  std::optional<Stream> stream;
  std::optional<StreamScope> scope;
};

UseDevice::UseDevice(int device) : state_(std::make_unique<State>()) {
  require_device(device);
  check_cuda(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
  state_->stream.emplace();
  state_->scope.emplace(state_->stream->get());
}
UseDevice::~UseDevice() { release_kept_memory(); }

struct DeviceQueue::State {
  Stream stream;
};

DeviceQueue::DeviceQueue() : state_(std::make_unique<State>()) {}
DeviceQueue::~DeviceQueue() = default;
void* DeviceQueue::stream() const { return state_->stream.get(); }

struct OnQueue::State {
  StreamScope scope;
};

OnQueue::OnQueue(const DeviceQueue& queue) : state_(new State{StreamScope(queue.state_->stream.get())}) {}
OnQueue::~OnQueue() = default;

struct DeviceMark::State {
  cudaEvent_t event = nullptr;
  State() { check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~State() {
    if (cudaEventDestroy(event) != cudaSuccess) return;  // the device is lost, and the event with it
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

DeviceMark::DeviceMark() = default;
DeviceMark::~DeviceMark() = default;
DeviceMark::DeviceMark(DeviceMark&&) noexcept = default;
DeviceMark& DeviceMark::operator=(DeviceMark&&) noexcept = default;

void DeviceMark::record() {
  if (!state_) state_ = std::make_unique<State>();
  check_cuda(cudaEventRecord(state_->event, stream_of_thread()), "cudaEventRecord");
}

void DeviceMark::hold_back() const {
  if (state_) check_cuda(cudaStreamWaitEvent(stream_of_thread(), state_->event, 0), "cudaStreamWaitEvent");
}

bool DeviceMark::passed() const {
  if (!state_) return true;
  const cudaError_t status = cudaEventQuery(state_->event);
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "cudaEventQuery");
  return true;
}

void DeviceMark::wait() const {
  if (state_) check_cuda(cudaEventSynchronize(state_->event), "cudaEventSynchronize");
}

}  // namespace capstan::kernels
