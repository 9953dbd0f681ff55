// One rank. Messages to oneself are copied when their second side is posted; nobody else could ever answer, so a
// message without its other side is an error at wait(), not a wait.

#include <algorithm>

#include "parallel/communicator.h"
#include "parallel/failure.h"
#include "parallel/mailbox.h"

namespace capstan::parallel {

namespace {

class SelfPending final : public Pending {
 public:
  SelfPending(std::shared_ptr<Mailbox> box, CopyQueue& queue, std::vector<Post> posts)
      : box_(std::move(box)), posts_(std::move(posts)) {
    for (Post& post : posts_) meet(post, queue);
  }
  SelfPending(const SelfPending&) = delete;
  SelfPending& operator=(const SelfPending&) = delete;
  ~SelfPending() override {
    for (const Post& post : posts_)
      if (post.state == Post::State::waiting) box_->withdraw(post);
    if (!waited_) wait_for_copies(posts_);
  }

  void in_background() override {}
  bool done() override {
    return std::all_of(posts_.begin(), posts_.end(),
                       [](const Post& each) { return each.state == Post::State::done; }) &&
           have_arrived(posts_);
  }

  void wait() override {
    CAPSTAN_CHECK(!waited_, "wait() was called twice on one exchange");
    for (const Post& post : posts_) {
      CAPSTAN_CHECK(post.state == Post::State::done, "a message to oneself ({}, {} bytes) has no {}",
                    text_of_tag(post.tag), post.data.bytes(), post.is_send ? "receive" : "send");
      if (!post.error.empty()) fail(ExitCode::internal, "{}", post.error);
    }
    come_after(posts_);
    waited_ = true;
  }

 private:
  void meet(Post& post, CopyQueue& queue) {
    Post* partner = box_->meet(post);
    if (!partner) return;
    deliver(post.is_send ? post : *partner, post.is_send ? *partner : post, queue);
    post.state = partner->state = Post::State::done;
  }

  std::shared_ptr<Mailbox> box_;  // shared, so that a Pending may outlive its communicator
  std::vector<Post> posts_;       // never resized: the mailbox points at them
  bool waited_ = false;
};

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string backend() const override { return "self"; }

  std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    check_messages(sends, receives);
    return std::make_unique<SelfPending>(box_, queue_, posts_of(sends, receives, 0, 0, [](int peer) { return peer; }));
  }

  std::unique_ptr<Communicator> split(int color, int) override {
    CAPSTAN_CHECK(color >= 0, "split with color {}", color);
    return make_self_communicator();
  }

  std::unique_ptr<Communicator> split_by_host() override { return make_self_communicator(); }

  [[noreturn]] void abort(ExitCode code, const std::string& reason) override { end_process(code, 0, 1, reason); }

 private:
  std::shared_ptr<Mailbox> box_ = std::make_shared<Mailbox>();
  CopyQueue queue_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace capstan::parallel
