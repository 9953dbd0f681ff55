// CUDA's API for devices, errors, streams and events, over the emulated device.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "tests/support/simt/device.h"

using namespace simt;

namespace {

constexpr int version = CUDART_VERSION;
thread_local int number_of_thread = 0;

bool exists(int number) { return number >= 0 && number < device().count; }

/// The handle's event, nullptr if it is none.
SimtEvent* find_event(cudaEvent_t handle) {
  for (const auto& event : device().events)
    if (event.get() == handle) return event.get();
  return nullptr;
}

/// Whoever polls gets there one day: what can run runs now, and the next query finds it done.
cudaError_t poll(const Mark& mark) {
  if (device().broken != cudaSuccess) return device().note(device().broken);
  const cudaError_t status = device().streams.run_towards(mark);
  return device().note(status == cudaSuccess ? cudaErrorNotReady : status);
}

double milliseconds_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int simt::device_of_thread() { return number_of_thread; }

cudaError_t cudaGetDeviceCount(int* count) {
  const std::scoped_lock guard(device().lock);
  *count = device().count;
  if (device().driver < version) return cudaErrorInsufficientDriver;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int* number) {
  *number = number_of_thread;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int number) {
  const std::scoped_lock guard(device().lock);
  if (!exists(number)) return device().note(cudaErrorInvalidDevice);
  number_of_thread = number;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* bus, int bytes, int number) {
  const std::scoped_lock guard(device().lock);
  if (!exists(number)) return device().note(cudaErrorInvalidDevice);
  std::snprintf(bus, std::size_t(bytes), "0000:%02x:00.0", unsigned(number + 1));
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  const std::scoped_lock guard(device().lock);
  if (!exists(number)) return device().note(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "SIMT emulator");
  properties->totalGlobalMem = machine().memory().capacity();
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = Machine::shared_limit;
  properties->sharedMemPerMultiprocessor = Machine::shared_limit + 1024;
  properties->regsPerBlock = 65536;
  properties->warpSize = warp_width;
  properties->maxThreadsPerBlock = properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = block_threads;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 0xffff;
  properties->major = 9;
  properties->multiProcessorCount = 4;  // few, so that kernels that loop over work do loop
  properties->l2CacheSize = 50 << 20;
  properties->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  cudaDeviceProp properties;
  const cudaError_t status = cudaGetDeviceProperties(&properties, number);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(properties.sharedMemPerBlockOptin); break;
    default: return device().note(cudaErrorInvalidValue);
  }
  return status;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const std::scoped_lock guard(device().lock);
  return device().synchronize();
}

cudaError_t cudaDeviceReset() {
  const std::scoped_lock guard(device().lock);
  device().forget_work();
  device().streams.clear();
  device().events.clear();
  device().shared_limits.clear();
  machine().memory().release_all();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* number) {
  *number = version;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* number) {
  const std::scoped_lock guard(device().lock);
  *number = device().driver;
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() {
  const std::scoped_lock guard(device().lock);
  return device().broken != cudaSuccess ? device().broken : device().last_error;
}

cudaError_t cudaGetLastError() {
  const std::scoped_lock guard(device().lock);
  const cudaError_t error = cudaPeekAtLastError();
  device().last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection: return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorMisalignedAddress: return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const std::scoped_lock guard(device().lock);
  thread_local std::string text;  // the fault may be forgotten while the caller still reads
  text = error != cudaSuccess && error == device().broken ? device().fault : cudaGetErrorName(error);
  return text.c_str();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::scoped_lock guard(device().lock);
  *stream = device().streams.create(flags != cudaStreamNonBlocking, device_of_thread());
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::scoped_lock guard(device().lock);
  return device().note(device().streams.destroy(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::scoped_lock guard(device().lock);
  return device().wait(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::scoped_lock guard(device().lock);
  const auto found = device().streams.find(stream);
  if (!found) return device().note(cudaErrorInvalidResourceHandle);
  if (device().broken != cudaSuccess) return device().note(device().broken);
  if (found->queue.empty()) return cudaSuccess;
  return poll(device().streams.mark(found));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  const std::scoped_lock guard(device().lock);
  const SimtEvent* const event = find_event(handle);
  if (!event) return device().note(cudaErrorInvalidResourceHandle);
  return device().queue(stream, [] { return cudaSuccess; }, {event->recorded});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const std::scoped_lock guard(device().lock);
  return device().queue(stream, [=] {
    function(data);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::scoped_lock guard(device().lock);
  device().events.push_back(std::make_unique<SimtEvent>());
  *event = device().events.back().get();
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const std::scoped_lock guard(device().lock);
  const bool found = std::erase_if(device().events, [&](const auto& event) { return event.get() == handle; }) == 1;
  return device().note(found ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const std::scoped_lock guard(device().lock);
  SimtEvent* const event = find_event(handle);
  if (!event) return device().note(cudaErrorInvalidResourceHandle);
  const cudaError_t status = device().queue(stream, [time = event->time] {
    *time = milliseconds_now();
    return cudaSuccess;
  });
  if (status == cudaSuccess) event->recorded = device().streams.mark(device().streams.find(stream));
  return status;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const std::scoped_lock guard(device().lock);
  const SimtEvent* const event = find_event(handle);
  if (!event) return device().note(cudaErrorInvalidResourceHandle);
  return device().wait(Mark(event->recorded));  // a copy: the event may be recorded again meanwhile
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const std::scoped_lock guard(device().lock);
  const SimtEvent* const event = find_event(handle);
  if (!event) return device().note(cudaErrorInvalidResourceHandle);
  return Streams::reached(event->recorded) ? cudaSuccess : poll(event->recorded);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::scoped_lock guard(device().lock);
  const SimtEvent *const first = find_event(begin), *const last = find_event(end);
  if (!first || !last || !first->recorded.stream || !last->recorded.stream)
    return device().note(cudaErrorInvalidResourceHandle);
  if (!Streams::reached(first->recorded) || !Streams::reached(last->recorded)) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(*last->time - *first->time);
  return cudaSuccess;
}
