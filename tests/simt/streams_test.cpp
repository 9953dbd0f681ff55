// Streams, events and memory: what is queued runs late, and a missing order between streams shows.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>

#include "kernels/flush_denormals.h"
#include "kernels/launch.cuh"
#include "kernels/stream_cuda.h"
#include "tests/simt/device_array.h"

namespace capstan::tests {
namespace {

using kernels::check_cuda;
using kernels::launch;
using testing::HasSubstr;

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    check_cuda(cudaStreamCreateWithFlags(&handle_, flags), "cudaStreamCreateWithFlags");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(handle_), cudaSuccess); }
  operator cudaStream_t() const { return handle_; }
  void wait() const { check_cuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t handle_ = nullptr;
};

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&handle_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { EXPECT_EQ(cudaEventDestroy(handle_), cudaSuccess); }
  operator cudaEvent_t() const { return handle_; }

 private:
  cudaEvent_t handle_ = nullptr;
};

__global__ void add_one(int* out, const int* in) { out[threadIdx.x] = in[threadIdx.x] + 1; }

/// y = x + 1 on one stream, z = y + 1 on another, y being 10 before; z[0] as the host gets it.
int two_streams(bool with_event) {
  const DeviceArray<int> x(std::vector<int>(32, 0)), y(std::vector<int>(32, 10)), z(32);
  const Stream first, second;
  const Event ready;
  launch<void>(add_one, dim3(1), dim3(32), first, y.data(), x.data());
  check_cuda(cudaEventRecord(ready, first), "cudaEventRecord");
  if (with_event) check_cuda(cudaStreamWaitEvent(second, ready), "cudaStreamWaitEvent");
  launch<void>(add_one, dim3(1), dim3(32), second, z.data(), y.data());
  second.wait();
  first.wait();
  return z.values()[0];
}

TEST(SimtStreams, AMissingEventWaitGivesWrongNumbers) {
  int right = 0, wrong = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const auto kind : {simt::Order::Kind::forward, simt::Order::Kind::reverse, simt::Order::Kind::random}) {
      const simt::Session session({kind, seed});
      EXPECT_EQ(two_streams(true), 2);
      const int got = two_streams(false);
      if (kind == simt::Order::Kind::forward) {
        EXPECT_EQ(got, 11);  // nothing runs that is not waited for
      }
      ++(got == 2 ? right : wrong);
    }
  }
  EXPECT_GT(wrong, 12);
  EXPECT_GT(right, 0);  // an order that hides the fault is among them: tests must go through several
}

TEST(SimtStreams, WorkRunsWhenSomethingWaits) {
  const simt::Session session;
  const DeviceArray<int> x(std::vector<int>(32, 0)), y(32);
  const Stream stream;
  int* seen = nullptr;  // pinned, so that the copy is queued, too
  ASSERT_EQ(cudaMallocHost(&seen, 32 * sizeof(int)), cudaSuccess);
  seen[3] = -1;
  int host_calls = 0;
  launch<void>(add_one, dim3(1), dim3(32), stream, y.data(), x.data());
  ASSERT_EQ(cudaMemcpyAsync(seen, y.data(), 32 * sizeof(int), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream, [](void* calls) { ++*static_cast<int*>(calls); }, &host_calls),
            cudaSuccess);
  const Event done;
  ASSERT_EQ(cudaEventRecord(done, stream), cudaSuccess);
  EXPECT_EQ(seen[3], -1);
  EXPECT_EQ(host_calls, 0);
  EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
  EXPECT_EQ(seen[3], 1);
  EXPECT_EQ(host_calls, 1);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, done, done), cudaSuccess);
  EXPECT_EQ(milliseconds, 0);
  EXPECT_EQ(cudaFreeHost(seen), cudaSuccess);
}

