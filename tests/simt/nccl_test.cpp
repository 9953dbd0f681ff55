// The communicator over NCCL when something is wrong, and the rules that the emulated NCCL watches over.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "parallel/failure.h"
#include "tests/simt/device_array.h"
#include "tests/simt/gpu_ranks.h"
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
using Clock = std::chrono::steady_clock;

Tensor zeros(std::int64_t length) { return Tensor({length}, DType::u8, Device::cuda); }

/// What ends the ranks that run body over NCCL.
std::string error_of(int ranks, const std::function<void(Communicator&)>& body) {
  const simt::Session session;
  const EightGpus gpus;
  try {
    parallel::run_on_threads(ranks, [&](Communicator& host) { on_gpu(GpuBackend::nccl, host, body); });
  } catch (const Error& error) { return error.what(); }
  return "";
}

void exchange_and_read(Communicator& ranks, const std::vector<Message>& sends, const std::vector<Message>& receives) {
  ranks.exchange(sends, receives)->wait();
  for (const Message& receive : receives) host_values<std::uint8_t>(receive.data);
}

TEST(SimtNccl, NamesAMessageOfAnotherSize) {
  const std::string text = error_of(2, [](Communicator& ranks) {
    const Tensor data = zeros(3 + ranks.rank());
    const std::vector<Message> message{{data, 1 - ranks.rank(), 1}};
    if (ranks.rank() == 0) exchange_and_read(ranks, message, {});
    else exchange_and_read(ranks, {}, message);
    ranks.barrier();
  });
  EXPECT_THAT(text, HasSubstr("message 0 from rank 0 to rank 1 is sent as 3 of type 1 and received as 4 of type 1"));
}

// Two exchanges at one end, which the other end takes in the opposite order: sizes differ, and would otherwise be swapped.
TEST(SimtNccl, NamesMessagesInAnotherOrder) {
  const std::string text = error_of(2, [](Communicator& ranks) {
    const Tensor a = zeros(10), b = zeros(20);
    const std::vector<Message> first{{a, 1 - ranks.rank(), 1}}, second{{b, 1 - ranks.rank(), 2}};
    if (ranks.rank() == 0) {
      ranks.exchange(first, {})->wait();
      ranks.exchange(second, {})->wait();
    } else {
      ranks.exchange({}, second)->wait();
      ranks.exchange({}, first)->wait();
    }
    ranks.barrier();
    host_values<std::uint8_t>(a);
  });
  EXPECT_THAT(text, HasSubstr("from rank 0 to rank 1 is sent as 10 of type 1 and received as 20 of type 1"));
}

// Each sends in one exchange and receives in the next: the first ones wait for the second ones, which come after them.
TEST(SimtNccl, NamesADeadlock) {
  for (const int count : {1, 2, 3}) {
    const std::string text = error_of(count, [](Communicator& ranks) {
      const Tensor out = zeros(10), in = zeros(10);
      const std::vector<Message> send{{out, (ranks.rank() + 1) % ranks.size(), 1}},
          receive{{in, (ranks.rank() + ranks.size() - 1) % ranks.size(), 1}};
      ranks.exchange(send, {})->wait();
      ranks.exchange({}, receive)->wait();
      ranks.barrier();
      host_values<std::uint8_t>(in);
    });
    EXPECT_THAT(text, HasSubstr("deadlock, each waits for the next: group 0 of rank"));
    for (int rank = 0; rank < count; ++rank)
      EXPECT_THAT(text, HasSubstr("group 0 of rank " + std::to_string(rank) + " of " + std::to_string(count)));
  }
}

TEST(SimtNccl, NamesAMissingOtherSide) {
  simt::set_patience(0.3);
  const std::string text = error_of(2, [](Communicator& ranks) {
    const Tensor in = zeros(10);
    if (ranks.rank() == 0) exchange_and_read(ranks, {}, {{in, 1, 1}});
    ranks.barrier();
  });
  simt::set_patience(60);
  EXPECT_THAT(text, HasSubstr("nobody has queued the other side: group 0 of rank 0 of 2 (from 1: 10 of type 1)"));
}

TEST(SimtNccl, RefusesTwoRanksOnOneGpu) {
  const simt::Session session;
  std::string text;
  try {
    parallel::run_on_threads(2, [](Communicator& host) {
      const kernels::UseDevice gpu(0);
      parallel::make_nccl_communicator(host)->barrier();
    });
  } catch (const Error& error) { text = error.what(); }
  EXPECT_THAT(text, HasSubstr("NCCL: ncclCommInitRankConfig: invalid usage: Duplicate GPU detected"));
  EXPECT_EQ(simt::nccl_communicators(), 0);
}

// A rank fails while its peer never comes: it lets go of its buffers, and its error is the one that is told.
TEST(SimtNccl, AnExchangeThatIsLeftIsGivenUp) {
  const auto begin = Clock::now();
  const std::string text = error_of(2, [](Communicator& ranks) {
    if (ranks.rank() == 1) return ranks.barrier();
    const Tensor in = zeros(10);
    const Message receive{in, 1, 1};
    const auto pending = ranks.exchange({}, {&receive, 1});
    fail(ExitCode::bad_data, "a file is cut short");
  });
  EXPECT_EQ(text, "rank 0: a file is cut short");
  EXPECT_EQ(simt::nccl_communicators(), 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

/// In a process of its own: the ranks meet, and then something goes wrong while all wait.
void run_until_ended(const std::function<void(Communicator&)>& body) {
  const EightGpus gpus;
  parallel::run_on_threads(2, [&](Communicator& host) {
    on_gpu(GpuBackend::nccl, host, [&](Communicator& ranks) {
      ranks.barrier();
      body(ranks);
      std::this_thread::sleep_for(std::chrono::seconds(30));
    });
  });
}

TEST(SimtNcclDeathTest, AnAsynchronousErrorEndsAllRanks) {
  const auto begin = Clock::now();
  EXPECT_EXIT(run_until_ended([](Communicator& ranks) {
                if (ranks.rank() == 1) simt::fail_nccl(1, "link 3 is down");
              }),
              testing::ExitedWithCode(74),
              "rank 1 of 2 \\(.+\\): NCCL: an exchange under way: remote process exited or there was a network error: "
              "link 3 is down \\(rank 1, GPU 1\\)");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(SimtNcclDeathTest, AnExchangeThatNobodyJoinsEndsAllRanks) {
  EXPECT_EXIT(run_until_ended([](Communicator& ranks) {
                parallel::set_deadline(0.5);
                const Tensor in = zeros(10);
                const Message receive{in, 1, 1};
                if (ranks.rank() == 0) ranks.exchange({}, {&receive, 1})->wait();
                std::this_thread::sleep_for(std::chrono::seconds(30));
              }),
              testing::ExitedWithCode(74),
              "rank 0 of 2 \\(.+\\): NCCL: gave up after 0.5 s: an exchange of 1 messages, 10 bytes is not done "
              "\\(rank 0, GPU 0\\); another rank is stuck, lost, or far behind");
}

}  // namespace
}  // namespace capstan::tests
