// Tensors in the emulated GPU's memory, where only the emulator can bring about what is tested: too little memory, reads of what nobody
// has written, accesses beyond a tensor's end.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/check_cuda.h"
#include "kernels/elementwise.h"
#include "kernels/memory.h"
#include "kernels/tensor.h"
#include "tests/simt/device_array.h"
#include "tests/support/simt/simt.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using testing::HasSubstr;

Tensor gpu_tensor(std::int64_t n, Fill fill = Fill::zero) { return Tensor({n}, DType::f32, Device::cuda, fill); }

TEST(SimtDeviceFaults, OutOfMemoryNamesTheBiggest) {
  on_new_thread([] {
    const simt::Session session;
    std::size_t available = 0, total = 0;
    check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    simt::set_device_memory(total - available + (1 << 20));  // beside what other threads' operations keep
    {
      const MemoryPurpose purpose("simt weights");
      const Tensor x = gpu_tensor(1 << 16);
      const MemoryPurpose activations("simt activations");
      { const Tensor kept = gpu_tensor(100000); }  // makes room
      const Tensor y = gpu_tensor(150000);
      try {
        const Tensor z = gpu_tensor(1 << 18);
        ADD_FAILURE() << "more memory than there is";
      } catch (const OutOfDeviceMemory& error) {
        EXPECT_EQ(error.code(), ExitCode::internal);
        EXPECT_THAT(error.what(), HasSubstr("out of device memory: 1048576 bytes asked for (simt activations)"));
        EXPECT_THAT(error.what(), HasSubstr("of " + std::to_string(total - available + (1 << 20)) + " free"));
        EXPECT_THAT(error.what(), HasSubstr("simt activations 655360, simt weights 262144"));
      }
      EXPECT_EQ(host_values<float>(y)[0], 0);
    }
    release_kept_memory();
    simt::set_device_memory(total);
  });
}

// In tests of kernels every tensor is as large as it is asked for, and its memory written by nobody.
TEST(SimtDeviceFaults, WithoutReuseNothingIsHidden) {
  on_new_thread([] {
    set_gpu_memory_reuse(false);
    { const Tensor before = gpu_tensor(10); }
    {
      const simt::Session session;
      EXPECT_THAT(failure_of([] { host_values<float>(gpu_tensor(10, Fill::none)); }), HasSubstr("nobody has written"));
    }
    const simt::Session session;
    EXPECT_THAT(failure_of([] {
                  const Tensor x = gpu_tensor(10);
                  scale(View(x.view().data(), DType::f32, Device::cuda, {11}), 2);
                }),
                HasSubstr("out of bounds"));
  });
}

}  // namespace
}  // namespace capstan::tests
