// The emulator itself: coordinates, barriers, warp operations, atomics, and what launches refuse.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/device_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ptx.cuh"
#include "tests/simt/device_array.h"

namespace capstan::tests {
namespace {

using kernels::launch;
using testing::HasSubstr;

TEST(Simt, OneEmulatedDevice) {
  EXPECT_EQ(kernels::cuda_device_count(), 1);
  EXPECT_THAT(kernels::cuda_build(), HasSubstr("emulated"));
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(properties.sharedMemPerBlockOptin, 227u * 1024);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
}

struct Scale {
  unsigned factor;
};

__global__ void write_coordinates(unsigned* out, Scale scale) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = scale.factor * (block * 1000 + thread);
}

TEST(Simt, EveryThreadOfEveryBlockRunsOnce) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    const DeviceArray<unsigned> out(2 * 3 * 4 * 5 * 7 * 2);
    launch<void>(write_coordinates, dim3(2, 3, 4), dim3(5, 7, 2), nullptr, out.data(), Scale{3});
    const std::vector<unsigned> values = out.values();
    for (unsigned i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 3 * (i / 70 * 1000 + i % 70));
  }
}

__global__ void take_tickets(unsigned* counter, unsigned* of_thread) {
  of_thread[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1u);
}

std::vector<unsigned> tickets(simt::Order order) {
  const simt::Session session(order);
  const DeviceArray<unsigned> counter(std::vector<unsigned>{0}), of_thread(4 * 96);
  launch<void>(take_tickets, dim3(4), dim3(96), nullptr, counter.data(), of_thread.data());
  return of_thread.values();
}

TEST(Simt, OrdersAreWhatTheySay) {
  std::vector<unsigned> up(4 * 96), down(4 * 96);
  std::iota(up.begin(), up.end(), 0);
  std::iota(down.rbegin(), down.rend(), 0);
  EXPECT_EQ(tickets({}), up);
  EXPECT_EQ(tickets({simt::Order::Kind::reverse, 0}), down);
  const std::vector<unsigned> one = tickets({simt::Order::Kind::random, 1});
  EXPECT_NE(one, up);
  EXPECT_EQ(std::set<unsigned>(one.begin(), one.end()).size(), one.size());
  EXPECT_EQ(one, tickets({simt::Order::Kind::random, 1}));
  EXPECT_NE(one, tickets({simt::Order::Kind::random, 2}));
  EXPECT_EQ(simt::order_of("reverse"), (simt::Order{simt::Order::Kind::reverse, 0}));
  EXPECT_EQ(simt::order_of("17"), (simt::Order{simt::Order::Kind::random, 17}));
  EXPECT_THROW(simt::order_of("backwards"), std::invalid_argument);
}

struct Shuffled {
  int from_5, up, down, crossed, segment_up, segment_down, segment_first, crossed_out;
  double wide;
};

__global__ void shuffle(Shuffled* out) {
  const int lane = static_cast<int>(threadIdx.x % 32), value = 100 * lane;
  Shuffled& of_lane = out[threadIdx.x];
  of_lane.from_5 = __shfl_sync(0xffffffff, value, 5);
  of_lane.up = __shfl_up_sync(0xffffffff, value, 3);
  of_lane.down = __shfl_down_sync(0xffffffff, value, 3);
  of_lane.crossed = __shfl_xor_sync(0xffffffff, value, 9);
  of_lane.segment_up = __shfl_up_sync(0xffffffff, value, 1, 8);
  of_lane.segment_down = __shfl_down_sync(0xffffffff, value, 1, 8);
  of_lane.segment_first = __shfl_sync(0xffffffff, value, 8, 8);    // 8 mod 8
  of_lane.crossed_out = __shfl_xor_sync(0xffffffff, value, 8, 8);  // leaves the segment: the own value
  of_lane.wide = __shfl_sync(0xffffffff, lane + 0.25, lane ^ 1);
}

TEST(Simt, Shuffles) {
  const simt::Session session;
  const DeviceArray<Shuffled> out(64);
  launch<void>(shuffle, dim3(1), dim3(64), nullptr, out.data());
  const std::vector<Shuffled> values = out.values();
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32;
    const Shuffled& got = values[static_cast<std::size_t>(i)];
    EXPECT_EQ(got.from_5, 500);
    EXPECT_EQ(got.up, 100 * (lane < 3 ? lane : lane - 3));
    EXPECT_EQ(got.down, 100 * (lane > 28 ? lane : lane + 3));
    EXPECT_EQ(got.crossed, 100 * (lane ^ 9));
    EXPECT_EQ(got.segment_up, 100 * (lane % 8 == 0 ? lane : lane - 1));
    EXPECT_EQ(got.segment_down, 100 * (lane % 8 == 7 ? lane : lane + 1));
    EXPECT_EQ(got.segment_first, 100 * (lane / 8 * 8));
    // PTX: shfl.bfly is out of range, and keeps the own value, only above the segment's last lane
    EXPECT_EQ(got.crossed_out, 100 * ((lane ^ 8) > lane ? lane : lane ^ 8));
    EXPECT_EQ(got.wide, (lane ^ 1) + 0.25);
  }
}

struct Votes {
  unsigned odd, upper_half, equal, active;
  int any, all, all_true, block_count, block_all, block_any;
};

