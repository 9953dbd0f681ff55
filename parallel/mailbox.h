#pragma once
// Messages inside one process (comm_self, comm_threads): a send and a receive wait in the destination's mailbox until
// they meet; whoever comes second copies straight from the one buffer to the other. Nothing here locks: the backends
// do.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/failure.h"

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
  std::string error;  ///< set while copying, read when done

  int owner() const { return is_send ? source : destination; }
  int peer() const { return is_send ? destination : source; }
};

/// What still waits for one destination. For one (channel, source, tag) never a send and a receive at a time, each in
/// the order in which they were posted: this keeps the order of messages with one tag.
class Mailbox {
 public:
  /// The partner, taken out; or nullptr, and the post waits here.
  Post* meet(Post& post) {
    std::vector<Post*>& others = post.is_send ? receives_ : sends_;
    const auto found = std::find_if(others.begin(), others.end(), [&](const Post* other) {
      return other->channel == post.channel && other->source == post.source && other->tag == post.tag;
    });
    if (found == others.end()) {
      (post.is_send ? sends_ : receives_).push_back(&post);
      return nullptr;
    }
    Post* partner = *found;
    others.erase(found);
    return partner;
  }

  void withdraw(const Post& post) { std::erase(post.is_send ? sends_ : receives_, &post); }

 private:
  std::vector<Post*> sends_, receives_;
};

/// Copies, or gives both sides the same error.
inline void deliver(Post& send, Post& receive) {
  if (send.data.type() == receive.data.type() && send.data.elements() == receive.data.elements()) {
    receive.data.copy_from(send.data);
    return;
  }
  send.error = receive.error =
      fmt::format("rank {} sent {} {} ({}) where rank {} expected {} {}", send.source, send.data.elements(),
                  kernels::name_of(send.data.type()), text_of_tag(send.tag), receive.destination,
                  receive.data.elements(), kernels::name_of(receive.data.type()));
}

/// The posts of an exchange. `world_rank(r)` turns a rank of the communicator into the one the mailboxes know.
template <class WorldRank>
std::vector<Post> posts_of(std::span<const Message> sends, std::span<const Message> receives, std::int64_t channel,
                           int me, const WorldRank& world_rank) {
  std::vector<Post> posts;
  posts.reserve(sends.size() + receives.size());
  for (const Message& receive : receives)
    posts.push_back({.is_send = false,
                     .channel = channel,
                     .source = world_rank(receive.peer),
                     .destination = me,
                     .tag = receive.tag,
                     .data = receive.data,
                     .error = {}});
  for (const Message& send : sends)
    posts.push_back({.is_send = true,
                     .channel = channel,
                     .source = me,
                     .destination = world_rank(send.peer),
                     .tag = send.tag,
                     .data = send.data,
                     .error = {}});
  return posts;
}

}  // namespace capstan::parallel