TEST(SimtStreams, PinnedMemoryIsReadLate) {
  const simt::Session session;
  const DeviceArray<int> x(32);
  const Stream stream;
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 32 * sizeof(int)), cudaSuccess);
  std::vector<int> pageable(32, 1);
  std::fill_n(pinned, 32, 1);
  const auto upload = [&](const int* from) {
    ASSERT_EQ(cudaMemcpyAsync(x.data(), from, 32 * sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
  };
  upload(pinned);
  std::fill_n(pinned, 32, 2);  // too early
  stream.wait();
  EXPECT_EQ(x.values()[0], 2);
  upload(pageable.data());
  pageable.assign(32, 2);
  stream.wait();
  EXPECT_EQ(x.values()[0], 1);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST(SimtStreams, TheDefaultStreamIsOrderedWithBlockingOnes) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    const DeviceArray<int> x(std::vector<int>(32, 0)), y(std::vector<int>(32, 10)), z(32);
    const Stream blocking(cudaStreamDefault);
    launch<void>(add_one, dim3(1), dim3(32), blocking, y.data(), x.data());
    launch<void>(add_one, dim3(1), dim3(32), nullptr, z.data(), y.data());
    launch<void>(add_one, dim3(1), dim3(32), blocking, y.data(), z.data());
    blocking.wait();
    EXPECT_EQ(y.values()[0], 3);
  }
}

TEST(SimtStreams, EventsOfTheirTime) {
  const simt::Session session(simt::Order{});  // other streams run only as far as is needed
  const DeviceArray<int> x(std::vector<int>(32, 0)), y(std::vector<int>(32, 10)), z(32);
  const Stream first, second;
  const Event ready;
  ASSERT_EQ(cudaStreamWaitEvent(second, ready), cudaSuccess);  // never recorded: no wait
  ASSERT_EQ(cudaEventRecord(ready, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, ready), cudaSuccess);  // what was recorded before, not what follows
  launch<void>(add_one, dim3(1), dim3(32), first, y.data(), x.data());
  ASSERT_EQ(cudaEventRecord(ready, first), cudaSuccess);
  launch<void>(add_one, dim3(1), dim3(32), second, z.data(), y.data());
  second.wait();
  EXPECT_EQ(z.values()[0], 11);
}

TEST(SimtStreams, HandlesThatAreGone) {
  const simt::Session session;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorInvalidResourceHandle);
}

// What an operation keeps between tests, a scratch or a stream, outlives a test that failed; its work does not.
TEST(SimtStreams, SessionsLeaveHandles) {
  const DeviceArray<int> x(std::vector<int>(32, 0)), y(32);
  const Stream stream;
  {
    const simt::Session session;
    launch<void>(add_one, dim3(1), dim3(33), stream, y.data(), x.data());
    EXPECT_THAT(failure_of([&] { stream.wait(); }), HasSubstr("out of bounds"));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  }
  const simt::Session session;
  EXPECT_THAT(failure_of([&] { x.values(); }), HasSubstr("nobody has written"));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  { const simt::Session ends_the_fault; }
  launch<void>(add_one, dim3(1), dim3(32), stream, y.data(), x.data());
  EXPECT_THAT(failure_of([&] { stream.wait(); }), HasSubstr("nobody has written"));
}

