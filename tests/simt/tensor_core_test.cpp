// Instructions of kernels/ptx.cuh, against the lane layouts of the PTX ISA (8.5, §9.7.14.5.8 and §9.7.14.5.15) as written out
// here once more, and a product that uses them all.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/launch.cuh"
#include "kernels/ptx.cuh"
#include "tests/simt/device_array.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::launch;
using testing::HasSubstr;
namespace ptx = kernels::ptx;

std::uint16_t narrow(double value) { return kernels::to_bfloat16(static_cast<float>(value)).bits; }
double widened(std::uint16_t bits) { return kernels::to_float(kernels::BFloat16{bits}); }

std::vector<std::uint16_t> random_bf16(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint16_t> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = narrow(normal(seed, i));
  return values;
}

// ldmatrix

struct alignas(16) Matrices {
  std::uint16_t values[4][8][8];
};

template <int count, bool transposed> __global__ void load_matrices(std::uint32_t* out) {
  Matrices& shared = ptx::shared<Matrices>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) shared.values[i / 64][i / 8 % 8][i % 8] = static_cast<std::uint16_t>(i);
  __syncthreads();
  std::uint32_t got[count];
  const void* const row = shared.values[lane / 8 % count][lane % 8];
  if constexpr (count == 4 && !transposed) ptx::ldmatrix_x4(got, row);
  if constexpr (count == 4 && transposed) ptx::ldmatrix_x4_transposed(got, row);
  if constexpr (count == 2 && !transposed) ptx::ldmatrix_x2(got, row);
  if constexpr (count == 2 && transposed) ptx::ldmatrix_x2_transposed(got, row);
  for (int m = 0; m < count; ++m) out[lane * count + m] = got[m];
}

template <int count, bool transposed> void check_load() {
  const simt::Session session({simt::Order::Kind::random, 5});
  const DeviceArray<std::uint32_t> out(32 * count);
  launch<Matrices>(load_matrices<count, transposed>, dim3(1), dim3(32), nullptr, out.data());
  const std::vector<std::uint32_t> got = out.values();
  // "Each thread in a warp holds a fragment of a row": thread T has row T / 4, elements 2 (T % 4) and the next, the first in
  // the lower half; with .trans the matrix is loaded in column-major format.
  for (unsigned thread = 0; thread < 32; ++thread)
    for (unsigned m = 0; m < count; ++m)
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned row = thread / 4, column = thread % 4 * 2 + half;
        const unsigned expected = m * 64 + (transposed ? column * 8 + row : row * 8 + column);
        EXPECT_EQ(got[thread * count + m] >> 16 * half & 0xffff, expected) << thread << " " << m;
      }
}

TEST(SimtTensorCore, LoadMatrix) {
  check_load<4, false>();
  check_load<4, true>();
  check_load<2, false>();
  check_load<2, true>();
}

template <int fault> __global__ void load_wrongly(std::uint32_t* out) {
  Matrices& shared = ptx::shared<Matrices>();
  for (unsigned i = threadIdx.x; i < 256; i += 32) (&shared.values[0][0][0])[i] = 1;
  if (fault != 1) __syncthreads();
  std::uint32_t got[4] = {};
  const std::uint16_t* const row = shared.values[threadIdx.x / 8][threadIdx.x % 8] + (fault == 2 ? 4 : 0);
  if (fault != 3 || threadIdx.x != 31) ptx::ldmatrix_x4(got, row);
  out[threadIdx.x] = got[0];
}

TEST(SimtTensorCore, LoadMatrixFaults) {
  const auto failure = [](void (*kernel)(std::uint32_t*)) {
    const simt::Session session;
    return failure_of([&] {
      const DeviceArray<std::uint32_t> out(32);
      launch<Matrices>(kernel, dim3(1), dim3(32), nullptr, out.data());
    });
  };
  EXPECT_EQ(failure(load_wrongly<0>), "");
  EXPECT_THAT(failure(load_wrongly<1>),
              testing::AnyOf(HasSubstr("race: another thread"), HasSubstr("nobody has written")));
  EXPECT_THAT(failure(load_wrongly<2>), HasSubstr("is not a multiple of 16"));
  EXPECT_THAT(failure(load_wrongly<3>), HasSubstr("divergent warp"));
}

