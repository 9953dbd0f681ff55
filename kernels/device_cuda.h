#pragma once
// What this build and this machine know of GPUs. device_cuda.cu or device_cuda_absent.cpp is linked; callers hold no #if.

#include <cstdint>
#include <string>

namespace capstan::kernels {

/// "CUDA 13.0, sm_80 sm_90", or "built without CUDA".
std::string cuda_build();
/// Usable devices; 0 without CUDA, a driver or a GPU.
int cuda_device_count();
/// Error (config): why there is no GPU of this number to work with (no GPU, too old a driver, one too few), and what to do.
void require_device(int device);
struct GpuInfo {
  std::string name, bus;  ///< "NVIDIA H200", "0000:19:00.0"
  std::int64_t memory;    ///< bytes
  int major, minor;       ///< compute capability
};
GpuInfo gpu_info(int device);

// Memory of the GPU that the calling thread works with, for kernels/memory.h and tensor.h. "The queue" is the thread's stream
// (stream_cuda.h). Without CUDA each of these throws.

/// Of unspecified content, 256-byte aligned; nullptr where the GPU has not as much left.
void* take_device_memory(std::int64_t bytes);
/// Waits for all work of the GPU, so that nothing still uses what goes.
void give_device_memory(void* memory) noexcept;
struct DeviceRoom {
  std::int64_t left, all;  ///< bytes
};
DeviceRoom device_room();

/// Which queue it is: the same address as long as it is the same.
const void* device_queue();
/// Until everything in the queue is done. A failure is told by the next call that waits.
void wait_for_device_queue() noexcept;
/// Queued.
void fill_device_memory(void* memory, int byte, std::int64_t bytes);
enum class DeviceCopy : std::uint8_t { from_host, to_host, on_device };
/// Queued; the host's memory has been read, or written, when this returns. Ranges do not overlap.
void copy_device_memory(void* to, const void* from, std::int64_t bytes, DeviceCopy way);
/// Queued: `rows` rows of `width` bytes, which begin `to_pitch` and `from_pitch` bytes from each other; both on the device.
void copy_device_rows(void* to, std::int64_t to_pitch, const void* from, std::int64_t from_pitch, std::int64_t width,
                      std::int64_t rows);

}  // namespace capstan::kernels
