// CUDA's API for memory, over the emulated device.

#include <cstring>

#include "tests/support/simt/device.h"

namespace simt {

namespace {

/// Rows of `width` bytes; a plain copy is one row.
struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t to_pitch, from_pitch, width, height;
  bool to_device, from_device;
};

bool on_device(const void* address) { return machine().memory().contains(address); }

/// Whether every row lies in memory that is allocated now.
bool valid(const void* begin, std::size_t pitch, std::size_t width, std::size_t height) {
  DeviceMemory& memory = machine().memory();
  for (std::size_t row = 0; row < height && width > 0; ++row)
    if (!memory.valid(memory.offset_of(begin) + row * pitch, width)) return false;
  return true;
}

cudaError_t break_device(cudaError_t error, const std::string& what) { return device().break_down(error, what); }

cudaError_t run_copy(const Copy& copy) {
  DeviceMemory& memory = machine().memory();
  if ((copy.to_device && !valid(copy.to, copy.to_pitch, copy.width, copy.height)) ||
      (copy.from_device && !valid(copy.from, copy.from_pitch, copy.width, copy.height)))
    return break_device(cudaErrorIllegalAddress, "a copy of memory that was freed before it ran");
  for (std::size_t row = 0; row < copy.height; ++row) {
    std::byte* const to = copy.to + row * copy.to_pitch;
    const std::byte* const from = copy.from + row * copy.from_pitch;
    if (copy.from_device && !copy.to_device) {
      const std::size_t written = memory.shadow().written(memory.offset_of(from), copy.width);
      if (written < copy.width)
        return break_device(cudaErrorLaunchFailure,
                            "a copy to the host reads memory that nobody has written: " + memory.place(from + written));
    }
    std::memmove(to, from, copy.width);
    if (copy.to_device && copy.from_device) memory.note_copy(to, from, copy.width);
    if (copy.to_device && !copy.from_device) memory.note_fill(to, copy.width);
  }
  return cudaSuccess;
}

bool direction_fits(const Copy& copy, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !copy.to_device && !copy.from_device;
    case cudaMemcpyHostToDevice: return copy.to_device && !copy.from_device;
    case cudaMemcpyDeviceToHost: return !copy.to_device && copy.from_device;
    case cudaMemcpyDeviceToDevice: return copy.to_device && copy.from_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

/// The host's rows one after the other: what a copy from pageable memory keeps until it runs.
std::shared_ptr<std::vector<std::byte>> snapshot(const Copy& copy) {
  auto bytes = std::make_shared<std::vector<std::byte>>(copy.width * copy.height);
  for (std::size_t row = 0; row < copy.height; ++row)
    std::memcpy(bytes->data() + row * copy.width, copy.from + row * copy.from_pitch, copy.width);
  return bytes;
}

cudaError_t queue_copy(Copy copy, cudaMemcpyKind kind, cudaStream_t stream) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  copy.to_device = on_device(copy.to);
  copy.from_device = on_device(copy.from);
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.height > 1 && (copy.to_pitch < copy.width || copy.from_pitch < copy.width))
    return device.note(cudaErrorInvalidValue);
  if (!direction_fits(copy, kind)) return device.note(cudaErrorInvalidMemcpyDirection);
  if ((copy.to_device && !valid(copy.to, copy.to_pitch, copy.width, copy.height)) ||
      (copy.from_device && !valid(copy.from, copy.from_pitch, copy.width, copy.height)))
    return device.note(cudaErrorInvalidValue);
  const bool pinned = machine().pinned().contains(copy.to_device ? copy.from : copy.to, copy.width);
  if (copy.from_device == copy.to_device || pinned) return device.queue(stream, [copy] { return run_copy(copy); });
  // Pageable memory of the host is read before the call returns, and written before it returns (CUDA, "API synchronization
  // behavior"); pinned memory is touched when the stream gets there.
  if (copy.from_device) {
    const cudaError_t queued = device.queue(stream, [copy] { return run_copy(copy); });
    return queued == cudaSuccess ? device.wait(stream) : queued;
  }
  const auto bytes = snapshot(copy);
  copy.from = bytes->data();
  copy.from_pitch = copy.width;
  return device.queue(stream, [copy, bytes] { return run_copy(copy); });
}

