#include "kernels/cuda_absent.h"
#include "kernels/device_queue.h"

namespace capstan::kernels {

struct UseDevice::State {};
struct DeviceQueue::State {};
struct OnQueue::State {};
struct DeviceMark::State {};

UseDevice::UseDevice(int) { no_cuda(); }
UseDevice::~UseDevice() = default;
DeviceQueue::DeviceQueue() { no_cuda(); }
DeviceQueue::~DeviceQueue() = default;
void* DeviceQueue::stream() const { no_cuda(); }
OnQueue::OnQueue(const DeviceQueue&) { no_cuda(); }
OnQueue::~OnQueue() = default;
DeviceMark::DeviceMark() = default;  // a mark that was never recorded is passed
DeviceMark::~DeviceMark() = default;
DeviceMark::DeviceMark(DeviceMark&&) noexcept = default;
DeviceMark& DeviceMark::operator=(DeviceMark&&) noexcept = default;
void DeviceMark::record() { no_cuda(); }
void DeviceMark::hold_back() const {}
bool DeviceMark::passed() const { return true; }
void DeviceMark::wait() const {}

}  // namespace capstan::kernels
