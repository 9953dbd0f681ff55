#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/simt/simt.h"

namespace simt {

namespace {
Order of_process;
}

void set_order(Order order) { of_process = order; }
Order order() { return of_process; }

std::int64_t size_factor() {
  static const std::int64_t factor = [] {
    const char* const wish = std::getenv("GPU_SIZE");
    return wish ? std::atoll(wish) : 4;
  }();
  return factor;
}

Session::Session(Order order) : before_(of_process) { of_process = order; }

Session::~Session() {
  of_process = before_;
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) ADD_FAILURE() << "cudaDeviceSynchronize: " << cudaGetErrorString(status);
}

}  // namespace simt
