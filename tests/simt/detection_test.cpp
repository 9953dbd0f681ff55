// Every kind of fault that the emulator promises to find: planted, it is named; in the correct twin nothing is.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "kernels/launch.cuh"
#include "kernels/ptx.cuh"
#include "tests/simt/device_array.h"

namespace capstan::tests {
namespace {

using kernels::launch;
using testing::AllOf;
using testing::HasSubstr;
namespace ptx = kernels::ptx;

/// What happens when f runs in each thread order: the failures of all of them, which must agree in being one or none.
template <class F> std::vector<std::string> failures_of(F&& f) {
  std::vector<std::string> failures;
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    failures.push_back(failure_of(f));
  }
  return failures;
}

template <class F> void expect_found(F&& f, const std::string& what) {
  EXPECT_THAT(failures_of(f),
              testing::Each(AllOf(HasSubstr(what), HasSubstr("kernel "), HasSubstr("block ("), HasSubstr("thread ("))));
}

template <class F> void expect_clean(F&& f) { EXPECT_THAT(failures_of(f), testing::Each(std::string())); }

struct Row {
  float values[256];
};

// Barriers between threads of a block

template <bool with_barrier> __global__ void rotate(float* out) {
  Row& shared = ptx::shared<Row>();
  shared.values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (with_barrier) __syncthreads();
  out[threadIdx.x] = shared.values[(threadIdx.x + 1) % blockDim.x];
}

TEST(SimtDetection, MissingBarrierBeforeARead) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(256);
    launch<Row>(kernel, dim3(1), dim3(256), nullptr, out.data());
    EXPECT_EQ(out.values()[255], 0);
    EXPECT_EQ(out.values()[17], 18);
  };
  expect_clean([&] { run(rotate<true>); });
  // Whoever comes first reads what is not written yet; in some orders that is found first, in others the race.
  for (const std::string& failure : failures_of([&] { run(rotate<false>); }))
    EXPECT_THAT(failure, testing::AnyOf(HasSubstr("nobody has written"), HasSubstr("race: another thread")));
}

template <bool with_barrier> __global__ void reuse(float* out) {
  Row& shared = ptx::shared<Row>();
  shared.values[threadIdx.x] = 1;
  __syncthreads();
  const float first = shared.values[(threadIdx.x + 1) % blockDim.x];
  if constexpr (with_barrier) __syncthreads();
  shared.values[threadIdx.x] = 2;  // without the barrier a neighbour may still want the 1
  __syncthreads();
  out[threadIdx.x] = first + shared.values[(threadIdx.x + 1) % blockDim.x];
}

TEST(SimtDetection, MissingBarrierBeforeAWrite) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(256);
    launch<Row>(kernel, dim3(1), dim3(256), nullptr, out.data());
    EXPECT_EQ(out.values(), std::vector<float>(256, 3));
  };
  expect_clean([&] { run(reuse<true>); });
  expect_found([&] { run(reuse<false>); }, "race: another thread");
}

template <bool fault> __global__ void write_same(float* out) {
  Row& shared = ptx::shared<Row>();
  if (fault || threadIdx.x == 0) shared.values[0] = 1;  // the same value from all is a race all the same
  __syncthreads();
  out[threadIdx.x] = shared.values[0];
}

TEST(SimtDetection, TwoWriters) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(64);
    launch<Row>(kernel, dim3(1), dim3(64), nullptr, out.data());
  };
  expect_clean([&] { run(write_same<false>); });
  const simt::Session session(simt::Order{});
  EXPECT_THAT(failure_of([&] { run(write_same<true>); }),
              AllOf(HasSubstr("thread (1, 0, 0): race: another thread wrote there"),
                    HasSubstr("(thread (0, 0, 0) of this block); it writes 4 bytes of shared memory at byte 0")));
  expect_found([&] { run(write_same<true>); }, "race: another thread wrote there");
}

// Bytes of one word belong to whoever writes them; a race is one of bytes.
template <bool fault> __global__ void write_halves(std::uint16_t* out) {
  struct Halves {
    std::uint16_t values[64];
  };
  Halves& shared = ptx::shared<Halves>();
  shared.values[threadIdx.x] = static_cast<std::uint16_t>(threadIdx.x);
  if (fault && threadIdx.x == 1) shared.values[0] = 1;
  __syncthreads();
  out[threadIdx.x] = shared.values[threadIdx.x ^ 1];
}

