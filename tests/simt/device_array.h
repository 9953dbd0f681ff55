#pragma once
// Arrays in the device's memory, and the failures of kernels, for tests.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/check_cuda.h"
#include "kernels/tensor.h"
#include "tests/support/simt/simt.h"

namespace capstan::tests {

/// n elements that nobody has written, or a copy of the host's.
template <class T> class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) { kernels::check_cuda(cudaMalloc(&data_, n * sizeof(T)), "cudaMalloc"); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (cudaFree(data_) != cudaSuccess) data_ = nullptr;  // after a planted fault; the session takes all memory back
  }

  T* data() const { return data_; }
  std::size_t size() const { return n_; }
  void upload(const std::vector<T>& values) {
    kernels::check_cuda(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> values() const {
    std::vector<T> values(n_);
    kernels::check_cuda(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_;
};

inline void wait_for_device() { kernels::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

/// What the error says that ends f and the kernels that it has queued; empty if there is none.
template <class F> std::string failure_of(F&& f) {
  try {
    f();
    wait_for_device();
  } catch (const std::runtime_error& error) { return error.what(); }
  return "";
}

/// A thread of its own keeps nothing from other tests.
template <class Body> void on_new_thread(Body&& body) {
  std::thread thread(body);
  thread.join();
}

/// Thread orders that tests of kernels go through.
inline std::vector<simt::Order> all_orders() {
  using Kind = simt::Order::Kind;
  return {{Kind::forward, 0}, {Kind::reverse, 0}, {Kind::random, 1}, {Kind::random, 2}};
}

}  // namespace capstan::tests
