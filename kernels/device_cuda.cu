#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/device_cuda.h"

namespace capstan::kernels {

namespace {
// Proves at build time that nvcc compiles device code of our standard for every architecture that is asked for.
template <class T>
requires(sizeof(T) <= 8) __global__ void probe(T* out) { out[threadIdx.x] = T(threadIdx.x); }
template __global__ void probe<float>(float*);
}  // namespace

std::string cuda_build() {
  return "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) + ", " +
         CAPSTAN_CUDA_NAMES;
}

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  if (status != cudaSuccess) throw std::runtime_error(std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status));
  return count;
}

}  // namespace capstan::kernels
