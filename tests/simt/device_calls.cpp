#include "tests/simt/device_calls.h"

#include "kernels/memory.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using namespace kernels;

Argument in(Shape shape, double scale, Stored stored) { return {shape, stored, false, scale, {}}; }
Argument out(Shape shape, Stored stored) { return {shape, stored, true, 1, {}}; }
Argument integers(Shape shape, Stored stored, const std::function<std::int64_t(std::int64_t)>& at) {
  Argument argument{shape, stored, false, 1, {}};
  for (std::int64_t i = 0; i < shape.elements(); ++i) argument.values.push_back(static_cast<double>(at(i)));
  return argument;
}

namespace {

DType type_of(Stored stored, DType type) {
  switch (stored) {
    case Stored::value: return type;
    case Stored::wide: return wide(type);
    case Stored::f64: return DType::f64;
    case Stored::i64: return DType::i64;
    case Stored::i32: return DType::i32;
  }
  return type;
}

Tensor made(const Argument& argument, std::uint64_t seed, Device device, DType type, DType grid) {
  const DType stored = type_of(argument.stored, type);
  if (!argument.values.empty()) return tensor_of(argument.shape, stored, device, argument.values);
  return random_tensor(argument.shape, stored, device, seed, argument.scale,
                       argument.stored == Stored::value ? grid : DType::f32);
}

std::vector<DType> types(bool with_bf16) {
  return with_bf16 ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32};
}

/// The plain f32 program's results.
std::vector<Tensor> naively(const Call& call, DType grid) {
  return after(call.naive ? Call{call.arguments, call.naive} : call, Device::ref, DType::f32, grid);
}

}  // namespace

std::vector<Tensor> after(const Call& call, Device device, DType type, DType grid) {
  const bool gpu = device == Device::cuda;
  std::vector<Tensor> host, there;
  std::vector<View> views;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    host.push_back(made(call.arguments[i], i + 1, gpu ? Device::cpu : device, type, grid));
    if (gpu) there.push_back(on_device(host[i], device));
    views.push_back(gpu ? there[i].view() : host[i].view());
  }
  call.run(views);
  for (std::size_t i = 0; gpu && i < host.size(); ++i) {
    const Tensor now = on_device(there[i], Device::cpu);
    EXPECT_TRUE(call.arguments[i].result || same_bits(now, host[i])) << "argument " << i << " is changed";
    host[i].view().copy_from(now);
  }
  return host;
}

void expect_accurate(const Call& call, const std::string& what, bool with_bf16) {
  for (const DType type : types(with_bf16)) {
    const std::vector<Tensor> exact = after(call, Device::ref, DType::f64, type), naive = naively(call, type),
                              gpu = after(call, Device::cuda, type, type);
    for (std::size_t i = 0; i < gpu.size(); ++i) {
      if (!call.arguments[i].result) continue;
      EXPECT_LE(relative_error(gpu[i], exact[i]), stored_bound(gpu[i].view().type(), naive[i], exact[i]))
          << what << ", " << name_of(type) << ", argument " << i;
    }
  }
}

void expect_as_on_cpu(const Call& call, const std::string& what, bool with_bf16) {
  for (const DType type : types(with_bf16)) {
    const std::vector<Tensor> cpu = after(call, Device::cpu, type, type), gpu = after(call, Device::cuda, type, type);
    for (std::size_t i = 0; i < gpu.size(); ++i)
      EXPECT_TRUE(same_bits(gpu[i], cpu[i])) << what << ", " << name_of(type) << ", argument " << i;
  }
}

void expect_same_bits(const Call& call, bool with_bf16) {
  const simt::Order before = simt::order();
  for (const DType type : types(with_bf16)) {
    const std::vector<Tensor> first = after(call, Device::cuda, type, type);
    for (std::uint64_t repeat = 0; repeat < 20; ++repeat)
      for (const auto kind : {simt::Order::Kind::forward, simt::Order::Kind::reverse, simt::Order::Kind::random}) {
        simt::set_order({kind, repeat});
        const std::vector<Tensor> again = after(call, Device::cuda, type, type);
        for (std::size_t i = 0; i < first.size(); ++i)
          ASSERT_TRUE(same_bits(again[i], first[i])) << name_of(type) << ", argument " << i << ", repeat " << repeat;
      }
  }
  simt::set_order(before);
}

OnGpu::OnGpu() {
  release_kept_memory();
  set_gpu_memory_reuse(false);
}

OnGpu::~OnGpu() { set_gpu_memory_reuse(true); }

}  // namespace capstan::tests
