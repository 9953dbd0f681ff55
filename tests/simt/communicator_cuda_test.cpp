// Messages in GPU memory, on emulated GPUs: the bodies that the host's backends go through, on one GPU and over NCCL, in every
// order of the streams; and what only a GPU can get wrong.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "kernels/elementwise.h"
#include "kernels/stream_cuda.h"
#include "parallel/failure.h"
#include "tests/simt/device_array.h"
#include "tests/simt/gpu_ranks.h"
#include "tests/support/communicator_bodies.h"
#include "tests/support/simt/nccl.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::host_values;
using kernels::Tensor;
using parallel::Communicator;
using parallel::Message;
using testing::HasSubstr;

constexpr auto counts = {1, 2, 3, 4, 8};

Tensor numbers(std::int64_t length, float value, Device device = Device::cuda) {
  std::vector<float> values(std::size_t(length), value);
  return on_device(kernels::View(values.data(), DType::f32, Device::cpu, {length}), device);
}

class SimtCommunicator : public testing::TestWithParam<GpuBackend> {
 protected:
  void in_every_order(std::initializer_list<int> rank_counts, const std::function<void(Communicator&)>& body) {
    for (const simt::Order order : all_orders()) {
      const simt::Session session(order);
      for_gpu_rank_counts(GetParam(), rank_counts, body);
      EXPECT_EQ(simt::nccl_communicators(), 0);
    }
  }
  void in_every_order(void (*body)(Communicator&, Device), std::initializer_list<int> rank_counts = counts) {
    in_every_order(rank_counts, [body](Communicator& ranks) { body(ranks, Device::cuda); });
  }
};

TEST_P(SimtCommunicator, KnowsItsPlace) {
  in_every_order(counts, [](Communicator& ranks) {
    EXPECT_EQ(ranks.backend(), name_of(GetParam()));
    EXPECT_EQ(ranks.all_reduce(std::int64_t(1)), ranks.size());
  });
}
TEST_P(SimtCommunicator, ExchangesUnevenAndEmptyMessages) { in_every_order(exchanges_uneven_and_empty_messages); }
TEST_P(SimtCommunicator, MovesMessagesWhileAllRanksCompute) {
  in_every_order(moves_messages_while_all_ranks_compute, {2, 3});
}
TEST_P(SimtCommunicator, KeepsManyTagsApart) { in_every_order(keeps_many_tags_apart); }
TEST_P(SimtCommunicator, SplitsLargeMessages) {
  const std::int64_t before = parallel::message_split();
  parallel::set_message_split(1000);
  in_every_order(splits_large_messages, {1, 2, 3});
  parallel::set_message_split(before);
}
TEST_P(SimtCommunicator, Gathers) { in_every_order(gathers); }
TEST_P(SimtCommunicator, BroadcastsFromEveryRoot) { in_every_order(broadcasts_from_every_root); }
TEST_P(SimtCommunicator, KeepsPartsApart) { in_every_order(keeps_parts_apart); }
TEST_P(SimtCommunicator, GoesRoundWithTwoBuffers) { in_every_order(goes_round_with_two_buffers); }

TEST_P(SimtCommunicator, MixesHostAndDevice) {
  in_every_order({1, 2, 3}, [](Communicator& ranks) {
    const int next = (ranks.rank() + 1) % ranks.size(), before = (ranks.rank() + ranks.size() - 1) % ranks.size();
    const auto mine = float(ranks.rank());
    const Tensor out = numbers(5, mine), in = numbers(5, -1), host_out = numbers(3, mine, Device::cpu),
                 host_in = numbers(3, -1, Device::cpu);
    const std::vector<Message> sends{{out, next, 7}, {host_out, next, 8}},
        receives{{host_in, before, 8}, {in, before, 7}};
    ranks.exchange(sends, receives)->wait();
    EXPECT_EQ(host_values<float>(in), std::vector<float>(5, float(before)));
    EXPECT_EQ(host_values<float>(host_in), std::vector<float>(3, float(before)));
    ranks.barrier();
  });
}

/// What a rank reads of a message before wait().
float read_too_early(Communicator& ranks) {
  const int other = ranks.size() - 1 - ranks.rank();
  const Tensor out = numbers(5, 1), in = numbers(5, 0);
  const auto pending = ranks.exchange(std::vector<Message>{{out, other, 1}}, std::vector<Message>{{in, other, 1}});
  const float early = host_values<float>(in)[0];
  ranks.barrier();  // nobody waits before all have read
  pending->wait();
  EXPECT_EQ(host_values<float>(in)[0], 1);
  return early;
}

/// What a rank receives, if its peer writes over what it sent before wait().
float write_too_early(Communicator& ranks) {
  const int other = ranks.size() - 1 - ranks.rank();
  const Tensor out = numbers(5, 1), in = numbers(5, 0);
  const auto pending = ranks.exchange(std::vector<Message>{{out, other, 1}}, std::vector<Message>{{in, other, 1}});
  kernels::add(out, out);
  EXPECT_EQ(host_values<float>(out)[0], 2);
  ranks.barrier();
  pending->wait();
  return host_values<float>(in)[0];
}

// The tests above have teeth: without wait() the numbers are wrong in an order in which nothing runs that is not waited for.
TEST_P(SimtCommunicator, WithoutWaitNumbersAreWrong) {
  const simt::Session session(simt::Order{});
  std::atomic<int> early = 0, late = 0;
  for (int repeat = 0; repeat < 5; ++repeat)  // the watchdog of NCCL may let a message through in time
    for_gpu_rank_counts(GetParam(), {2}, [&](Communicator& ranks) {
      if (read_too_early(ranks) != 1) ++early;
      if (write_too_early(ranks) != 1) ++late;
    });
  EXPECT_GT(early, 0);
  EXPECT_GT(late, 0);
}