// mma

__global__ void multiply_fragments(float* sum, const std::uint32_t* a, const std::uint32_t* b) {
  const unsigned lane = threadIdx.x;
  float of_sum[4];
  std::uint32_t of_a[4], of_b[2];
  for (unsigned i = 0; i < 4; ++i) of_sum[i] = sum[lane * 4 + i];
  for (unsigned i = 0; i < 4; ++i) of_a[i] = a[lane * 4 + i];
  for (unsigned i = 0; i < 2; ++i) of_b[i] = b[lane * 2 + i];
  ptx::mma_m16n8k16(of_sum, of_a, of_b);
  for (unsigned i = 0; i < 4; ++i) sum[lane * 4 + i] = of_sum[i];
}

TEST(SimtTensorCore, MultiplyFragments) {
  const simt::Session session({simt::Order::Kind::reverse, 0});
  const std::vector<std::uint16_t> A = random_bf16(16 * 16, 1), B = random_bf16(16 * 8, 2);  // row major
  std::vector<float> C(16 * 8);
  for (std::size_t i = 0; i < C.size(); ++i) C[i] = static_cast<float>(normal(3, i));
  // §9.7.14.5.8, .bf16. With groupID = lane >> 2 and threadID_in_group = lane % 4:
  //   a_i, i < 8: row = groupID for i in 0, 1, 4, 5, else groupID + 8; column = threadID_in_group * 2 + (i & 1), + 8 for i >= 4
  //   b_i, i < 4: row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2; column = groupID
  //   c_i, i < 4: row = groupID for i < 2, else groupID + 8; column = threadID_in_group * 2 + (i & 1)
  std::vector<std::uint16_t> a(32 * 8), b(32 * 4);
  std::vector<float> c(32 * 4);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t group = lane >> 2, in_group = lane % 4;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t row = i == 0 || i == 1 || i == 4 || i == 5 ? group : group + 8;
      a[lane * 8 + i] = A[row * 16 + in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)];
    }
    for (std::size_t i = 0; i < 4; ++i) b[lane * 4 + i] = B[(in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + group];
    for (std::size_t i = 0; i < 4; ++i) c[lane * 4 + i] = C[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
  }
  const DeviceArray<std::uint16_t> of_a(a), of_b(b);
  const DeviceArray<float> of_c(c);
  launch<void>(multiply_fragments, dim3(1), dim3(32), nullptr, of_c.data(),
               reinterpret_cast<const std::uint32_t*>(of_a.data()),
               reinterpret_cast<const std::uint32_t*>(of_b.data()));
  const std::vector<float> got = of_c.values();
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = (lane >> 2) + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
      double expected = C[row * 8 + column];
      for (std::size_t k = 0; k < 16; ++k) expected += widened(A[row * 16 + k]) * widened(B[k * 8 + column]);
      EXPECT_NEAR(got[lane * 4 + i], expected, 1e-5);
    }
}

__global__ void pack(std::uint32_t* out, const float* in) { out[threadIdx.x] = ptx::pack_bf16(in[0], in[threadIdx.x]); }

__global__ void approximate(float* out, const float* in) {
  out[threadIdx.x] = ptx::exp2_approx(in[threadIdx.x]);
  out[blockDim.x + threadIdx.x] = ptx::reciprocal_approx(in[threadIdx.x]);
}