TEST(SimtDetection, PartsOfAWord) {
  const auto run = [](void (*kernel)(std::uint16_t*)) {
    const DeviceArray<std::uint16_t> out(64);
    launch<Row>(kernel, dim3(1), dim3(64), nullptr, out.data());
    EXPECT_EQ(out.values()[10], 11);
  };
  expect_clean([&] { run(write_halves<false>); });
  expect_found([&] { run(write_halves<true>); }, "race: another thread wrote there");
}

// Lanes of a warp are ordered by __syncwarp, not by shuffles, and not by running in step.
enum class Sync { none, shuffle, warp, halves };

template <Sync sync> __global__ void rotate_in_warp(float* out) {
  Row& shared = ptx::shared<Row>();
  const unsigned lane = threadIdx.x % 32, first = threadIdx.x - lane;
  shared.values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (sync == Sync::shuffle) out[threadIdx.x] = __shfl_sync(0xffffffff, 1.0f, 0);
  if constexpr (sync == Sync::warp) __syncwarp();
  if constexpr (sync == Sync::halves) __syncwarp(lane < 16 ? 0x0000ffff : 0xffff0000);
  out[threadIdx.x] = shared.values[first + (lane + 1) % 32];
}

TEST(SimtDetection, MissingWarpBarrier) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(64);
    launch<Row>(kernel, dim3(1), dim3(64), nullptr, out.data());
    EXPECT_EQ(out.values()[63], 32);
  };
  expect_clean([&] { run(rotate_in_warp<Sync::warp>); });
  // Lanes 15 and 31 read from the other half, which their barrier does not name.
  for (const auto kernel : {rotate_in_warp<Sync::none>, rotate_in_warp<Sync::halves>})
    for (const std::string& failure : failures_of([&] { run(kernel); }))
      EXPECT_THAT(failure, testing::AnyOf(HasSubstr("nobody has written"), HasSubstr("race: another thread wrote")));
  expect_found([&] { run(rotate_in_warp<Sync::shuffle>); }, "race: another thread wrote");
}

template <bool fault> __global__ void rotate_in_half(float* out) {
  Row& shared = ptx::shared<Row>();
  const unsigned lane = threadIdx.x % 16, first = threadIdx.x - lane;
  const unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffff : 0xffff0000;
  shared.values[threadIdx.x] = 1;
  __syncwarp(half);
  float sum = shared.values[first + (lane + 1) % 16];
  if (!fault) __syncwarp(half);
  shared.values[threadIdx.x] = 2;
  __syncwarp(half);
  sum += shared.values[first + (lane + 5) % 16];
  out[threadIdx.x] = sum;
}

TEST(SimtDetection, BarriersOfHalfWarps) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(64);
    launch<Row>(kernel, dim3(1), dim3(64), nullptr, out.data());
    EXPECT_EQ(out.values(), std::vector<float>(64, 3));
  };
  expect_clean([&] { run(rotate_in_half<false>); });
  expect_found([&] { run(rotate_in_half<true>); }, "race: another thread");
}

// A broadcast read by a whole warp, then a write by one lane of it: ordered by __syncwarp alone.
template <bool with_barrier> __global__ void overwrite_after_broadcast(float* out) {
  Row& shared = ptx::shared<Row>();
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared.values[warp] = 1;
  __syncwarp();
  out[threadIdx.x] = shared.values[warp];
  if constexpr (with_barrier) __syncwarp();
  if (threadIdx.x % 32 == 7) shared.values[warp] = 2;
}

TEST(SimtDetection, WriteAfterABroadcast) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(96);
    launch<Row>(kernel, dim3(1), dim3(96), nullptr, out.data());
  };
  expect_clean([&] { run(overwrite_after_broadcast<true>); });
  expect_found([&] { run(overwrite_after_broadcast<false>); }, "race: another thread");
}

// Divergence

enum class Path { same, some_return, some_elsewhere, some_in_warp_operation };

template <Path path> __global__ void diverge(float* out) {
  const bool some = threadIdx.x >= 32;
  if (path == Path::some_return && some) return;
  if (path == Path::some_in_warp_operation && some) out[threadIdx.x] = __shfl_sync(0xffffffff, 1.0f, 0);
  if (path == Path::some_elsewhere && some) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

TEST(SimtDetection, DivergentBarrier) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(64);
    launch<void>(kernel, dim3(1), dim3(64), nullptr, out.data());
  };
  expect_clean([&] { run(diverge<Path::same>); });
  expect_clean([&] { run(diverge<Path::some_in_warp_operation>); });  // a whole warp: it gets to the barrier later
  expect_found([&] { run(diverge<Path::some_return>); }, "divergent barrier");
  expect_found([&] { run(diverge<Path::some_elsewhere>); }, "divergent barrier");
}

