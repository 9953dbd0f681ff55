// Ranks with a GPU each: messages between GPUs go through NCCL, all others through the communicator of the host that it is made
// over. communicator.h says what NCCL asks of those who exchange.
//
// An exchange is one group of NCCL, on a queue of its own beside the rank's work:
//   rank's queue   … write, read | mark ready | work beside it | after `sent`: may write what was sent, read what came
//   NCCL's queue                  after ready | group | mark sent
// All communicators that are split from one share that queue, because NCCL's kernels wait for other ranks while they hold a part
// of the GPU: two at a time may each hold what the other's peer needs ("Using multiple NCCL communicators concurrently", NCCL
// user guide). In one queue they run in the order in which the program posts them, which is the same on all ranks.
//
// Nothing here blocks for ever: communicators are made not to block (ncclConfig_t::blocking), calls are followed up until they
// are done or the deadline has passed, and a thread watches what is under way on the GPU.

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/device_queue.h"
#include "parallel/communicator.h"
#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using kernels::Device;
using kernels::DeviceMark;
using kernels::DeviceQueue;

/// A part of a message: NCCL matches the n-th send from one rank to another with the n-th receive.
struct Piece {
  bool is_send;
  std::uint8_t* data;
  std::int64_t bytes;
  int peer;
};

/// NCCL's communicator of one rank. One call of it at a time, since the watchdog asks from a thread of its own.
class Link {
 public:
  explicit Link(Communicator& host);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Queues the pieces on `queue` as one group, and marks its end.
  std::shared_ptr<const DeviceMark> post(const std::vector<Piece>& pieces, const DeviceQueue& queue);
  /// The buffers of an exchange that nobody waits for are free when this returns. Its other ranks may never come: then the link
  /// is given up.
  void let_go(const DeviceMark& sent) noexcept;

  // The watchdog's:
  /// What is wrong, or empty.
  std::string look() noexcept;
  [[noreturn]] void end_program(const std::string& why);

 private:
  struct UnderWay {
    std::shared_ptr<const DeviceMark> sent;
    Clock::time_point since;
    std::string what;
  };

  void check(ncclResult_t result, const char* call) const;
  ncclResult_t state() const;
  void follow_up(const char* call) const;
  void check_under_way();
  void finish() noexcept;
  bool give_up() noexcept;
  std::string place() const { return fmt::format("rank {}, GPU {}", host_.rank(), gpu_); }

  Communicator& host_;
  std::timed_mutex mutex_;     // guards everything below, and all calls of NCCL
  ncclComm_t comm_ = nullptr;  // nullptr once it was given up
  std::future<void> ended_;    // of one that was given up
  int gpu_ = -1;
  std::deque<UnderWay> under_way_;
};

/// Looks at all links of the process ten times a second: NCCL tells of a lost peer only when it is asked, and an exchange that
/// no peer joins just goes on. It ends the program, since the rank itself may be waiting for its GPU.
class Watchdog {
 public:
  Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(Link& link);
  /// Afterwards the thread does not touch it any more. With the last link the thread goes.
  void forget(Link& link);

 private:
  void run();

  static constexpr auto pause = std::chrono::milliseconds(100);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Link*> links_;
  std::thread thread_;
};

/// Lives as long as the process: a program that exits in the middle leaves its links as they are.
Watchdog& watchdog() {
  static Watchdog* const the_watchdog = new Watchdog;
  return *the_watchdog;
}

void Watchdog::watch(Link& link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(&link);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Watchdog::forget(Link& link) {
  std::thread idle;
  {
    const std::lock_guard lock(mutex_);
    std::erase(links_, &link);
    if (!links_.empty() || !thread_.joinable()) return;
    idle = std::move(thread_);
    changed_.notify_all();
  }
  idle.join();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  const auto ended = [&, me = std::this_thread::get_id()] { return thread_.get_id() != me; };
  while (!changed_.wait_for(lock, pause, ended))
    for (Link* link : links_)
      if (const std::string failure = link->look(); !failure.empty()) link->end_program(failure);
}

/// NCCL's open group of this thread. One that is left by an exception is closed, too.
class OpenGroup {
 public:
  OpenGroup() : begun_(ncclGroupStart()) {}
  OpenGroup(const OpenGroup&) = delete;
  OpenGroup& operator=(const OpenGroup&) = delete;
  ~OpenGroup() {
    if (open() && ncclGroupEnd() != ncclSuccess) return;  // the exception says more
  }
  ncclResult_t begun() const { return begun_; }
  ncclResult_t end() {
    ended_ = true;
    return ncclGroupEnd();
  }

 private:
  bool open() const { return begun_ == ncclSuccess && !ended_; }
  ncclResult_t begun_;
  bool ended_ = false;
};

Link::Link(Communicator& host) : host_(host) {
  ncclUniqueId id{};
  if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  host.broadcast(View(id.internal, kernels::DType::u8, Device::cpu, {std::int64_t(sizeof id.internal)}), 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    check(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config), "ncclCommInitRankConfig");
    follow_up("ncclCommInitRankConfig");
    check(ncclCommCuDevice(comm_, &gpu_), "ncclCommCuDevice");
  } catch (...) {
    give_up();
    throw;
  }
  watchdog().watch(*this);
}