TEST(SimtStreams, FreeingInStreamOrder) {
  const simt::Session session;
  const DeviceArray<int> y(32);
  const Stream stream;
  int* x = nullptr;
  ASSERT_EQ(cudaMallocAsync(&x, 32 * sizeof(int), stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(x, 0, 32 * sizeof(int), stream), cudaSuccess);
  launch<void>(add_one, dim3(1), dim3(32), stream, y.data(), x);
  ASSERT_EQ(cudaFreeAsync(x, stream), cudaSuccess);
  stream.wait();
  EXPECT_EQ(y.values()[5], 1);
  launch<void>(add_one, dim3(1), dim3(32), stream, y.data(), x);
  EXPECT_THAT(failure_of([] {}), HasSubstr("an allocation of 128 bytes that was freed"));
}

TEST(SimtMemory, RunsOut) {
  const simt::Session session;
  std::size_t available = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  const std::size_t kept = total - available, before = total;  // kept: by operations that ran earlier in this process
  simt::set_device_memory(kept + (1 << 20));
  {
    const DeviceArray<char> half(1 << 19);
    ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
    EXPECT_EQ(total, kept + (1 << 20));
    EXPECT_EQ(available, std::size_t(1) << 19);
    EXPECT_THROW(DeviceArray<char>((1 << 19) + 1), kernels::OutOfDeviceMemory);
    EXPECT_NO_THROW(DeviceArray<char>(1 << 19));
  }
  ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  EXPECT_EQ(available, total - kept);
  simt::set_device_memory(before);
}

TEST(SimtMemory, CopiesThatAreRefused) {
  const simt::Session session;
  const DeviceArray<int> x(std::vector<int>(32, 1));
  std::vector<int> host(40);
  EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 33 * sizeof(int), cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 32 * sizeof(int), cudaMemcpyHostToDevice),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemset(x.data(), 0, 33 * sizeof(int)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host.data(), 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(x.data() + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 32 * sizeof(int), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(host[31], 1);
}

TEST(SimtMemory, RowsWithPitch) {
  const simt::Session session;
  std::vector<int> from(5 * 8), to(5 * 3, -1);
  std::iota(from.begin(), from.end(), 0);
  const DeviceArray<int> x(4 * 5);  // rows of 4, of which 3 are written
  ASSERT_EQ(cudaMemcpy2D(x.data(), 16, from.data(), 32, 12, 5, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2DAsync(to.data(), 12, x.data(), 16, 12, 5, cudaMemcpyDeviceToHost), cudaSuccess);
  for (int row = 0; row < 5; ++row)
    for (int i = 0; i < 3; ++i) EXPECT_EQ(to[std::size_t(row * 3 + i)], row * 8 + i);
  EXPECT_THROW(x.values(), std::runtime_error);  // the fourth of each row
}

TEST(SimtMemory, WhatPointersAre) {
  const simt::Session session;
  const DeviceArray<int> x(4);
  int local = 0;
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, x.data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  ASSERT_EQ(cudaHostRegister(&local, sizeof local, cudaHostRegisterDefault), cudaSuccess);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostUnregister(&local), cudaSuccess);
}

TEST(SimtStreams, ADeviceWaitsForItsOwnStreams) {
  const simt::Session session(simt::Order{});
  simt::set_devices(2, CUDART_VERSION);
  int ran = 0;
  const auto count = [](void* calls) { ++*static_cast<int*>(calls); };
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const Stream of_one;
  ASSERT_EQ(cudaLaunchHostFunc(of_one, count, &ran), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Stream of_zero;
  ASSERT_EQ(cudaLaunchHostFunc(of_zero, count, &ran), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(ran, 1);
  of_one.wait();
  EXPECT_EQ(ran, 2);
  simt::set_devices(1, CUDART_VERSION);
}

__global__ void halve(float* x) { x[threadIdx.x] *= 0.5f; }

// Rank threads flush denormal numbers; a GPU does not, whichever thread happens to run its work here.
TEST(SimtStreams, KernelsKeepDenormals) {
  const simt::Session session;
  const float smallest_normal = std::numeric_limits<float>::min();
  std::vector<float> got;
  std::thread([&] {
    kernels::flush_denormals();
    const DeviceArray<float> x(std::vector<float>(32, smallest_normal));
    launch<void>(halve, dim3(1), dim3(32), nullptr, x.data());
    got = x.values();
  }).join();
  EXPECT_EQ(got, std::vector<float>(32, smallest_normal / 2));
}

// Ranks are threads of one process, each with a stream of its own.
TEST(SimtStreams, SeveralHostThreads) {
  const simt::Session session({simt::Order::Kind::random, 7});
  std::vector<int> results(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([rank, &results] {
      const Stream stream;
      const kernels::StreamScope scope(stream);
      const DeviceArray<int> x(std::vector<int>(32, 100 * rank));
      for (int i = 0; i < 50; ++i)
        launch<void>(add_one, dim3(1), dim3(32), kernels::stream_of_thread(), x.data(), x.data());
      stream.wait();
      results[std::size_t(rank)] = x.values()[31];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(results, (std::vector<int>{50, 150, 250, 350}));
  EXPECT_EQ(kernels::stream_of_thread(), nullptr);
}

}  // namespace
}  // namespace capstan::tests
