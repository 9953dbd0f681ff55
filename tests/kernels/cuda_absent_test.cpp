// What a build without CUDA says to whoever asks for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/device_cuda.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace capstan::kernels {
namespace {

using testing::HasSubstr;

template <class F> void expect_refused(F&& f) {
  try {
    f();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_THAT(error.what(), HasSubstr("this program was built without CUDA"));
  }
}

TEST(CudaAbsent, SaysSo) {
  if (cuda_build() != "built without CUDA") GTEST_SKIP() << cuda_build();
  EXPECT_EQ(cuda_device_count(), 0);
  EXPECT_EQ(name_of(Device::cuda), "cuda");
  expect_refused([] { Tensor({1}, DType::f32, Device::cuda); });
  float number = 1;
  const View view(&number, DType::f32, Device::cuda, {1}), row = view.reshape({1, 1}), head = view.reshape({1, 1, 1});
  expect_refused([&] { scale(view, 2); });
  expect_refused([&] { view.fill_zero(); });
  expect_refused([&] { on_device(view, Device::cpu); });
  expect_refused([&] { host_values<float>(view); });
  expect_refused([&] { linear_forward(row, row, row); });
  expect_refused([&] { attention_delta(row, head, head); });
  EXPECT_EQ(memory_report(MemoryPlace::gpu).now, 0);
}

TEST(CudaAbsent, TheHostDoesNotReadWhatLiesThere) {
  float number = 1;
  const View view(&number, DType::f32, Device::cuda, {1});
  EXPECT_THROW(view.as<float>(), Error);
  EXPECT_NO_THROW(View(&number, DType::f32, Device::cpu, {1}).as<float>());
}

}  // namespace
}  // namespace capstan::kernels
