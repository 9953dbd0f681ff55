#include "tests/support/communicator_bodies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "kernels/elementwise.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::DTypeOf;
using kernels::Tensor;
using kernels::View;
using parallel::Communicator;
using parallel::Message;

namespace {

template <class T> Tensor tensor_at(Device device, std::vector<T> values) {
  return on_device(View(values.data(), DTypeOf<T>::value, Device::ref, {std::int64_t(values.size())}), device);
}

template <class T> Tensor filled(Device device, std::size_t length, T value) {
  return tensor_at(device, std::vector<T>(length, value));
}

void send_and_receive(Communicator& ranks, const std::vector<Message>& sends, const std::vector<Message>& receives) {
  const auto pending = ranks.exchange(sends, receives);
  pending->in_background();
  pending->wait();
}

int next_of(const Communicator& ranks) { return (ranks.rank() + 1) % ranks.size(); }
int before(const Communicator& ranks) { return (ranks.rank() + ranks.size() - 1) % ranks.size(); }

}  // namespace

void exchanges_uneven_and_empty_messages(Communicator& ranks, Device device) {
  const int me = ranks.rank(), size = ranks.size();
  const Tensor mine = filled<std::int64_t>(device, std::size_t(3 * me), me);
  std::vector<Tensor> received;
  for (int peer = 0; peer < size; ++peer) received.push_back(filled<std::int64_t>(device, std::size_t(3 * peer), -1));
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < size; ++peer) {
    sends.push_back({mine, peer, 0});
    receives.push_back({received[std::size_t(peer)], peer, 0});
  }
  send_and_receive(ranks, sends, receives);
  for (int peer = 0; peer < size; ++peer)
    EXPECT_EQ(kernels::host_values<std::int64_t>(received[std::size_t(peer)]),
              std::vector<std::int64_t>(std::size_t(3 * peer), peer));
}

void moves_messages_while_all_ranks_compute(Communicator& ranks, Device device) {
  constexpr double seconds = 60;
  const std::size_t length = device == Device::cuda ? 1 << 14 : 1 << 20;  // an emulated GPU is slow
  const Tensor out = filled<std::int64_t>(device, length, ranks.rank()), in = filled<std::int64_t>(device, length, -1);
  ranks.barrier();
  const auto pending =
      ranks.exchange(std::vector<Message>{{out, next_of(ranks), 1}}, std::vector<Message>{{in, before(ranks), 1}});
  pending->in_background();
  const auto begin = std::chrono::steady_clock::now();
  while (!pending->done() && std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds)) {}
  EXPECT_TRUE(pending->done()) << "nothing moved within " << seconds << " s";
  pending->wait();
  EXPECT_EQ(kernels::host_values<std::int64_t>(in), std::vector<std::int64_t>(length, before(ranks)));
}

void keeps_many_tags_apart(Communicator& ranks, Device device) {
  constexpr int messages = 50;
  std::vector<std::int32_t> numbers(messages);
  for (int i = 0; i < messages; ++i) numbers[std::size_t(i)] = 1000 * ranks.rank() + i;
  const Tensor out = tensor_at(device, numbers), in({ranks.size(), messages}, DType::i32, device);
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < ranks.size(); ++peer) {
    for (int i = 0; i < messages; ++i) {
      sends.push_back({out.view()[i], peer, 32767 - i});
      const int last = messages - 1 - i;  // received in the opposite order
      receives.push_back({in.view()[peer][last], peer, 32767 - last});
    }
  }
  send_and_receive(ranks, sends, receives);
  const std::vector<std::int32_t> got = kernels::host_values<std::int32_t>(in);
  for (int peer = 0; peer < ranks.size(); ++peer)
    for (int i = 0; i < messages; ++i) EXPECT_EQ(got[std::size_t(messages * peer + i)], 1000 * peer + i);
}

void keeps_the_order_of_one_tag(Communicator& ranks, Device device) {
  constexpr int messages = 40;
  std::vector<std::int32_t> numbers(messages);
  for (int i = 0; i < messages; ++i) numbers[std::size_t(i)] = i;
  const Tensor out = tensor_at(device, numbers), in({messages}, DType::i32, device);
  std::vector<std::unique_ptr<parallel::Pending>> pending;
  for (int i = 0; i < messages; ++i) {
    const Message send{out.view()[i], next_of(ranks), 5}, receive{in.view()[i], before(ranks), 5};
    pending.push_back(ranks.exchange({&send, 1}, {}));
    pending.push_back(ranks.exchange({}, {&receive, 1}));
  }
  for (auto each = pending.rbegin(); each != pending.rend(); ++each) (*each)->wait();
  EXPECT_EQ(kernels::host_values<std::int32_t>(in), numbers);
}

