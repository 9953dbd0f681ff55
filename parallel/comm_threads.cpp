// N ranks as threads of one process, on the CPU or on one GPU. One lock guards all mailboxes and is never held during a copy;
// each rank sleeps on its own condition variable and is woken by the peer that completed one of its messages, or by the failure
// of any rank. Copies on the GPU are queued (mailbox.h): a rank waits until its peers have come, not until the GPU has.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/flush_denormals.h"
#include "parallel/communicator.h"
#include "parallel/failure.h"
#include "parallel/mailbox.h"

namespace capstan::parallel {

namespace {

/// What the rank threads of one run_on_threads share. Ranks are world ranks here.
class Run {
 public:
  explicit Run(int ranks) : ranks_(std::size_t(ranks)) {}

  int size() const { return int(ranks_.size()); }

  /// A number that no other communicator of this run has.
  std::int64_t new_channel() {
    const std::lock_guard lock(mutex_);
    return ++channels_;
  }

  /// Meets the other side or leaves the post in the mailbox. The thread that comes second copies, on behalf of both.
  void post(Post& post, CopyQueue& queue) {
    std::unique_lock lock(mutex_);
    Post* partner = at(post.destination).box.meet(post);
    if (!partner) return;
    post.state = partner->state = Post::State::copying;
    lock.unlock();
    deliver(post.is_send ? post : *partner, post.is_send ? *partner : post, queue);
    lock.lock();
    // From here on the partner's owner may destroy it, as soon as the lock is free.
    at(partner->owner()).changed.notify_all();
    post.state = partner->state = Post::State::done;
  }

  /// All posts have met their other side. Or else, whether some rank failed.
  enum class Progress : std::uint8_t { under_way, done, failed };
  Progress progress(const std::vector<Post>& posts) {
    const std::lock_guard lock(mutex_);
    if (all_done(posts)) return Progress::done;
    return first_failed_ >= 0 ? Progress::failed : Progress::under_way;
  }

  /// Waits until all posts of rank `me` are done. On failure nobody copies any more when this throws.
  void finish(std::vector<Post>& posts, int me) {
    using Clock = std::chrono::steady_clock;
    constexpr double longest = 1e8;  // seconds; a larger deadline would overflow the clock
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(std::min(deadline(), longest)));
    std::unique_lock lock(mutex_);
    const bool woken = at(me).changed.wait_until(lock, end, [&] { return all_done(posts) || first_failed_ >= 0; });
    if (all_done(posts)) return fail_mismatch(posts);

    std::vector<Missing> missing;
    for (const Post& each : posts)
      if (each.state == Post::State::waiting)
        missing.push_back({each.is_send, each.peer(), each.tag, each.data.bytes()});
    withdraw(posts, me, lock);
    if (!woken) fail_deadline(missing);
    at(me).told = true;
    fail(ExitCode::io, "rank {} stopped: {}", first_failed_, at(first_failed_).failure->what());
  }

  /// Takes the posts out of the mailboxes, and waits for a peer that is just copying.
  void withdraw(std::vector<Post>& posts, int me) {
    std::unique_lock lock(mutex_);
    withdraw(posts, me, lock);
  }

  /// Rank `me` has thrown: wakes all others.
  void stop(int me, const Error& error) {
    const std::lock_guard lock(mutex_);
    at(me).failure = error;
    if (first_failed_ < 0) first_failed_ = me;
    for (Rank& rank : ranks_) rank.changed.notify_all();
  }

  /// After all threads ended. A rank that was told of another's failure is no cause, whatever it made of the message.
  void rethrow_root_cause() {
    for (int rank = 0; rank < size(); ++rank)
      if (const auto& failure = at(rank).failure; failure && !at(rank).told)
        fail(failure->code(), "rank {}: {}", rank, failure->what());
  }

 private:
  struct Rank {
    Mailbox box;                      // messages to this rank
    std::condition_variable changed;  // a post of this rank is done, or some rank failed
    std::optional<Error> failure;
    bool told = false;  // of another rank's failure
  };

  Rank& at(int rank) { return ranks_[std::size_t(rank)]; }

  void withdraw(std::vector<Post>& posts, int me, std::unique_lock<std::mutex>& lock) {
    for (Post& each : posts) {
      if (each.state == Post::State::waiting) at(each.destination).box.withdraw(each);
      at(me).changed.wait(lock, [&] { return each.state != Post::State::copying; });
      each.state = Post::State::done;
    }
  }

  static bool all_done(const std::vector<Post>& posts) {
    return std::all_of(posts.begin(), posts.end(), [](const Post& each) { return each.state == Post::State::done; });
  }