// Against the rules of NCCL: see SimtNccl.NamesADeadlock.
TEST(SimtThreadCommunicator, KeepsTheOrderOfOneTag) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    for_gpu_rank_counts(GpuBackend::threads, counts,
                        [](Communicator& ranks) { keeps_the_order_of_one_tag(ranks, Device::cuda); });
  }
}

/// Becomes true when the calling thread's stream gets there.
void set_when_reached(std::atomic<bool>& flag) {
  const auto set = [](void* given) { *static_cast<std::atomic<bool>*>(given) = true; };
  kernels::check_cuda(cudaLaunchHostFunc(kernels::stream_of_thread(), set, &flag), "cudaLaunchHostFunc");
}

TEST(SimtThreadCommunicator, NobodyWaitsForTheGpu) {
  const simt::Session session(simt::Order{});
  for_gpu_rank_counts(GpuBackend::threads, {2, 4}, [](Communicator& ranks) {
    std::atomic<bool> ran = false;
    const Tensor out = numbers(5, 1), in = numbers(5, 0);
    set_when_reached(ran);
    ranks.barrier();
    const int next = (ranks.rank() + 1) % ranks.size(), before = (ranks.rank() + ranks.size() - 1) % ranks.size();
    ranks.exchange(std::vector<Message>{{out, next, 1}}, std::vector<Message>{{in, before, 1}})->wait();
    EXPECT_FALSE(ran);
    ranks.barrier();
    EXPECT_EQ(host_values<float>(in)[0], 1);
    EXPECT_TRUE(ran);
    ranks.barrier();
  });
}

// The copy waits for the slower of two ranks, and the work that the faster one queues beside it does not.
TEST(SimtThreadCommunicator, WorkDoesNotWaitForTheExchange) {
  const simt::Session session(simt::Order{});
  std::atomic<bool> slow_work_ran = false;
  for_gpu_rank_counts(GpuBackend::threads, {2}, [&](Communicator& ranks) {
    const Tensor data = numbers(5, float(ranks.rank())), other = numbers(5, 3);
    const Message message{data, 1 - ranks.rank(), 1};
    std::unique_ptr<parallel::Pending> pending;
    if (ranks.rank() == 0) {
      set_when_reached(slow_work_ran);
      pending = ranks.exchange({&message, 1}, {});
    }
    ranks.barrier();
    if (ranks.rank() == 1) {  // comes second, and queues the copy
      pending = ranks.exchange({}, {&message, 1});
      kernels::add(other, other);
      EXPECT_EQ(host_values<float>(other)[0], 6);
      EXPECT_FALSE(slow_work_ran);
    }
    ranks.barrier();
    pending->wait();
    EXPECT_EQ(host_values<float>(data)[0], 0);
    EXPECT_TRUE(slow_work_ran);
  });
}

TEST(SimtThreadCommunicator, BothSidesMustLieOnOneDevice) {
  const simt::Session session;
  std::string text;
  try {
    parallel::run_on_threads(2, [](Communicator& ranks) {
      const kernels::UseDevice gpu(0);
      const Tensor data = numbers(3, 1, ranks.rank() == 0 ? Device::cuda : Device::cpu);
      const Message message{data, 1 - ranks.rank(), 9};
      if (ranks.rank() == 0) ranks.exchange({&message, 1}, {})->wait();
      else ranks.exchange({}, {&message, 1})->wait();
    });
  } catch (const Error& error) { text = error.what(); }
  EXPECT_EQ(text,
            "rank 0: rank 0 sent 3 f32 (tag 9) on cuda where rank 1 expected them on cpu: both sides must lie there");
}

// A rank fails with an exchange under way. Its buffers are written by nobody once its Pending is gone.
TEST(SimtThreadCommunicator, LetsGoOfBuffersAfterAFailure) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    std::string text;
    try {
      parallel::run_on_threads(2, [](Communicator& ranks) {
        const kernels::UseDevice gpu(0);
        const Tensor data = numbers(1000, float(ranks.rank()));
        const Message message{data, 1 - ranks.rank(), 2};
        if (ranks.rank() == 1) {
          ranks.exchange({&message, 1}, {})->wait();
          ranks.barrier();
          return ranks.barrier();  // its end would wait for the copy
        }
        auto pending = ranks.exchange({}, {&message, 1});
        ranks.barrier();  // the message is queued
        pending.reset();
        data.view().fill_zero();
        for (int look = 0; look < 2; ++look) {
          EXPECT_EQ(host_values<float>(data), std::vector<float>(1000, 0));
          wait_for_device();  // whatever is still queued somewhere
        }
        ranks.barrier();
        fail(ExitCode::stopped, "as planned");
      });
    } catch (const Error& error) { text = error.what(); }
    EXPECT_EQ(text, "rank 0: as planned");
  }
}

TEST(SimtSelfCommunicator, CopiesBesideTheRanksWork) {
  for (const simt::Order order : all_orders()) {
    const simt::Session session(order);
    const kernels::UseDevice gpu(0);
    const auto self = parallel::make_self_communicator();
    goes_round_with_two_buffers(*self, Device::cuda);
    keeps_many_tags_apart(*self, Device::cuda);
    keeps_the_order_of_one_tag(*self, Device::cuda);
    gathers(*self, Device::cuda);
  }
}

INSTANTIATE_TEST_SUITE_P(On, SimtCommunicator, testing::Values(GpuBackend::threads, GpuBackend::nccl),
                         [](const auto& given) { return name_of(given.param); });

}  // namespace
}  // namespace capstan::tests