enum class Mask { right, own_lane_missing, absent_lane, ended_lane, lane_at_barrier, disagreeing, source_outside };

template <Mask mask> __global__ void shuffle_some(float* out) {
  const unsigned lane = threadIdx.x % 32;
  const float value = static_cast<float>(lane);
  float got = 0;
  switch (mask) {
    case Mask::right:
      if (lane < 16) got = __shfl_sync(0x0000ffff, value, 3);
      break;
    case Mask::own_lane_missing: got = __shfl_sync(0x0000ffff, value, 3); break;
    case Mask::absent_lane: got = __shfl_sync(0xffffffff, value, 3); break;  // launched with 48 threads
    case Mask::ended_lane:
      if (lane == 9) return;
      got = __shfl_sync(0xffffffff, value, 3);
      break;
    case Mask::lane_at_barrier:
      if (lane != 9) got = __shfl_sync(0xffffffff, value, 3);
      __syncthreads();
      break;
    case Mask::disagreeing: got = __shfl_sync(lane == 9 ? 0x00000200 : 0xffffffff, value, 9); break;
    case Mask::source_outside:
      if (lane < 16) got = __shfl_sync(0x0000ffff, value, 20);
      break;
  }
  out[threadIdx.x] = got;
}

TEST(SimtDetection, MasksThatLanesDoNotReach) {
  const auto run = [](void (*kernel)(float*), unsigned threads) {
    const DeviceArray<float> out(64);
    launch<void>(kernel, dim3(1), dim3(threads), nullptr, out.data());
  };
  expect_clean([&] { run(shuffle_some<Mask::right>, 64); });
  expect_clean([&] { run(shuffle_some<Mask::absent_lane>, 64); });
  expect_found([&] { run(shuffle_some<Mask::own_lane_missing>, 64); }, "does not name the lane that gives it");
  expect_found([&] { run(shuffle_some<Mask::absent_lane>, 48); }, "names a lane that the block does not have");
  expect_found([&] { run(shuffle_some<Mask::ended_lane>, 64); }, "divergent warp");
  expect_found([&] { run(shuffle_some<Mask::lane_at_barrier>, 64); }, "divergent warp");
  for (const std::string& failure : failures_of([&] { run(shuffle_some<Mask::disagreeing>, 64); }))
    EXPECT_THAT(failure, testing::AnyOf(HasSubstr("divergent warp"), HasSubstr("none can go on")));
  expect_found([&] { run(shuffle_some<Mask::source_outside>, 64); }, "shuffle from lane 20, which is not in the mask");
}

// Bounds

__global__ void copy_some(float* out, const float* in, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = in[i];
}

TEST(SimtDetection, GlobalMemoryOutOfBoundsByOne) {
  const auto run = [](std::size_t in_size, std::size_t out_size, int n) {
    const DeviceArray<float> in(std::vector<float>(in_size, 1)), out(out_size);
    launch<void>(copy_some, dim3(4), dim3(32), nullptr, out.data(), in.data(), n);
  };
  expect_clean([&] { run(99, 99, 99); });
  expect_found([&] { run(98, 99, 99); }, "0 bytes past the end of an allocation of 392 bytes; it reads 4 bytes");
  expect_found([&] { run(99, 98, 99); }, "0 bytes past the end of an allocation of 392 bytes; it writes 4 bytes");
}

TEST(SimtDetection, MessagesNameTheKernel) {
  const simt::Session session;
  const DeviceArray<float> in(std::vector<float>(40, 1)), out(39);
  launch<void>(copy_some, dim3(4), dim3(32), nullptr, out.data(), in.data(), 40);
  EXPECT_THAT(failure_of([] {}),
              AllOf(HasSubstr("kernel capstan::tests::{anonymous}::copy_some, block (1, 0, 0), thread (7, 0, 0): "),
                    HasSubstr("in capstan::tests::{anonymous}::copy_some"), HasSubstr("(device 0)")));
}

TEST(SimtDetection, FreedMemory) {
  expect_found(
      [] {
        const DeviceArray<float> out(32);
        float* freed;
        {
          const DeviceArray<float> in(std::vector<float>(32, 1));
          freed = in.data();
        }
        launch<void>(copy_some, dim3(1), dim3(32), nullptr, out.data(), freed, 32);
      },
      "an allocation of 128 bytes that was freed");
}

