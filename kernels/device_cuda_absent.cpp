#include "kernels/cuda_absent.h"
#include "kernels/device_cuda.h"

namespace capstan::kernels {

std::string cuda_build() { return "built without CUDA"; }

int cuda_device_count() { return 0; }

void require_device(int) { no_cuda(); }
GpuInfo gpu_info(int) { no_cuda(); }

void* take_device_memory(std::int64_t) { no_cuda(); }
void give_device_memory(void*) noexcept {}
DeviceRoom device_room() { no_cuda(); }
const void* device_queue() { no_cuda(); }
void wait_for_device_queue() noexcept {}
void fill_device_memory(void*, int, std::int64_t) { no_cuda(); }
void copy_device_memory(void*, const void*, std::int64_t, DeviceCopy) { no_cuda(); }
void copy_device_rows(void*, std::int64_t, const void*, std::int64_t, std::int64_t, std::int64_t) { no_cuda(); }

}  // namespace capstan::kernels