TEST(SimtTensorCore, ScalarInstructions) {
  const simt::Session session;
  // 1 + 2^-8 lies between 1 and 1 + 2^-7, as 1 + 3 · 2^-8 between the next two: both go to the even one
  const std::vector<float> in{-2, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, INFINITY, std::nanf("")};
  const DeviceArray<float> from(in);
  const DeviceArray<std::uint32_t> pairs(in.size());
  launch<void>(pack, dim3(1), dim3(5), nullptr, pairs.data(), from.data());
  const std::vector<std::uint32_t> got = pairs.values();
  EXPECT_EQ(got[0], 0xc000c000u);
  EXPECT_EQ(got[1], 0x3f80c000u);
  EXPECT_EQ(got[2], 0x3f82c000u);
  EXPECT_EQ(got[3], 0x7f80c000u);
  EXPECT_TRUE(std::isnan(widened(static_cast<std::uint16_t>(got[4] >> 16))));
  const DeviceArray<float> numbers(std::vector<float>{3, -0.5f, -INFINITY}), results(6);
  launch<void>(approximate, dim3(1), dim3(3), nullptr, results.data(), numbers.data());
  const std::vector<float> values = results.values();
  EXPECT_FLOAT_EQ(values[0], 8);
  EXPECT_FLOAT_EQ(values[1], std::sqrt(0.5f));
  EXPECT_EQ(values[2], 0);
  EXPECT_FLOAT_EQ(values[3], 1.0f / 3);
  EXPECT_FLOAT_EQ(values[4], -2);
}

// cp.async

struct alignas(16) Pieces {
  float values[2][32][4];
};

enum class Copying { right, no_wait, wait_for_too_few, no_barrier, write_in_flight, never_waited };

/// Two groups of 16 bytes per thread; every second piece of the second group is not valid.
template <Copying way> __global__ void copy_async(float* out, const float* in) {
  Pieces& shared = ptx::shared<Pieces>();
  const unsigned i = threadIdx.x, other = (i + 1) % 32;
  ptx::copy_async_16(shared.values[0][i], in + i * 4, true);
  ptx::copy_async_commit();
  ptx::copy_async_16(shared.values[1][i], in + 128 + i * 4, i % 2 == 0);
  ptx::copy_async_commit();
  if (way == Copying::never_waited) return;
  if (way == Copying::write_in_flight) shared.values[1][i][3] = 1;
  if (way != Copying::no_wait) ptx::copy_async_wait<1>();
  if (way != Copying::no_barrier) __syncthreads();
  for (unsigned k = 0; k < 4; ++k) out[i * 4 + k] = shared.values[0][other][k];
  if (way != Copying::wait_for_too_few) ptx::copy_async_wait<0>();
  __syncthreads();
  for (unsigned k = 0; k < 4; ++k) out[128 + i * 4 + k] = shared.values[1][other][k];
  ptx::copy_async_wait<0>();
}

TEST(SimtTensorCore, AsynchronousCopies) {
  std::vector<float> in(256);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i + 1);
  const auto failure = [&](void (*kernel)(float*, const float*)) {
    std::vector<std::string> failures;
    for (const simt::Order order : all_orders()) {
      const simt::Session session(order);
      failures.push_back(failure_of([&] {
        const DeviceArray<float> from(in), out(256);
        launch<Pieces>(kernel, dim3(1), dim3(32), nullptr, out.data(), from.data());
        const std::vector<float> got = out.values();
        for (std::size_t i = 0; i < 256; ++i) {
          const std::size_t thread = (i / 4 + 1) % 32;
          EXPECT_EQ(got[i], i < 128 ? in[thread * 4 + i % 4] : thread % 2 == 0 ? in[128 + thread * 4 + i % 4] : 0);
        }
      }));
    }
    return failures;
  };
  const auto each = [](const char* what) { return testing::Each(HasSubstr(what)); };
  EXPECT_THAT(failure(copy_async<Copying::right>), testing::Each(std::string()));
  EXPECT_THAT(failure(copy_async<Copying::no_wait>), each("(cp.async) to it was not waited for"));
  EXPECT_THAT(failure(copy_async<Copying::wait_for_too_few>), each("(cp.async) to it was not waited for"));
  EXPECT_THAT(failure(copy_async<Copying::write_in_flight>), each("(cp.async) to it was not waited for"));
  EXPECT_THAT(failure(copy_async<Copying::never_waited>), each("ends while asynchronous copies are in flight"));
  for (const std::string& text : failure(copy_async<Copying::no_barrier>))
    EXPECT_THAT(text, testing::AnyOf(HasSubstr("race: another thread wrote"), HasSubstr("nobody has written"),
                                     HasSubstr("was not waited for")));
}