cudaError_t queue_fill(void* memory, std::size_t pitch, int value, std::size_t width, std::size_t height,
                       cudaStream_t stream) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (width == 0 || height == 0) return cudaSuccess;
  if (!on_device(memory) || !valid(memory, pitch, width, height)) return device.note(cudaErrorInvalidValue);
  return device.queue(stream, [=] {
    if (!valid(memory, pitch, width, height))
      return break_device(cudaErrorIllegalAddress, "memory was freed before it was set");
    for (std::size_t row = 0; row < height; ++row) {
      std::byte* const begin = static_cast<std::byte*>(memory) + row * pitch;
      std::memset(begin, value, width);
      machine().memory().note_fill(begin, width);
    }
    return cudaSuccess;
  });
}

Copy rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
          std::size_t height) {
  return {static_cast<std::byte*>(to),
          static_cast<const std::byte*>(from),
          to_pitch,
          from_pitch,
          width,
          height,
          false,
          false};
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (device.broken != cudaSuccess) return device.note(device.broken);
  *memory = bytes == 0 ? nullptr : machine().memory().allocate(bytes);
  return device.note(*memory || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}

}  // namespace

cudaError_t copy_on_device(void* to, const void* from, std::size_t bytes) {
  Copy copy = rows(to, bytes, from, bytes, bytes, 1);
  copy.to_device = on_device(to);
  copy.from_device = on_device(from);
  return bytes == 0 ? cudaSuccess : run_copy(copy);
}

}  // namespace simt

using namespace simt;

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }

cudaError_t cudaFree(void* memory) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (!memory) return cudaSuccess;
  const cudaError_t status = cudaDeviceSynchronize();
  const bool released = machine().memory().release(memory);  // also on a broken device, whose test goes on
  return status != cudaSuccess ? status : device.note(released ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) { return allocate(memory, bytes); }

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (!memory) return cudaSuccess;
  return device.queue(stream, [memory] {
    return machine().memory().release(memory)
               ? cudaSuccess
               : break_device(cudaErrorIllegalAddress, "cudaFreeAsync of what is not allocated");
  });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  auto made = std::make_unique<std::byte[]>(bytes);
  *memory = made.get();
  machine().pinned().add(*memory, bytes);
  device.host_allocations[*memory] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* memory) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (!memory) return cudaSuccess;
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) return status;
  if (device.host_allocations.erase(memory) == 0) return device.note(cudaErrorInvalidValue);
  machine().pinned().remove(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  const std::scoped_lock guard(device().lock);
  machine().pinned().add(memory, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  const std::scoped_lock guard(device().lock);
  return device().note(machine().pinned().remove(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  const std::scoped_lock guard(device().lock);
  *total = machine().memory().capacity();
  *available = *total - machine().memory().used();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::scoped_lock guard(device().lock);
  void* const address = const_cast<void*>(pointer);
  if (on_device(pointer)) *attributes = {cudaMemoryTypeDevice, 0, address, nullptr};
  else if (machine().pinned().contains(pointer, 1)) *attributes = {cudaMemoryTypeHost, 0, address, address};
  else *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, address};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return queue_copy(rows(to, bytes, from, bytes, bytes, 1), kind, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const std::scoped_lock guard(device().lock);
  const cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return status == cudaSuccess ? device().wait(nullptr) : status;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return queue_copy(rows(to, to_pitch, from, from_pitch, width, height), kind, stream);
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                         std::size_t height, cudaMemcpyKind kind) {
  const std::scoped_lock guard(device().lock);
  const cudaError_t status = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
  return status == cudaSuccess ? device().wait(nullptr) : status;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return queue_fill(memory, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaMemset2DAsync(void* memory, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
  return queue_fill(memory, pitch, value, width, height, stream);
}
