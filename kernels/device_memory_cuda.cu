#include <cuda_runtime.h>

#include "kernels/check_cuda.h"
#include "kernels/device_cuda.h"
#include "kernels/stream_cuda.h"

namespace capstan::kernels {

namespace {

std::string of_bytes(const char* call, std::int64_t bytes) {
  return std::string(call) + " of " + std::to_string(bytes) + " bytes";
}

/// Page-locked memory of the host is read and written when the stream gets there, other memory before the call returns.
bool is_page_locked(const void* memory) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost;
}

}  // namespace

void* take_device_memory(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (status != cudaErrorMemoryAllocation) {
    check_cuda(status, of_bytes("cudaMalloc", bytes));
    return memory;
  }
  // Told by nullptr, and no longer by cudaGetLastError, which would blame the next launch.
  return cudaGetLastError() == status ? nullptr : memory;
}

void give_device_memory(void* memory) noexcept {
  // Fails only where the device is lost, and the memory with it; whoever waits for the device next is told so.
  if (cudaFree(memory) != cudaSuccess) return;
}

DeviceRoom device_room() {
  std::size_t left = 0, all = 0;
  check_cuda(cudaMemGetInfo(&left, &all), "cudaMemGetInfo");
  return {static_cast<std::int64_t>(left), static_cast<std::int64_t>(all)};
}

const void* device_queue() { return stream_of_thread(); }

void wait_for_device_queue() noexcept {
  if (cudaStreamSynchronize(stream_of_thread()) != cudaSuccess) return;
}

void fill_device_memory(void* memory, int byte, std::int64_t bytes) {
  check_cuda(cudaMemsetAsync(memory, byte, static_cast<std::size_t>(bytes), stream_of_thread()),
             of_bytes("cudaMemsetAsync", bytes));
}

void copy_device_memory(void* to, const void* from, std::int64_t bytes, DeviceCopy way) {
  const cudaMemcpyKind kind = way == DeviceCopy::from_host ? cudaMemcpyHostToDevice
                              : way == DeviceCopy::to_host ? cudaMemcpyDeviceToHost
                                                           : cudaMemcpyDeviceToDevice;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream_of_thread()),
             of_bytes("cudaMemcpyAsync", bytes));
  if (way == DeviceCopy::on_device || (way == DeviceCopy::from_host && !is_page_locked(from))) return;
  check_cuda(cudaStreamSynchronize(stream_of_thread()), of_bytes("the end of cudaMemcpyAsync", bytes));
}

void copy_device_rows(void* to, std::int64_t to_pitch, const void* from, std::int64_t from_pitch, std::int64_t width,
                      std::int64_t rows) {
  const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  check_cuda(cudaMemcpy2DAsync(to, bytes(to_pitch), from, bytes(from_pitch), bytes(width), bytes(rows),
                               cudaMemcpyDeviceToDevice, stream_of_thread()),
             of_bytes("cudaMemcpy2DAsync", width * rows));
}

}  // namespace capstan::kernels