void splits_large_messages(Communicator& ranks, Device device) {
  for (const std::size_t length : {125, 126, 12501, 100000}) {  // whole pieces, and a short last one
    std::vector<double> numbers(length), expected(length);
    for (std::size_t i = 0; i < length; ++i)
      numbers[i] = double(i) + ranks.rank(), expected[i] = double(i) + before(ranks);
    const Tensor out = tensor_at(device, numbers), in({std::int64_t(length)}, DType::f64, device);
    send_and_receive(ranks, {{out, next_of(ranks), 1}}, {{in, before(ranks), 1}});
    EXPECT_EQ(kernels::host_values<double>(in), expected);
  }
}

void gathers(Communicator& ranks, Device device) {
  for (const std::int64_t length : {0, 1, 7, 20001}) {
    const Tensor mine = filled<float>(device, std::size_t(length), float(ranks.rank())),
                 all({ranks.size(), length}, DType::f32, device);
    ranks.all_gather(mine, all);
    for (int rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(kernels::host_values<float>(all.view()[rank]), std::vector<float>(std::size_t(length), float(rank)));
  }
}

void broadcasts_from_every_root(Communicator& ranks, Device device) {
  for (int root = 0; root < ranks.size(); ++root)
    for (const std::size_t length : {0, 1, 30000}) {
      const Tensor data = filled<std::int64_t>(device, length, ranks.rank() == root ? 7 + root : -1);
      ranks.broadcast(data, root);
      EXPECT_EQ(kernels::host_values<std::int64_t>(data), std::vector<std::int64_t>(length, 7 + root));
    }
}

void keeps_parts_apart(Communicator& ranks, Device device) {
  const int me = ranks.rank();
  const auto half = ranks.split(me % 2, -me);  // even and odd ranks, the highest first
  const Tensor out = filled<std::int64_t>(device, 1, me), in = filled<std::int64_t>(device, 1, -1),
               all({half->size()}, DType::i64, device);
  const auto pending =
      ranks.exchange(std::vector<Message>{{out, next_of(ranks), 3}}, std::vector<Message>{{in, before(ranks), 3}});
  half->all_gather(out, all);
  std::vector<std::int64_t> members;
  for (int rank = 0; rank < ranks.size(); ++rank)
    if (rank % 2 == me % 2) members.insert(members.begin(), rank);
  EXPECT_EQ(kernels::host_values<std::int64_t>(all), members);
  pending->wait();
  EXPECT_EQ(kernels::host_values<std::int64_t>(in), std::vector<std::int64_t>{before(ranks)});
  const auto alone = half->split(half->rank(), 0);  // split again: everybody alone
  const Tensor same = filled<std::int64_t>(device, 1, -1);
  alone->all_gather(out, same);
  EXPECT_EQ(kernels::host_values<std::int64_t>(same), std::vector<std::int64_t>{me});
}

void goes_round_with_two_buffers(Communicator& ranks, Device device) {
  constexpr std::size_t length = 100;
  const int rounds = 2 * ranks.size() + 1;
  const Tensor one = filled(device, length, 1.0f), sum = filled(device, length, 0.0f);
  Tensor mine = filled(device, length, float(100 * ranks.rank())), next = filled(device, length, -1.0f);
  float expected = 0;
  for (int round = 0; round < rounds; ++round) {
    kernels::add(mine, one);
    const auto pending =
        ranks.exchange(std::vector<Message>{{mine, next_of(ranks), 1}}, std::vector<Message>{{next, before(ranks), 1}});
    pending->in_background();
    kernels::add(sum, mine);
    pending->wait();
    std::swap(mine, next);
    const int origin = ((ranks.rank() - round) % ranks.size() + ranks.size()) % ranks.size();
    expected += float(100 * origin + round + 1);
  }
  EXPECT_EQ(kernels::host_values<float>(sum), std::vector<float>(length, expected));
}

}  // namespace capstan::tests