Link::~Link() {
  watchdog().forget(*this);
  const std::lock_guard lock(mutex_);
  // Finalising waits for what is under way, and so for the other ranks: after an exception they are not coming.
  if (std::uncaught_exceptions() == 0) finish();
  // What NCCL leaves on the GPU would hold up whoever waits for it next, for ever.
  if (!give_up()) host_.abort(ExitCode::io, fmt::format("NCCL: work under way could not be ended ({})", place()));
}

void Link::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(ExitCode::io, "NCCL: {}: {}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(comm_), place());
}

ncclResult_t Link::state() const {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  return state;
}

/// Until the call is done, which may take the other ranks: the first messages between two connect them.
void Link::follow_up(const char* call) const {
  constexpr auto pause = std::chrono::microseconds(50);
  const Clock::time_point begin = Clock::now();
  for (ncclResult_t now = state();; now = state()) {
    check(now, call);
    if (now == ncclSuccess) return;
    if (Seconds(Clock::now() - begin).count() > deadline())
      fail(ExitCode::io, "NCCL: {} was not done after {} s ({}): another rank is stuck, lost, or far behind", call,
           deadline(), place());
    std::this_thread::sleep_for(pause);
  }
}

std::shared_ptr<const DeviceMark> Link::post(const std::vector<Piece>& pieces, const DeviceQueue& queue) {
  DeviceMark ready;
  ready.record();
  const kernels::OnQueue here(queue);
  ready.hold_back();

  const std::lock_guard lock(mutex_);
  if (!comm_) fail(ExitCode::io, "NCCL: an exchange after one that was left unfinished ({})", place());
  const auto stream = static_cast<cudaStream_t>(queue.stream());
  OpenGroup group;
  check(group.begun(), "ncclGroupStart");
  std::int64_t bytes = 0;
  for (const Piece& p : pieces) {
    const auto count = static_cast<std::size_t>(p.bytes);
    if (p.is_send) check(ncclSend(p.data, count, ncclUint8, p.peer, comm_, stream), "ncclSend");
    else check(ncclRecv(p.data, count, ncclUint8, p.peer, comm_, stream), "ncclRecv");
    bytes += p.bytes;
  }
  check(group.end(), "ncclGroupEnd");
  follow_up("ncclGroupEnd");  // only now the group is on the stream

  const auto sent = std::make_shared<DeviceMark>();
  sent->record();
  under_way_.push_back({sent, Clock::now(), fmt::format("{} messages, {} bytes", pieces.size(), bytes)});
  return sent;
}

void Link::let_go(const DeviceMark& sent) noexcept {
  constexpr Seconds patience{1};
  constexpr auto pause = std::chrono::milliseconds(1);
  try {
    const Clock::time_point begin = Clock::now();
    while (!sent.passed()) {
      if (Clock::now() - begin > patience) {
        const std::lock_guard lock(mutex_);
        if (give_up()) sent.wait();
        return;
      }
      std::this_thread::sleep_for(pause);
    }
  } catch (const std::exception&) {  // a GPU that has failed touches nothing; an exception is on its way already
  }
}

std::string Link::look() noexcept {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_) return "";  // the rank is calling NCCL, and looks itself
  try {
    check(state(), "an exchange under way");
    check_under_way();
  } catch (const std::exception& error) { return error.what(); }
  return "";
}

void Link::check_under_way() {
  while (!under_way_.empty() && under_way_.front().sent->passed()) under_way_.pop_front();
  if (under_way_.empty()) return;
  const UnderWay& oldest = under_way_.front();
  if (Seconds(Clock::now() - oldest.since).count() > deadline())
    fail(ExitCode::io,
         "NCCL: gave up after {} s: an exchange of {} is not done ({}); another rank is stuck, lost, or far behind",
         deadline(), oldest.what, place());
}

void Link::end_program(const std::string& why) {
  constexpr Seconds patience{1};
  if (const std::unique_lock lock(mutex_, patience); lock) give_up();
  host_.abort(ExitCode::io, why);
  std::abort();  // not reached, which not every compiler sees
}

void Link::finish() noexcept {
  if (!comm_) return;
  try {
    check(ncclCommFinalize(comm_), "ncclCommFinalize");
    follow_up("ncclCommFinalize");
    check(ncclCommDestroy(comm_), "ncclCommDestroy");
    comm_ = nullptr;
  } catch (const Error& error) {
    print_failure(host_.rank(), host_.size(), error.what());
    give_up();
  }
}

