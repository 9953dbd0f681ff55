#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/check.h"
#include "kernels/check_cuda.h"
#include "kernels/device_cuda.h"
#include "kernels/ptx.cuh"

namespace capstan::kernels {

namespace {
// Proves at build time that nvcc compiles device code of our standard for every architecture that is asked for.
template <class T>
requires(sizeof(T) <= 8) __global__ void probe(T* out) { out[threadIdx.x] = T(threadIdx.x); }
template __global__ void probe<float>(float*);

struct alignas(16) Probed {
  std::uint16_t rows[32][8];
};

// The same of every instruction in ptx.cuh: an inline function that nobody calls is never assembled.
template <class T> __global__ void probe_instructions(T* out, const T* in) {
  Probed& shared = ptx::shared<Probed>();
  void* const row = shared.rows[threadIdx.x % 32];
  ptx::copy_async_16(row, in, in[1] > 0);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  std::uint32_t a[4], a_transposed[4], b[2], b_transposed[2];
  ptx::ldmatrix_x4(a, row);
  ptx::ldmatrix_x4_transposed(a_transposed, row);
  ptx::ldmatrix_x2(b, row);
  ptx::ldmatrix_x2_transposed(b_transposed, row);
  float sum[4] = {ptx::exp2_approx(in[0]), ptx::reciprocal_approx(in[0]),
                  __uint_as_float(ptx::pack_bf16(in[0], in[1]))};
  ptx::mma_m16n8k16(sum, a, b);
  ptx::mma_m16n8k16(sum, a_transposed, b_transposed);
  out[threadIdx.x] = sum[0];
}
template __global__ void probe_instructions<float>(float*, const float*);

/// 13000 is "13.0".
std::string text_of_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string cuda_build() { return "CUDA " + text_of_version(CUDART_VERSION) + ", " + CAPSTAN_CUDA_NAMES; }

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  if (status != cudaSuccess) throw std::runtime_error(std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status));
  return count;
}

void require_device(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    fail(ExitCode::config,
         "the device cuda needs a driver for CUDA {}: {}; install a newer driver, or choose the device cpu",
         text_of_version(CUDART_VERSION),
         driver == 0 ? "this machine has none" : "that of this machine is for CUDA " + text_of_version(driver));
  }
  if (status == cudaErrorNoDevice) count = 0;
  else check_cuda(status, "cudaGetDeviceCount");
  if (count == 0)
    fail(ExitCode::config,
         "the device cuda was asked for, but no GPU is to be seen here: choose the device cpu, or look at "
         "nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (device < 0 || device >= count)
    fail(ExitCode::config,
         "GPU {} was asked for, but there are {} (numbers 0 to {}): CUDA_VISIBLE_DEVICES may hide some", device, count,
         count - 1);
}

GpuInfo gpu_info(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  char bus[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
  return {properties.name, bus, static_cast<std::int64_t>(properties.totalGlobalMem), properties.major,
          properties.minor};
}

}  // namespace capstan::kernels