// A product of bf16 matrices: c = a b, a [M, K] and b [K, N] row major, M and N multiples of 32, K any multiple of 8. Blocks of
// four warps, each with a 16 x 16 part of a 32 x 32 tile; the next slice of K is copied while this one is multiplied.

constexpr int tile = 32, depth = 32;

struct alignas(16) Stage {
  std::uint16_t a[tile][depth + 8];  // 8 more, so that rows of a matrix lie in different banks
  std::uint16_t b[depth][tile + 8];
};
struct Stages {
  Stage at[2];
};

__device__ inline void copy_slice(Stage& stage, const std::uint16_t* a, const std::uint16_t* b, int k0, int K, int N) {
  const int row = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4 * 8;
  ptx::copy_async_16(&stage.a[row][part], a + (blockIdx.y * tile + row) * K + k0 + part, k0 + part < K);
  ptx::copy_async_16(&stage.b[row][part], b + (k0 + row) * N + blockIdx.x * tile + part, k0 + row < K);
  ptx::copy_async_commit();
}

__device__ inline void multiply_slice(float (&sum)[2][4], const Stage& stage, int row0, int column0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t a[4], b[4];  // b: columns 0 to 7 as {b[0], b[1]}, 8 to 15 as {b[2], b[3]}
    ptx::ldmatrix_x4(a, &stage.a[row0 + lane % 16][k + lane / 16 * 8]);
    ptx::ldmatrix_x4_transposed(b, &stage.b[k + lane % 16][column0 + lane / 16 * 8]);
    const std::uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
    ptx::mma_m16n8k16(sum[0], a, left);
    ptx::mma_m16n8k16(sum[1], a, right);
  }
}

__global__ void multiply(float* c, const std::uint16_t* a, const std::uint16_t* b, int N, int K) {
  Stages& shared = ptx::shared<Stages>();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / 2 * 16, column0 = warp % 2 * 16;
  float sum[2][4] = {};
  copy_slice(shared.at[0], a, b, 0, K, N);
  for (int k0 = 0, slice = 0; k0 < K; k0 += depth, ++slice) {
    copy_slice(shared.at[(slice + 1) % 2], a, b, k0 + depth, K, N);  // beyond K: zeros, and nothing is read
    ptx::copy_async_wait<1>();
    __syncthreads();
    multiply_slice(sum, shared.at[slice % 2], row0, column0);
    __syncthreads();
  }
  ptx::copy_async_wait<0>();
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 4; ++i) {
      const int row = static_cast<int>(blockIdx.y) * tile + row0 + lane / 4 + 8 * (i / 2);
      c[row * N + static_cast<int>(blockIdx.x) * tile + column0 + 8 * half + 2 * (lane % 4) + i % 2] = sum[half][i];
    }
}

TEST(SimtTensorCore, Product) {
  for (const auto& [M, N, K] : {std::array<int, 3>{32, 32, 8}, {64, 96, 40}, {96, 64, 256}}) {
    const std::size_t m = std::size_t(M), n = std::size_t(N), k = std::size_t(K);
    const std::vector<std::uint16_t> A = random_bf16(m * k, 1), B = random_bf16(k * n, 2);
    std::vector<double> exact(m * n), size(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t l = 0; l < k; ++l) {
          const double term = widened(A[i * k + l]) * widened(B[l * n + j]);
          exact[i * n + j] += term;
          size[i * n + j] += std::abs(term);
        }
    std::vector<float> first;
    for (const simt::Order order : all_orders()) {
      const simt::Session session(order);
      const DeviceArray<std::uint16_t> a(A), b(B);
      const DeviceArray<float> c(m * n);
      launch<Stages>(multiply, dim3(unsigned(N / tile), unsigned(M / tile)), dim3(128), nullptr, c.data(), a.data(),
                     b.data(), N, K);
      const std::vector<float> got = c.values();
      for (std::size_t i = 0; i < got.size();
           ++i)  // each of the K additions rounds by 2^-24 of the terms' size at most
        ASSERT_NEAR(got[i], exact[i], double(K) * 0x1p-24 * size[i]) << i;
      if (first.empty()) first = got;
      EXPECT_EQ(got, first);
    }
  }
}

}  // namespace
}  // namespace capstan::tests