/// NCCL ends its kernels on this GPU; false if it does not. It may itself wait for what is lost, so nobody waits for it long.
bool Link::give_up() noexcept {
  constexpr Seconds patience{3};
  if (comm_) {
    std::promise<void> aborted;
    ended_ = aborted.get_future();
    std::thread([comm = comm_, done = std::move(aborted)]() mutable {
      if (ncclCommAbort(comm) == ncclSuccess) done.set_value();
    }).detach();
    comm_ = nullptr;
  }
  return !ended_.valid() || ended_.wait_for(patience) == std::future_status::ready;
}

class NcclPending final : public Pending {
 public:
  /// on_host: the messages that are not on a GPU, or nullptr. sent: nullptr if there are no others.
  NcclPending(Link& link, std::unique_ptr<Pending> on_host, std::shared_ptr<const DeviceMark> sent)
      : link_(link), on_host_(std::move(on_host)), sent_(std::move(sent)) {}
  NcclPending(const NcclPending&) = delete;
  NcclPending& operator=(const NcclPending&) = delete;
  ~NcclPending() override {
    if (!complete_ && sent_) link_.let_go(*sent_);
  }

  void in_background() override {
    if (on_host_) on_host_->in_background();
  }

  bool done() override {
    try {
      return (!on_host_ || on_host_->done()) && (!sent_ || sent_->passed());
    } catch (const std::exception&) { return true; }  // the GPU has failed, and whoever waits for it is told so
  }

  void wait() override {
    CAPSTAN_CHECK(!waited_, "wait() was called twice on one exchange");
    waited_ = true;
    if (on_host_) on_host_->wait();
    if (sent_) sent_->hold_back();
    complete_ = true;
  }

 private:
  Link& link_;
  std::unique_ptr<Pending> on_host_;
  std::shared_ptr<const DeviceMark> sent_;
  bool waited_ = false, complete_ = false;
};

/// By tag, so that both ends of a pair have one order, whatever theirs was; cut at the same places.
void append_pieces(std::vector<Piece>& pieces, std::span<const Message> messages, bool is_send) {
  std::vector<Message> in_order(messages.begin(), messages.end());
  std::stable_sort(in_order.begin(), in_order.end(), [](const Message& a, const Message& b) { return a.tag < b.tag; });
  for (const Message& message : in_order) {
    auto* data = static_cast<std::uint8_t*>(message.data.data());
    for (std::int64_t left = message.data.bytes(), size; left > 0; left -= size, data += size) {
      size = std::min(left, message_split());
      pieces.push_back({is_send, data, size, message.peer});
    }
  }
}

/// The messages on a GPU, or the others.
std::vector<Message> those(std::span<const Message> messages, bool on_gpu) {
  std::vector<Message> found;
  for (const Message& message : messages)
    if ((message.data.device() == Device::cuda) == on_gpu) found.push_back(message);
  return found;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::shared_ptr<const DeviceQueue> queue)
      : host_(host), queue_(std::move(queue)), link_(host) {}
  /// A part, which has its host communicator to itself.
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<const DeviceQueue> queue)
      : own_host_(std::move(host)), host_(*own_host_), queue_(std::move(queue)), link_(host_) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string backend() const override { return "nccl"; }

  std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    check_messages(sends, receives);
    std::vector<Piece> pieces;
    append_pieces(pieces, those(receives, true), false);
    append_pieces(pieces, those(sends, true), true);
    const std::vector<Message> host_sends = those(sends, false), host_receives = those(receives, false);
    std::unique_ptr<Pending> on_host;
    if (!host_sends.empty() || !host_receives.empty()) on_host = host_.exchange(host_sends, host_receives);
    return std::make_unique<NcclPending>(link_, std::move(on_host),
                                         pieces.empty() ? nullptr : link_.post(pieces, *queue_));
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NcclCommunicator>(host_.split(color, key), queue_);
  }
  std::unique_ptr<Communicator> split_by_host() override {
    return std::make_unique<NcclCommunicator>(host_.split_by_host(), queue_);
  }

  [[noreturn]] void abort(ExitCode code, const std::string& reason) override {
    host_.abort(code, reason);
    std::abort();  // not reached, which not every compiler sees
  }

 private:
  std::unique_ptr<Communicator> own_host_;
  Communicator& host_;
  std::shared_ptr<const DeviceQueue> queue_;  // ends after the link, which ends what is queued there
  Link link_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host) {
  return std::make_unique<NcclCommunicator>(host, std::make_shared<const DeviceQueue>());
}

}  // namespace capstan::parallel
