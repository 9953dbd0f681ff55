#pragma once
// Messages inside one process (comm_self, comm_threads): a send and a receive wait in the destination's mailbox until
// they meet; whoever comes second copies straight from the one buffer to the other. Nothing here locks: the backends
// do.
//
// Between buffers on the GPU the second one only queues the copy, on a queue beside its work, and no thread waits for the GPU:
//   sender's queue     … write buffer | mark ready    | its work                       | wait() comes after `copied` | may write it again
//   copying queue                     after both `ready` | copy | mark copied
//   receiver's queue   … done with it | mark ready    | its work                       | wait() comes after `copied` | reads what came

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device_queue.h"
#include "parallel/communicator.h"

namespace capstan::parallel {

/// One side of a message. It lives in its Pending and stays there until it is done or withdrawn.
struct Post {
  enum class State : std::uint8_t { waiting, copying, done };
  bool is_send;
  std::int64_t channel;  ///< which communicator
  int source, destination;
  int tag;
  View data;
  State state = State::waiting;
  std::string error;                                       ///< set while copying, read when done
  std::shared_ptr<const kernels::DeviceMark> ready = {};   ///< on the GPU: what its owner queued before the exchange
  std::shared_ptr<const kernels::DeviceMark> copied = {};  ///< the same: the end of the copy, set while copying

  int owner() const { return is_send ? source : destination; }
  int peer() const { return is_send ? destination : source; }
};

/// What still waits for one destination. For one (channel, source, tag) never a send and a receive at a time, each in
/// the order in which they were posted: this keeps the order of messages with one tag.
class Mailbox {
 public:
  /// The partner, taken out; or nullptr, and the post waits here.
  Post* meet(Post& post);
  void withdraw(const Post& post);

 private:
  std::vector<Post*> sends_, receives_;
};

/// Where a rank queues the copies of its communicator: made when the first one is, by a thread that works with the GPU.
class CopyQueue {
 public:
  const kernels::DeviceQueue& get();

 private:
  std::optional<kernels::DeviceQueue> queue_;
};

/// Copies, or queues the copy, or gives both sides the same error.
void deliver(Post& send, Post& receive, CopyQueue& queue);

/// What the calling thread queues from now on comes after the copies of its posts.
void come_after(const std::vector<Post>& posts);
/// Whether the copies are done on the GPU, too, or have failed there.
bool have_arrived(const std::vector<Post>& posts);
/// The buffers are no longer touched when this returns.
void wait_for_copies(const std::vector<Post>& posts) noexcept;

/// The posts of an exchange. `world_rank(r)` turns a rank of the communicator into the one the mailboxes know.
template <class WorldRank>
std::vector<Post> posts_of(std::span<const Message> sends, std::span<const Message> receives, std::int64_t channel,
                           int me, const WorldRank& world_rank) {
  std::vector<Post> posts;
  posts.reserve(sends.size() + receives.size());
  std::shared_ptr<kernels::DeviceMark> ready;
  const auto add = [&](const Message& message, bool is_send) {
    const int peer = world_rank(message.peer);
    const bool on_gpu = message.data.device() == kernels::Device::cuda;
    if (on_gpu && !ready) {
      ready = std::make_shared<kernels::DeviceMark>();
      ready->record();
    }
    posts.push_back({.is_send = is_send,
                     .channel = channel,
                     .source = is_send ? me : peer,
                     .destination = is_send ? peer : me,
                     .tag = message.tag,
                     .data = message.data,
                     .error = {},
                     .ready = on_gpu ? ready : nullptr});
  };
  for (const Message& receive : receives) add(receive, false);
  for (const Message& send : sends) add(send, true);
  return posts;
}

}  // namespace capstan::parallel