template <int past> __global__ void fill_shared(float* out) {
  Row& shared = ptx::shared<Row>();
  const int i = static_cast<int>(threadIdx.x) + past;
  shared.values[i] = 1;
  out[threadIdx.x] = shared.values[i];
}

TEST(SimtDetection, SharedMemoryOutOfBoundsByOne) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(256);
    launch<Row>(kernel, dim3(1), dim3(256), nullptr, out.data());
  };
  expect_clean([&] { run(fill_shared<0>); });
  expect_found([&] { run(fill_shared<1>); }, "out of bounds: byte 1024 of 1024 bytes of shared memory");
  expect_found([&] { run(fill_shared<-1>); }, "out of bounds: byte -4 of 1024 bytes of shared memory");
}

// Loops and copies that compilers turn into calls are checked like others.
struct Block {
  std::uint8_t bytes[512];
};

__global__ void clear_and_copy(Block* out, const Block* in, int clear, int copy) {
  Block& shared = ptx::shared<Block>();
  for (int i = 0; i < clear; ++i) shared.bytes[i] = 0;
  memcpy(shared.bytes, in->bytes, static_cast<std::size_t>(copy));
  *out = shared;
}

TEST(SimtDetection, CopiesAndFills) {
  const auto run = [](int clear, int copy, std::size_t in_size) {
    const DeviceArray<std::uint8_t> in(std::vector<std::uint8_t>(in_size, 7)), out(sizeof(Block));
    launch<Block>(clear_and_copy, dim3(1), dim3(1), nullptr, reinterpret_cast<Block*>(out.data()),
                  reinterpret_cast<const Block*>(in.data()), clear, copy);
    EXPECT_EQ(out.values()[99], 7);
    EXPECT_EQ(out.values()[100], 0);
  };
  expect_clean([&] { run(512, 100, 100); });
  expect_found([&] { run(513, 100, 100); }, "of 512 bytes of shared memory");
  expect_found([&] { run(512, 100, 99); }, "out of bounds: ");
  expect_found([&] { run(511, 100, 100); }, "reads memory that nobody has written");
}

// Memory that nobody has written

template <bool fault> __global__ void read_shared(float* out) {
  Row& shared = ptx::shared<Row>();
  if (!fault || threadIdx.x != 40 || blockIdx.x == 0) shared.values[threadIdx.x] = 1;  // block 0 has written all of it
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared.values[threadIdx.x];
}

TEST(SimtDetection, UnwrittenSharedMemory) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(128);
    launch<Row>(kernel, dim3(2), dim3(64), nullptr, out.data());
  };
  expect_clean([&] { run(read_shared<false>); });
  expect_found([&] { run(read_shared<true>); }, "thread (40, 0, 0): reads memory that nobody has written");
}

