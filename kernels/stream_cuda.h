#pragma once
// Where operations on a GPU are queued: the calling thread's stream.

#include <cuda_runtime.h>

namespace capstan::kernels {

/// The default stream, unless a StreamScope is open in this thread.
inline cudaStream_t& stream_of_thread() {
  thread_local cudaStream_t stream = nullptr;
  return stream;
}

/// Operations of the calling thread are queued on `stream` until the end of the scope; scopes nest.
class StreamScope {
 public:
  explicit StreamScope(cudaStream_t stream) : before_(stream_of_thread()) { stream_of_thread() = stream; }
  ~StreamScope() { stream_of_thread() = before_; }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  cudaStream_t before_;
};

}  // namespace capstan::kernels
