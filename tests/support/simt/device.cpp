#include "tests/support/simt/device.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace simt {

Device& device() {
  static Device& only = *[] {
    Device* const made = new Device;  // never destroyed: threads that end late may still free memory
    if (const char* const wish = std::getenv("SIMT_ORDER")) made->streams.set_order(order_of(wish));
    return made;
  }();
  return only;
}

thread_local cudaError_t Device::last_error = cudaSuccess;

cudaError_t Device::note(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}

cudaError_t Device::break_down(cudaError_t error, const std::string& why) {
  fault = why;
  broken = error;
  lock.changed();
  return error;
}

cudaError_t Device::queue(cudaStream_t stream, std::function<cudaError_t()> run, std::vector<Mark> after,
                          std::shared_ptr<const Meeting> meeting) {
  if (broken != cudaSuccess) return note(broken);
  const auto found = streams.find(stream);
  if (!found) return note(cudaErrorInvalidResourceHandle);
  streams.queue(found, {std::move(run), std::move(after), std::move(meeting)});
  lock.changed();
  return cudaSuccess;
}

cudaError_t Device::wait(cudaStream_t stream) {
  const auto found = streams.find(stream);
  return found ? wait(streams.mark(found)) : note(broken != cudaSuccess ? broken : cudaErrorInvalidResourceHandle);
}

cudaError_t Device::wait(const Mark& mark) {
  for (;;) {
    if (broken != cudaSuccess) return note(broken);
    if (const cudaError_t status = streams.run_towards(mark); status != cudaSuccess) return note(status);
    if (Streams::reached(mark)) return cudaSuccess;
    if (const std::string text = streams.deadlock(mark); !text.empty())
      return note(break_down(cudaErrorLaunchFailure, "deadlock, each waits for the next: " + text));
    if (!lock.sleep(patience))
      return note(break_down(cudaErrorLaunchFailure, "nobody has queued the other side: " + streams.missing()));
  }
}

cudaError_t Device::synchronize() {
  if (broken != cudaSuccess) return note(broken);
  for (const Mark& end : streams.ends(device_of_thread()))
    if (const cudaError_t status = wait(end); status != cudaSuccess) return status;
  return cudaSuccess;
}

cudaError_t Device::run_kernel(KernelCall& call) {
  const Fault outcome = machine().run(call, streams.order());
  switch (outcome.kind) {
    case Fault::Kind::none: return cudaSuccess;
    case Fault::Kind::illegal_address: return break_down(cudaErrorIllegalAddress, outcome.text);
    case Fault::Kind::misaligned: return break_down(cudaErrorMisalignedAddress, outcome.text);
    case Fault::Kind::other: return break_down(cudaErrorLaunchFailure, outcome.text);
  }
  return cudaErrorLaunchFailure;
}

void Device::forget_work() {
  streams.drop_queued();
  fault.clear();
  broken = last_error = cudaSuccess;
  lock.changed();
}

Order order_of(const std::string& text) {
  if (text == "forward") return {};
  if (text == "reverse") return {Order::Kind::reverse, 0};
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument("order of threads \"" + text + "\": must be forward, reverse or a number");
  return {Order::Kind::random, std::stoull(text)};
}

void set_order(Order order) {
  const std::scoped_lock guard(device().lock);
  device().streams.set_order(order);
}

Order order() {
  const std::scoped_lock guard(device().lock);
  return device().streams.order();
}

void set_device_memory(std::size_t bytes) {
  const std::scoped_lock guard(device().lock);
  machine().memory().set_capacity(bytes);
}

void set_patience(double seconds) {
  const std::scoped_lock guard(device().lock);
  device().patience = seconds;
}

void set_devices(int count, int driver) {
  const std::scoped_lock guard(device().lock);
  device().count = count;
  device().driver = driver;
}

Session::Session(Order order) : before_(simt::order()) { set_order(order); }

Session::~Session() {
  const std::scoped_lock guard(device().lock);
  device().forget_work();
  machine().memory().forget_contents();
  device().streams.set_order(before_);
}

cudaError_t launch(std::unique_ptr<KernelCall> call, cudaStream_t stream) {
  constexpr std::size_t usual_shared = 48 * 1024;
  constexpr unsigned widest_grid = 0x7fffffff, highest_grid = 0xffff;
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  const dim3 grid = call->grid, block = call->block;
  const bool grid_fits = grid.x - 1 < widest_grid && grid.y - 1 < highest_grid && grid.z - 1 < highest_grid;
  const std::size_t threads = std::size_t(block.x) * block.y * block.z;
  if (!grid_fits || threads == 0 || threads > std::size_t(block_threads) || block.z > 64)
    return device.note(cudaErrorInvalidConfiguration);
  const auto limit = device.shared_limits.find(call->kernel);
  const std::size_t allowed = limit == device.shared_limits.end() ? usual_shared : std::size_t(limit->second);
  if (call->shared_bytes > allowed) return device.note(cudaErrorInvalidValue);
  const std::shared_ptr<KernelCall> kept = std::move(call);
  return device.queue(stream, [kept, &device] { return device.run_kernel(*kept); });
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  Device& device = simt::device();
  const std::scoped_lock guard(device.lock);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;  // a hint
  if (value < 0 || std::size_t(value) > Machine::shared_limit) return device.note(cudaErrorInvalidValue);
  device.shared_limits[kernel] = value;
  return cudaSuccess;
}

}  // namespace simt