__global__ void vote(Votes* out) {
  const unsigned lane = threadIdx.x % 32;
  Votes& of_thread = out[threadIdx.x];
  of_thread.active = __activemask();
  of_thread.odd = __ballot_sync(0xffffffff, lane % 2);
  of_thread.upper_half = lane >= 16 ? __ballot_sync(0xffff0000, lane == 20) : 0;
  of_thread.equal = __match_any_sync(0xffffffff, lane % 3);
  of_thread.any = __any_sync(0xffffffff, lane == 7);
  of_thread.all = __all_sync(0xffffffff, lane != 7);
  of_thread.all_true = __all_sync(0xffffffff, 2);
  of_thread.block_count = __syncthreads_count(threadIdx.x < 40);
  of_thread.block_all = __syncthreads_and(threadIdx.x < 40);
  of_thread.block_any = __syncthreads_or(threadIdx.x == 63);
}

TEST(Simt, Votes) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    const DeviceArray<Votes> out(64);
    launch<void>(vote, dim3(1), dim3(64), nullptr, out.data());
    const std::vector<Votes> values = out.values();
    for (unsigned i = 0; i < 64; ++i) {
      EXPECT_EQ(values[i].active, 0xffffffff);
      EXPECT_EQ(values[i].odd, 0xaaaaaaaa);
      EXPECT_EQ(values[i].upper_half, i % 32 >= 16 ? 1u << 20 : 0);
      EXPECT_EQ(values[i].equal, (i % 32 % 3 == 0 ? 0x49249249u : i % 32 % 3 == 1 ? 0x92492492u : 0x24924924u));
      EXPECT_EQ(values[i].any, 1);
      EXPECT_EQ(values[i].all, 0);
      EXPECT_EQ(values[i].all_true, 1);
      EXPECT_EQ(values[i].block_count, 40);
      EXPECT_EQ(values[i].block_all, 0);
      EXPECT_EQ(values[i].block_any, 1);
    }
  }
}

__global__ void change_atomically(int* sum, unsigned long long* wide, float* real, int* largest, unsigned* claimed) {
  const int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(sum, number);
  atomicAdd(wide, 1ull << 33);
  atomicAdd(real, 0.5f);
  atomicMax(largest, number % 77);
  unsigned seen = 0;
  for (unsigned before = 1; before != seen;) {  // adds 3, as a loop of compare-and-swap
    before = seen;
    seen = atomicCAS(claimed, before, before + 3);
  }
}

TEST(Simt, Atomics) {
  const simt::Session session({simt::Order::Kind::random, 3});
  const DeviceArray<int> sum(std::vector<int>{5}), largest(std::vector<int>{-1});
  const DeviceArray<unsigned long long> wide(std::vector<unsigned long long>{0});
  const DeviceArray<float> real(std::vector<float>{0});
  const DeviceArray<unsigned> claimed(std::vector<unsigned>{0});
  launch<void>(change_atomically, dim3(3), dim3(64), nullptr, sum.data(), wide.data(), real.data(), largest.data(),
               claimed.data());
  EXPECT_EQ(sum.values()[0], 5 + 191 * 192 / 2);
  EXPECT_EQ(wide.values()[0], 192ull << 33);
  EXPECT_EQ(real.values()[0], 96);
  EXPECT_EQ(largest.values()[0], 76);
  EXPECT_EQ(claimed.values()[0], 192u * 3);
}

struct Large {
  float values[25000];  // 100,000 bytes: more than a kernel has without asking
};

__global__ void reverse_in_shared(float* out, const float* in, int n) {
  Large& shared = kernels::ptx::shared<Large>();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) shared.values[i] = in[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    out[i] = shared.values[n - 1 - i];
}

TEST(Simt, LargeSharedMemory) {
  const simt::Session session;
  std::vector<float> in(25000);
  std::iota(in.begin(), in.end(), 0.0f);
  const DeviceArray<float> from(in), to(in.size());
  launch<Large>(reverse_in_shared, dim3(1), dim3(1024), nullptr, to.data(), from.data(), 25000);
  std::reverse(in.begin(), in.end());
  EXPECT_EQ(to.values(), in);
  // A kernel that uses more than it was launched with
  EXPECT_THAT(
      failure_of([&] { launch<float>(reverse_in_shared, dim3(1), dim3(32), nullptr, to.data(), from.data(), 32); }),
      HasSubstr("wants 100000 bytes of shared memory, but was launched with 4"));
}

TEST(Simt, LaunchesThatNoDeviceTakes) {
  const simt::Session session;
  const auto refused = [](dim3 grid, dim3 block) {
    return failure_of([&] { launch<void>(write_coordinates, grid, block, nullptr, nullptr, Scale{1}); });
  };
  EXPECT_THAT(refused(dim3(1), dim3(1025)), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(refused(dim3(1), dim3(0)), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(refused(dim3(1, 65536), dim3(1)), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_EQ(refused(dim3(0), dim3(32)), "");  // nothing to do
  struct TooLarge {
    char bytes[227 * 1024 + 1];
  };
  EXPECT_THROW(launch<TooLarge>(write_coordinates, dim3(1), dim3(1), nullptr, nullptr, Scale{1}), std::runtime_error);
}

}  // namespace
}  // namespace capstan::tests
