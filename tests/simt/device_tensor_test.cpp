// Tensors in the GPU's memory: where they come from, how they are copied, and what is refused.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/check_cuda.h"
#include "kernels/elementwise.h"
#include "kernels/memory.h"
#include "kernels/stream_cuda.h"
#include "kernels/tensor.h"
#include "tests/simt/device_array.h"
#include "tests/support/simt/simt.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using testing::HasSubstr;

Tensor gpu_tensor(std::int64_t n, Fill fill = Fill::zero) { return Tensor({n}, DType::f32, Device::cuda, fill); }

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(SimtDeviceTensor, CopiesInAllDirections) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    for (const DType type : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
      const Tensor host = tensor_of({2, 3}, type, Device::cpu, {1, 2, 3, 4, 5, 6});
      const Tensor gpu = on_device(host, Device::cuda), other = gpu.clone();
      EXPECT_EQ(gpu.view().device(), Device::cuda);
      EXPECT_NE(gpu.view().data(), other.view().data());
      gpu.view().fill_zero();
      EXPECT_EQ(values_of(on_device(gpu, Device::cpu)), std::vector<double>(6));
      EXPECT_EQ(values_of(on_device(other, Device::ref)), values_of(host));
      gpu.view().rows(0, 1).copy_from(other.view().rows(1, 2));
      EXPECT_EQ(values_of(on_device(gpu, Device::cpu)), (std::vector<double>{4, 5, 6, 0, 0, 0}));
      other.view().copy_from(other);
      const View all = other.view().reshape({6});
      EXPECT_THAT(failure_of([&] { all.rows(1, 6).copy_from(all.rows(0, 5)); }), HasSubstr("overlaps itself"));
      EXPECT_EQ(values_of(on_device(zeros_like(other), Device::cpu)), std::vector<double>(6));
    }
    EXPECT_EQ(host_values<float>(gpu_tensor(3)), std::vector<float>(3));
    EXPECT_EQ(host_values<float>(gpu_tensor(0)), std::vector<float>());
    EXPECT_EQ(host_values<std::int32_t>(tensor_of({2}, DType::i32, Device::ref, {7, 8})), (std::vector<int>{7, 8}));
    EXPECT_FALSE(Tensor().clone());
  }
}

// What the host changes after the call is not copied, and what it reads is there.
TEST(SimtDeviceTensor, HostMemoryIsReadAtOnce) {
  const simt::Session session({simt::Order::Kind::random, 5});
  Tensor host = tensor_of({3}, DType::f32, Device::cpu, {1, 2, 3});
  const Tensor gpu = gpu_tensor(3, Fill::none);
  for (const bool page_locked : {false, true}) {
    if (page_locked) check_cuda(cudaHostRegister(host.view().data(), 12, cudaHostRegisterDefault), "cudaHostRegister");
    host.view().copy_from(tensor_of({3}, DType::f32, Device::cpu, {1, 2, 3}));
    gpu.view().copy_from(host);
    host.view().fill_zero();
    EXPECT_EQ(host_values<float>(gpu), (std::vector<float>{1, 2, 3}));
    host.view().copy_from(gpu);
    EXPECT_EQ(values_of(host), (std::vector<double>{1, 2, 3}));
  }
  check_cuda(cudaHostUnregister(host.view().data()), "cudaHostUnregister");
}

TEST(SimtDeviceTensor, IsRefusedToTheHost) {
  const simt::Session session;
  const Tensor gpu = gpu_tensor(3);
  const auto text = failure_of([&] { gpu.as<float>()[0] = 1; });
  EXPECT_THAT(text, HasSubstr("view of f32 on cuda read as f32 by the host"));
  EXPECT_THAT(failure_of([&] { add(gpu, Tensor({3}, DType::f32, Device::cpu)); }),
              HasSubstr("x is on cpu, not on cuda"));
  EXPECT_THAT(failure_of([&] { scale(Tensor({3}, DType::f64, Device::cuda), 2); }),
              HasSubstr("f64 is not computed on cuda"));
}