TEST(SimtDetection, UnwrittenGlobalMemory) {
  const auto run = [](int written) {
    const DeviceArray<float> in(64), out(64);
    kernels::check_cuda(cudaMemset(in.data(), 0, static_cast<std::size_t>(written) * sizeof(float)), "cudaMemset");
    launch<void>(copy_some, dim3(1), dim3(64), nullptr, out.data(), in.data(), 64);
  };
  expect_clean([&] { run(64); });
  expect_found([&] { run(63); }, "thread (63, 0, 0): reads memory that nobody has written");
  // What a kernel forgot to write is found when it is copied to the host, and also after a copy on the device.
  const simt::Session session;
  const DeviceArray<float> in(std::vector<float>(64, 1)), out(64), moved(64);
  launch<void>(copy_some, dim3(1), dim3(64), nullptr, out.data(), in.data(), 60);
  EXPECT_EQ(cudaMemcpy(moved.data(), out.data(), 256, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_THAT(failure_of([&] { moved.values(); }), HasSubstr("240 bytes into an allocation of 256 bytes"));
}

// Races between blocks

template <bool fault> __global__ void neighbours(float* out) {
  const unsigned other = (blockIdx.x + 1) % gridDim.x;
  out[blockIdx.x] = 1;
  if (fault) out[gridDim.x + blockIdx.x] = out[other];
}

__global__ void add_neighbours(float* out) {
  const unsigned other = (blockIdx.x + 1) % gridDim.x;
  out[gridDim.x + blockIdx.x] = out[other];  // written by the launch before
}

template <bool fault> __global__ void count(int* out) {
  if (fault) ++*out;
  else atomicAdd(out, 1);
}

template <bool fault> __global__ void read_then_write(int* out) {
  const int before = out[0];
  if (before == 7 || (fault && blockIdx.x == 1)) out[0] = 8;
}

TEST(SimtDetection, RacesBetweenBlocks) {
  const auto run = [](void (*kernel)(float*)) {
    const DeviceArray<float> out(std::vector<float>(8, 0));
    launch<void>(kernel, dim3(4), dim3(1), nullptr, out.data());
    launch<void>(add_neighbours, dim3(4), dim3(1), nullptr, out.data());
  };
  expect_clean([&] { run(neighbours<false>); });
  expect_found([&] { run(neighbours<true>); }, "race: another thread");
  const auto run_count = [](void (*kernel)(int*)) {
    const DeviceArray<int> out(std::vector<int>{0});
    launch<void>(kernel, dim3(4), dim3(1), nullptr, out.data());
  };
  expect_clean([&] { run_count(count<false>); });
  expect_found([&] { run_count(count<true>); }, "(it is of another block)");
  expect_clean([&] { run_count(read_then_write<false>); });
  expect_found([&] { run_count(read_then_write<true>); }, "race: another thread");
}

template <bool fault> __global__ void read_after_atomics(int* out, int* sum) {
  int& shared = ptx::shared<int>();
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  atomicAdd(&shared, 1);
  if (!fault) __syncthreads();
  out[threadIdx.x] = shared;
  if (threadIdx.x == 0) *sum = 1;
}

TEST(SimtDetection, ReadsAmongAtomics) {
  const auto run = [](void (*kernel)(int*, int*)) {
    const DeviceArray<int> out(64), sum(1);
    launch<int>(kernel, dim3(1), dim3(64), nullptr, out.data(), sum.data());
    EXPECT_EQ(out.values(), std::vector<int>(64, 64));
  };
  expect_clean([&] { run(read_after_atomics<false>); });
  expect_found([&] { run(read_after_atomics<true>); }, "race: another thread");
}

// Alignment and addresses

__global__ void sum_vectors(float* out, const float* in) {
  const float4 four = reinterpret_cast<const float4*>(in)[threadIdx.x];
  out[threadIdx.x] = four.x + four.y + four.z + four.w;
}

TEST(SimtDetection, MisalignedVectors) {
  const auto run = [](std::size_t offset) {
    const DeviceArray<float> in(std::vector<float>(256, 1)), out(32);
    launch<void>(sum_vectors, dim3(1), dim3(32), nullptr, out.data(), in.data() + offset);
    EXPECT_EQ(out.values(), std::vector<float>(32, 4));
  };
  expect_clean([&] { run(0); });
  expect_clean([&] { run(4); });
  expect_found([&] { run(1); }, "misaligned: address");
  expect_found([&] { run(2); }, "is not a multiple of 16");
}

TEST(SimtDetection, HostPointers) {
  const std::vector<float> heap(32, 1);
  const float local[32] = {1};
  static const float constant[32] = {1};
  const auto run = [](const float* in) {
    const DeviceArray<float> out(32);
    launch<void>(copy_some, dim3(1), dim3(32), nullptr, out.data(), in, 32);
  };
  expect_found([&] { run(heap.data()); }, "a pointer of the host, or none");
  expect_found([&] { run(local); }, "a pointer of the host, or none");
  expect_found([&] { run(nullptr); }, "a pointer of the host, or none");
  expect_clean([&] { run(constant); });  // __constant__ variables look like this
  float* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 32 * sizeof(float), cudaHostAllocDefault), cudaSuccess);
  std::fill_n(pinned, 32, 1.0f);
  expect_clean([&] { run(pinned); });
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// The other way round: what the host must not touch without a copy.
TEST(SimtDetection, DevicePointersOnTheHost) {
  const simt::Session session;
  const DeviceArray<float> x(std::vector<float>(32, 1));
  EXPECT_EQ(x.values()[0], 1);
  EXPECT_EXIT(std::fill_n(x.data(), 32, 0.0f), testing::KilledBySignal(SIGSEGV), "");
}

// A fault ends one launch; the device stays broken, and says so, until it is reset.
TEST(SimtDetection, AfterAFault) {
  const simt::Session session;
  const DeviceArray<float> in(std::vector<float>(31, 1)), out(32);
  launch<void>(copy_some, dim3(1), dim3(32), nullptr, out.data(), in.data(), 32);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // nobody has waited yet
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_THROW(launch<void>(copy_some, dim3(1), dim3(32), nullptr, out.data(), in.data(), 1), std::runtime_error);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  kernels::release_kept_memory();  // it would be lost
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  const DeviceArray<float> again(std::vector<float>(32, 5));
  EXPECT_EQ(again.values()[31], 5);
}

}  // namespace
}  // namespace capstan::tests
