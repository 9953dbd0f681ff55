// Ring attention in device memory: 2, 4 and 8 ranks as threads of one GPU, each with a queue of its own, under every schedule, against
// one rank on the GPU, and that one against the dense oracle in f64 by the rule of two, with `cpu` in f32 as its naive side.

#include <gtest/gtest.h>

#include "kernels/device_queue.h"
#include "tests/parallel/ring_runs.h"
#include "tests/support/ranks.h"
#include "tests/support/simt/simt.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

Shard alone_on_gpu(const Case& c) {
  const kernels::UseDevice use(0);
  return run_alone(c);
}

/// What is run on a GPU; the emulator, which takes seconds for what a GPU does in microseconds, has one problem with all in it, and a
/// short one.
bool on_a_gpu() { return simt::size_factor() > 1; }

Case gpu_case(bool z, std::int64_t npos, DType type) {
  const std::int64_t tokens = on_a_gpu() ? 200 * simt::size_factor() : 12, tile = on_a_gpu() ? 64 : 4;
  return {tokens, tile, type, Device::cuda, make_problems(tokens, z, npos)};
}

/// Every schedule. Gradients over ranks are sums in other orders.
void compare_rank_counts(const Case& c, double tolerance) {
  const simt::Session session;
  const Shard alone = alone_on_gpu(c);
  const auto body = [&](parallel::Communicator& comm) {
    const kernels::UseDevice use(0);
    for (const auto& [schedule, head_ranks] : schedules_of(comm.size(), c.cope()))
      compare_with_one_rank(comm, c, alone, schedule, head_ranks, tolerance);
  };
  if (on_a_gpu()) for_rank_counts({2, 4, 8}, body);
  else for_rank_counts({c.type == DType::f32 ? 4 : 2}, body);
}

TEST(SimtRingAttention, EveryScheduleF32) {
  compare_rank_counts(gpu_case(true, 9, DType::f32), 1e-5);
  if (!on_a_gpu()) return;
  compare_rank_counts(gpu_case(false, 0, DType::f32), 1e-5);
  compare_rank_counts(gpu_case(true, 0, DType::f32), 1e-5);
  compare_rank_counts(gpu_case(false, 4000, DType::f32), 1e-5);  // never saturated
}

/// Where a schedule meets the keys in another order, the weights of both walks are rounded at other scales: once each.
TEST(SimtRingAttention, EveryScheduleBf16) {
  compare_rank_counts(gpu_case(false, 9, DType::bf16), 2 * bf16_floor);
  if (on_a_gpu()) compare_rank_counts(gpu_case(true, 0, DType::bf16), 2 * bf16_floor);
}

/// One rank on the GPU errs at most twice as much as one on the cpu, both against f64. (Without gates: where a position is an integer
/// their gradients jump, and f32 and f64 may fall on different sides. attention_cuda_test.cpp judges them.)
TEST(SimtRingAttention, OneRankIsRight) {
  const simt::Session session;
  const Case on_gpu = gpu_case(true, 0, DType::f32);
  Case on_cpu = on_gpu, exact = on_gpu;
  on_cpu.device = Device::cpu;
  exact.device = Device::ref;
  exact.type = DType::f64;
  const Shard gpu = alone_on_gpu(on_gpu), cpu = run_alone(on_cpu), right = run_alone(exact);
  for (const auto& [x, name] : {std::pair{&Shard::o, "o"},
                                {&Shard::lse, "lse"},
                                {&Shard::dq, "dq"},
                                {&Shard::dk, "dk"},
                                {&Shard::dv, "dv"},
                                {&Shard::dz, "dz"}})
    EXPECT_LE(relative_error(gpu.*x, right.*x), f32_bound(cpu.*x, right.*x)) << name;
}

TEST(SimtRingAttention, RepeatedRunsHaveTheSameBits) {
  const simt::Session session;
  const Case c = gpu_case(true, 9, DType::f32);
  for_rank_counts({3}, [&](parallel::Communicator& comm) {
    const kernels::UseDevice use(0);
    const parallel::Ring ring = make_ring(comm, c.tokens, c.tile, "auto");
    const Shard first = run_shard(ring, c);
    const int repeats = on_a_gpu() ? 20 : 1;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const Shard again = run_shard(ring, c);
      expect_same_gradients(first, again);
      EXPECT_TRUE(same_bits(first.o, again.o));
    }
  });
}

}  // namespace
}  // namespace capstan::tests