TEST(SimtDeviceTensorDeathTest, HostCodeThatReadsItAnywayIsEnded) {
  const simt::Session session;
  const Tensor gpu = gpu_tensor(3);
  wait_for_device();
  EXPECT_DEATH(EXPECT_EQ(*static_cast<volatile float*>(gpu.view().data()), 0), "");
}

TEST(SimtDeviceTensor, MemoryIsGivenToTheNextOfItsSize) {
  on_new_thread([] {
    const simt::Session session;
    void* first = nullptr;
    {
      const Tensor x = gpu_tensor(1000);
      first = x.view().data();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
    }
    const std::int64_t taken = memory_report(MemoryPlace::gpu).taken;
    for (int repeat = 0; repeat < 100; ++repeat) EXPECT_EQ(gpu_tensor(1000 - repeat % 7).view().data(), first);
    EXPECT_EQ(memory_report(MemoryPlace::gpu).taken, taken);
    const Tensor one = gpu_tensor(1000), two = gpu_tensor(1000);
    EXPECT_EQ(memory_report(MemoryPlace::gpu).taken, taken + 1);
  });
}

TEST(SimtDeviceTensor, MemoryIsCountedByPurposeAndPlace) {
  on_new_thread([] {
    const simt::Session session;
    const std::int64_t host = memory_report().now, gpu = memory_report(MemoryPlace::gpu).now;
    const auto line = [](const char* name) {
      for (const MemoryLine& found : memory_report(MemoryPlace::gpu).lines)
        if (found.name == name) return found.now;
      return std::int64_t(0);
    };
    const MemoryPurpose purpose("simt test");
    {
      const Tensor x = gpu_tensor(1024);
      EXPECT_EQ(line("simt test"), 4096);
      EXPECT_EQ(memory_report(MemoryPlace::gpu).now, gpu + 4096);
      EXPECT_EQ(memory_report().now, host);
      EXPECT_TRUE(all_finite(x));
      EXPECT_GE(line("scratch"), 4);
    }
    EXPECT_EQ(line("simt test"), 0);
    EXPECT_GE(memory_report(MemoryPlace::gpu).kept, 4096);
    const std::int64_t kept = memory_report(MemoryPlace::gpu).kept;
    release_kept_memory();
    EXPECT_LE(memory_report(MemoryPlace::gpu).kept, kept - 4096);
  });
}

// A piece of one stream is not given to another; freed while another is in use, it waits for that one.
TEST(SimtDeviceTensor, MemoryStaysWithItsStream) {
  for (const simt::Order order : all_orders())
    on_new_thread([order] {
      const simt::Session session(order);
      const Stream one, two;
      void* first = nullptr;
      Tensor y, x;
      {
        const StreamScope scope(one);
        const Tensor of_one = gpu_tensor(64);
        first = of_one.view().data();
        x = on_device(random_tensor({64}, DType::f32, Device::cpu, 1), Device::cuda);
        check_cuda(cudaStreamSynchronize(one), "cudaStreamSynchronize");
      }
      {
        const StreamScope scope(two);
        const Tensor of_two = gpu_tensor(64, Fill::none);
        EXPECT_NE(of_two.view().data(), first);
        y = empty_like(x);
        y.view().copy_from(x);
        x = Tensor();  // stream two may still read it
      }
      {
        const StreamScope scope(one);
        const Tensor again = gpu_tensor(64), another = gpu_tensor(64);  // zeros, over what x was
        EXPECT_EQ(cudaStreamSynchronize(one), cudaSuccess);
      }
      const StreamScope scope(two);
      EXPECT_TRUE(same_bits(on_device(y, Device::cpu), random_tensor({64}, DType::f32, Device::cpu, 1)));
      release_kept_memory();
      y = Tensor();
    });
}

}  // namespace
}  // namespace capstan::tests