  static void fail_mismatch(const std::vector<Post>& posts) {
    for (const Post& each : posts)
      if (!each.error.empty()) fail(ExitCode::internal, "{}", each.error);
  }

  std::mutex mutex_;  // guards everything below, and the state of all posts
  std::vector<Rank> ranks_;
  std::int64_t channels_ = 0;
  int first_failed_ = -1;
};

class ThreadPending final : public Pending {
 public:
  ThreadPending(Run& run, int me, CopyQueue& queue, std::vector<Post> posts)
      : run_(run), me_(me), posts_(std::move(posts)) {
    for (Post& post : posts_) run_.post(post, queue);
  }
  ThreadPending(const ThreadPending&) = delete;
  ThreadPending& operator=(const ThreadPending&) = delete;
  ~ThreadPending() override {
    if (complete_) return;
    if (!waited_) run_.withdraw(posts_, me_);
    wait_for_copies(posts_);
  }

  void in_background() override {}  // whoever posts second copies
  bool done() override {
    const Run::Progress progress = run_.progress(posts_);
    return progress == Run::Progress::failed || (progress == Run::Progress::done && have_arrived(posts_));
  }

  void wait() override {
    CAPSTAN_CHECK(!waited_, "wait() was called twice on one exchange");
    waited_ = true;
    run_.finish(posts_, me_);
    come_after(posts_);
    complete_ = true;
  }

 private:
  Run& run_;
  int me_;
  std::vector<Post> posts_;  // never resized: the mailboxes point at them
  bool waited_ = false, complete_ = false;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Run& run, std::int64_t channel, std::vector<int> members, int rank)
      : run_(run), channel_(channel), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return int(members_.size()); }
  std::string backend() const override { return "threads"; }

  std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    check_messages(sends, receives);
    const auto world_rank = [this](int peer) { return members_[std::size_t(peer)]; };
    return std::make_unique<ThreadPending>(run_, me(), queue_, posts_of(sends, receives, channel_, me(), world_rank));
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    CAPSTAN_CHECK(color >= 0, "split with color {}", color);
    // Every rank proposes a channel; a group takes that of its first member.
    std::int64_t mine[] = {color, key, run_.new_channel()};
    std::vector<std::int64_t> all(std::size_t(3 * size()));
    all_gather(View(mine, kernels::DType::i64, kernels::Device::cpu, {3}),
               View(all.data(), kernels::DType::i64, kernels::Device::cpu, {size(), 3}));
    const auto entry = [&](int rank, int column) { return all[std::size_t(3 * rank + column)]; };
    std::vector<int> group;
    for (int rank = 0; rank < size(); ++rank)
      if (entry(rank, 0) == color) group.push_back(rank);
    std::stable_sort(group.begin(), group.end(), [&](int a, int b) { return entry(a, 1) < entry(b, 1); });

    const int new_rank = int(std::find(group.begin(), group.end(), rank_) - group.begin());
    const std::int64_t channel = entry(group.front(), 2);
    for (int& rank : group) rank = members_[std::size_t(rank)];
    return std::make_unique<ThreadCommunicator>(run_, channel, std::move(group), new_rank);
  }

  std::unique_ptr<Communicator> split_by_host() override { return split(0, rank_); }

  [[noreturn]] void abort(ExitCode code, const std::string& reason) override {
    end_process(code, me(), run_.size(), reason);
  }

 private:
  int me() const { return members_[std::size_t(rank_)]; }

  Run& run_;
  std::int64_t channel_;
  std::vector<int> members_;  // world ranks
  int rank_;
  CopyQueue queue_;
};

void run_rank(Run& run, int rank, const std::function<void(Communicator&)>& body) {
  kernels::flush_denormals();  // a property of the thread, which new threads do not take over
  std::vector<int> everyone;
  for (int member = 0; member < run.size(); ++member) everyone.push_back(member);
  ThreadCommunicator world(run, 0, std::move(everyone), rank);
  try {
    body(world);
  } catch (...) { run.stop(rank, current_error()); }
}

}  // namespace

void run_on_threads(int ranks, const std::function<void(Communicator&)>& body) {
  CAPSTAN_CHECK(ranks > 0, "{} ranks", ranks);
  Run run(ranks);
  {
    std::vector<std::jthread> threads;  // joined at the end of this block
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        threads.emplace_back([&run, &body, rank] { run_rank(run, rank, body); });
      } catch (...) {  // no more threads to be had: those that run must not wait for this one
        run.stop(rank, current_error());
        break;
      }
    }
  }
  run.rethrow_root_cause();
}

}  // namespace capstan::parallel
