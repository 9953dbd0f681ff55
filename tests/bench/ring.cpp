// What a ring costs beside one rank: CPU time of all ranks together, user and system, of one layer's attention forward and
// backward (rows C11 and C12 of docs/performance.md), and how evenly schedules share the work (C13). One JSON object.
//
//   mpirun -n RANKS bench_ring TOKENS_PER_RANK [THREADS_ALONE]
//
// The ring has one thread per rank; afterwards rank 0 does the same sequence alone, with THREADS_ALONE threads (as many as there
// are cores, so that both sides keep the same cores busy), while the others sleep. Seven times in turn; the ratio is the
// median of the seven, since what else the machine does changes from minute to minute.

#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/flush_denormals.h"
#include "kernels/threads.h"
#include "parallel/ring_attention.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;
using parallel::Communicator;
using parallel::Ring;

constexpr std::int64_t heads = 8, depth = 64, tile = 64;

double cpu_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

/// This rank's shard of a random sequence.
struct Shard {
  Tensor q, k, v, d_o, index, document, dq, dk, dv;

  Shard(const std::vector<std::int64_t>& own, std::uint64_t seed) {
    const std::int64_t n = std::ssize(own);
    for (Tensor* x : {&q, &k, &v, &d_o}) *x = random_tensor({1, n, heads, depth}, DType::f32, Device::cpu, ++seed);
    for (Tensor* x : {&dq, &dk, &dv}) *x = Tensor({1, n, heads, depth}, DType::f32, Device::cpu);
    index = Tensor({1, n}, DType::i64, Device::cpu);
    document = Tensor({1, n}, DType::i64, Device::cpu);
    std::copy(own.begin(), own.end(), index.as<std::int64_t>());
  }
  parallel::RingInputs inputs() const { return {q, k, v, {}, {index, index, document}, {}}; }
};

/// CPU seconds of this rank for forward and backward.
double run(const Ring& ring, const Shard& shard) {
  kernels::AttentionSettings settings;
  settings.tile = tile;
  ring.comm.barrier();
  const double begin = cpu_seconds();
  const parallel::RingSaved saved = ring_attention_forward(ring, shard.inputs(), settings, nullptr);
  ring_attention_backward(ring, {shard.dq, shard.dk, shard.dv, {}, {}, {}}, shard.inputs(), saved, shard.d_o, settings);
  return cpu_seconds() - begin;
}

Ring make_ring(Communicator& comm, const std::string& schedule, std::int64_t tokens) {
  parallel::RingPlan plan = parallel::plan_ring({schedule, comm.size(), 0, int(heads), tokens, tile});
  return {comm, std::move(plan.layout), std::move(plan.schedule)};
}

/// Largest share of a rank over the mean one.
double imbalance(Communicator& world, double mine) {
  return world.all_reduce(mine, parallel::Reduce::max) * world.size() / world.all_reduce(mine);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(Communicator& world, std::int64_t tokens_per_rank, int threads_alone) {
  const std::int64_t tokens = tokens_per_rank * world.size();
  const Ring pull = make_ring(world, "ordered_pull", tokens), zigzag = make_ring(world, "zigzag", tokens);
  const Shard shard(pull.layout.local_index(world.rank()), 1), zigzag_shard(zigzag.layout.local_index(world.rank()), 1);
  const auto self = parallel::make_self_communicator();
  const Ring alone = make_ring(*self, "contiguous", tokens);
  const Shard whole(world.rank() == 0 ? alone.layout.local_index(0) : std::vector<std::int64_t>(), 1);

  constexpr int repeats = 7;
  std::vector<double> together, single, ratio;
  double pull_imbalance = 1e30, zigzag_imbalance = 1e30;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double mine = run(pull, shard);
    together.push_back(world.all_reduce(mine));
    pull_imbalance = std::min(pull_imbalance, imbalance(world, mine));
    zigzag_imbalance = std::min(zigzag_imbalance, imbalance(world, run(zigzag, zigzag_shard)));
    kernels::set_threads(world.rank() == 0 ? threads_alone : 1);
    if (world.rank() == 0) {
      single.push_back(run(alone, whole));
      ratio.push_back(together.back() / single.back());
    }
    kernels::set_threads(1);
    world.barrier();
  }
  if (world.rank() == 0)
    fmt::print(
        "{{\"ranks\": {}, \"tokens_per_rank\": {}, \"threads_alone\": {}, \"ring_cpu_s\": {:.4f}, \"alone_cpu_s\": "
        "{:.4f}, \"ring_over_alone\": {:.4f}, "
        "\"ordered_pull_max_over_mean\": {:.4f}, \"zigzag_max_over_mean\": {:.4f}}}\n",
        world.size(), tokens_per_rank, threads_alone, median(together), median(single), median(ratio), pull_imbalance,
        zigzag_imbalance);
}

}  // namespace
}  // namespace capstan::tests

int main(int count, char** words) {
  using namespace capstan;
  kernels::flush_denormals();
  const std::int64_t tokens = count > 1 ? std::atoll(words[1]) : 1024;
  const int threads = count > 2 ? std::atoi(words[2]) : 1;
  {
    std::unique_ptr<parallel::Communicator> world = parallel::make_mpi_communicator();
    if (!world) world = parallel::make_self_communicator();
    tests::measure(*world, tokens, threads);
  }
  parallel::finalize_mpi();
}
