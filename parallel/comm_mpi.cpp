// Ranks as MPI processes. Only point-to-point messages are used: the collectives are ours (collectives.cpp). MPI knows
// no deadline and moves nothing by itself, so every wait here is a loop around MPI_Testall that we can leave, and a
// thread tests what is under way while the rank computes. One lock lets one thread into MPI at a time.

#define OMPI_SKIP_MPICXX 1  // the C interface only: the old C++ one would need a library of its own
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "parallel/communicator.h"
#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

/// The result of one MPI call, made alone.
template <class Call> int alone(const Call& call) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return call();
}

std::string text_of_mpi_error(int code) {  // outside CAPSTAN_MPI, which needs it
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (alone([&] { return MPI_Error_string(code, text, &length); }) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return std::string(text, std::size_t(length));
}

void check_mpi(int code, const char* call, int line) {
  if (code == MPI_SUCCESS) return;
  fail(ExitCode::io, "{}:{}: {}: {}", __FILE__, line, call, text_of_mpi_error(code));
}

/// Every MPI call stands in here.
#define CAPSTAN_MPI(call) check_mpi(alone([&] { return (call); }), #call, __LINE__)

/// A wait that leaves the core to others: first polls, then yields (ranks may outnumber cores), then sleeps an eighth of the
/// time waited so far: rarely enough that the other ranks of the core keep it, often enough that little is added.
class Patience {
 public:
  /// False when the deadline has passed.
  bool pause() {
    ++polls_;
    if (polls_ < 50) return true;
    const double waited = seconds();
    if (waited < longest_yield) sched_yield();
    else std::this_thread::sleep_for(std::chrono::duration<double>(std::min(waited / 8, longest_sleep)));
    return waited < deadline();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double longest_yield = 0.5e-3, longest_sleep = 1e-3;  // seconds
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Clock::time_point start_ = Clock::now();
  std::int64_t polls_ = 0;
};

class MpiPending;

/// Tests exchanges while their ranks compute: without that, a receiver that computes holds the sender of anything that
/// does not fit in MPI's buffers. It sleeps while there are none, and between tests longer and longer.
class Mover {
 public:
  Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover() { stop(); }

  void take(MpiPending& pending);
  /// Afterwards the thread does not touch it any more.
  void give_back(MpiPending& pending);
  void stop();

 private:
  void run();

  static constexpr auto shortest_pause = std::chrono::microseconds(20), longest_pause = std::chrono::microseconds(2000);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MpiPending*> under_way_;
  bool ending_ = false;
  std::thread thread_;  // from the first take() on
};

Mover& mover() {
  static Mover the_mover;
  return the_mover;
}

class MpiPending final : public Pending {
 public:
  /// `world_ranks`: of the communicator's members, for error texts.
  MpiPending(MPI_Comm comm, const std::vector<int>& world_ranks, int me, std::span<const Message> sends,
             std::span<const Message> receives)
      : me_(me) {
    for (const Message& receive : receives) start(comm, world_ranks, receive, false);  // first, to be ready for data
    for (const Message& send : sends) start(comm, world_ranks, send, true);
    statuses_.resize(requests_.size());
  }
  MpiPending(const MpiPending&) = delete;
  MpiPending& operator=(const MpiPending&) = delete;
  ~MpiPending() override {
    mover().give_back(*this);
    let_go();
  }

  void in_background() override {
    move();
    if (!ended_) mover().take(*this);
  }

  bool done() override { return ended_; }

  void wait() override {
    CAPSTAN_CHECK(!waited_, "wait() was called twice on one exchange");
    waited_ = true;
    mover().give_back(*this);
    Patience patience;
    for (move(); !ended_; move())
      if (!patience.pause()) fail_deadline(missing());
    if (failure_) std::rethrow_exception(failure_);
  }

  /// Tests once. A failure is kept for wait().
  void move() noexcept {
    if (ended_) return;
    try {
      complete_ = test();
    } catch (...) { failure_ = std::current_exception(); }
    ended_ = complete_ || failure_;
  }

 private:
  void start(MPI_Comm comm, const std::vector<int>& world_ranks, const Message& message, bool is_send) {
    // Both sides cut at the same places; the pieces have one tag and therefore keep their order.
    char* data = static_cast<char*>(message.data.data());
    std::int64_t left = message.data.bytes();
    do {
      const int bytes = int(std::min(left, message_split()));
      MPI_Request request = MPI_REQUEST_NULL;
      if (is_send) CAPSTAN_MPI(MPI_Isend(data, bytes, MPI_BYTE, message.peer, message.tag, comm, &request));
      else CAPSTAN_MPI(MPI_Irecv(data, bytes, MPI_BYTE, message.peer, message.tag, comm, &request));
      requests_.push_back(request);
      pieces_.push_back({is_send, world_ranks[std::size_t(message.peer)], message.tag, bytes});
      data += bytes;
      left -= bytes;
    } while (left > 0);
  }

  bool test() {
    if (requests_.empty()) return true;
    int all_done = 0;
    const int code =
        alone([&] { return MPI_Testall(int(requests_.size()), requests_.data(), &all_done, statuses_.data()); });
    if (code != MPI_SUCCESS) fail_test(code);
    if (all_done) check_sizes();
    return all_done != 0;
  }

  void check_sizes() const {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].is_send) continue;
      int bytes = 0;
      CAPSTAN_MPI(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
      if (bytes != pieces_[i].bytes)
        fail(ExitCode::internal, "rank {} sent {} bytes ({}) where rank {} expected {}", pieces_[i].peer, bytes,
             text_of_tag(pieces_[i].tag), me_, pieces_[i].bytes);
    }
  }

  [[noreturn]] void fail_test(int code) const {
    std::size_t which = pieces_.size();
    if (code == MPI_ERR_IN_STATUS) {
      const auto failed = [](const MPI_Status& status) {
        return status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
      };
      which = std::size_t(std::find_if(statuses_.begin(), statuses_.end(), failed) - statuses_.begin());
      if (which < pieces_.size()) code = statuses_[which].MPI_ERROR;
    }
    int kind = code;
    CAPSTAN_MPI(MPI_Error_class(code, &kind));
    std::string who = "an exchange";
    if (which < pieces_.size()) who = "a message " + text_of(pieces_[which]);
    if (kind == MPI_ERR_TRUNCATE) fail(ExitCode::internal, "{} was longer than expected", who);
    // Most likely the peer is gone. Its own line or the launcher's says why, and the launcher is about to end us.
    std::this_thread::sleep_for(std::chrono::seconds(3));
    fail(ExitCode::io, "{} failed: {}", who, text_of_mpi_error(code));
  }

  std::vector<Missing> missing() const {
    std::vector<Missing> result;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      int done = 0;
      CAPSTAN_MPI(MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE));
      if (!done) result.push_back(pieces_[i]);
    }
    return result;
  }

  /// After an exception: MPI must not write into buffers that are about to go. The rank ends soon in any case.
  void let_go() noexcept {
    if (complete_) return;
    try {
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        if (requests_[i] == MPI_REQUEST_NULL) continue;
        if (!pieces_[i].is_send) CAPSTAN_MPI(MPI_Cancel(&requests_[i]));
        CAPSTAN_MPI(MPI_Request_free(&requests_[i]));
      }
    } catch (const Error&) {  // a first failure is already on its way
    }
  }

  int me_;
  std::vector<MPI_Request> requests_;
  std::vector<Missing> pieces_;  // one per request
  std::vector<MPI_Status> statuses_;
  bool complete_ = false;
  bool waited_ = false;
  std::exception_ptr failure_;
  std::atomic<bool> ended_ = false;  // complete, or failed: written last
};

void Mover::take(MpiPending& pending) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  under_way_.push_back(&pending);
  changed_.notify_one();
}

void Mover::give_back(MpiPending& pending) {
  const std::lock_guard lock(mutex_);
  std::erase(under_way_, &pending);
}

void Mover::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Mover::run() {
  auto pause = shortest_pause;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (under_way_.empty()) {
      changed_.wait(lock, [&] { return ending_ || !under_way_.empty(); });
      pause = shortest_pause;
    }
    for (MpiPending* pending : under_way_) pending->move();
    std::erase_if(under_way_, [](MpiPending* pending) { return pending->done(); });
    if (under_way_.empty()) continue;
    changed_.wait_for(lock, pause, [&] { return ending_; });
    pause = std::min(2 * pause, longest_pause);
  }
}

class MpiCommunicator final : public Communicator {
 public:
  /// Takes over `comm`.
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {
    CAPSTAN_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    CAPSTAN_MPI(MPI_Comm_rank(comm_, &rank_));
    CAPSTAN_MPI(MPI_Comm_size(comm_, &size_));
    CAPSTAN_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size_));
    MPI_Group mine = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    CAPSTAN_MPI(MPI_Comm_group(comm_, &mine));
    CAPSTAN_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
    std::vector<int> ranks;
    for (int member = 0; member < size_; ++member) ranks.push_back(member);
    world_ranks_.resize(ranks.size());
    CAPSTAN_MPI(MPI_Group_translate_ranks(mine, size_, ranks.data(), world, world_ranks_.data()));
    CAPSTAN_MPI(MPI_Group_free(&mine));
    CAPSTAN_MPI(MPI_Group_free(&world));
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  ~MpiCommunicator() override {
    // Freeing needs all ranks: after an exception they are not coming, and after MPI_Finalize there is nothing to free.
    if (std::uncaught_exceptions() > 0) return;
    try {
      int finalized = 0;
      CAPSTAN_MPI(MPI_Finalized(&finalized));
      if (!finalized) CAPSTAN_MPI(MPI_Comm_free(&comm_));
    } catch (const Error& error) { print_failure(me(), world_size_, error.what()); }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return "mpi"; }

  std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    check_messages(sends, receives);
    return std::make_unique<MpiPending>(comm_, world_ranks_, me(), sends, receives);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    CAPSTAN_CHECK(color >= 0, "split with color {}", color);
    barrier();  // MPI_Comm_split knows no deadline; when all ranks are here it needs none
    MPI_Comm part = MPI_COMM_NULL;
    CAPSTAN_MPI(MPI_Comm_split(comm_, color, key, &part));
    return std::make_unique<MpiCommunicator>(part);
  }

  std::unique_ptr<Communicator> split_by_host() override {
    barrier();
    MPI_Comm part = MPI_COMM_NULL;
    CAPSTAN_MPI(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part));
    return std::make_unique<MpiCommunicator>(part);
  }

  [[noreturn]] void abort(ExitCode code, const std::string& reason) override {
    // What all ranks found out together (a wrong recipe) is told by rank 0 alone: it ends the others before they speak.
    if (me() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    print_failure(me(), world_size_, reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // our line is with the launcher before its own
    try {
      CAPSTAN_MPI(MPI_Abort(MPI_COMM_WORLD, int(code)));
    } catch (const Error&) {  // then the launcher ends the others when it sees how we end
    }
    std::_Exit(int(code));
  }

 private:
  int me() const { return world_ranks_[std::size_t(rank_)]; }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1, world_size_ = 1;
  std::vector<int> world_ranks_;  // of the members
};

/// "Open MPI v4.1.4"
std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  CAPSTAN_MPI(MPI_Get_library_version(text, &length));
  const std::string version(text, std::size_t(length));
  return version.substr(0, version.find_first_of(",\n\t"));
}

/// Two MPIs on one machine: the one's mpirun starts N processes of a binary built with the other, and each of them
/// believes that it is rank 0 of 1. They would train N times the same and overwrite each other's files.
void refuse_wrong_launch(const Launcher& launcher) {
  int size = 0;
  CAPSTAN_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (size > 1 || launcher.size <= 1) return;
  const std::string library = mpi_library();
  CAPSTAN_MPI(MPI_Finalize());
  fail(ExitCode::config,
       "the launcher started {} ranks ({} is set) but MPI sees only one: this binary is built with {}; start it with "
       "that MPI's mpirun",
       launcher.size, launcher.variable, library);
}

void require_tags() {
  void* value = nullptr;
  int present = 0;
  CAPSTAN_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &present));
  const int highest = present ? *static_cast<int*>(value) : 32767;  // the least that the standard promises
  if (highest < tags::last)
    fail(ExitCode::config, "this MPI has tags up to {}, and {} are needed", highest, tags::last);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator() {
  int initialized = 0;
  CAPSTAN_MPI(MPI_Initialized(&initialized));
  if (!initialized) {
    const Launcher launcher = find_launcher();
    if (launcher.size == 0) return nullptr;
    int provided = MPI_THREAD_SINGLE;  // one thread at a time, not always the same one
    CAPSTAN_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
    CAPSTAN_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    refuse_wrong_launch(launcher);
    if (provided < MPI_THREAD_SERIALIZED)
      fail(ExitCode::config, "{} offers thread level {}, and MPI_THREAD_SERIALIZED is needed", mpi_library(), provided);
    require_tags();
  }
  MPI_Comm own = MPI_COMM_NULL;  // nobody else's messages come in here
  CAPSTAN_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &own));
  return std::make_unique<MpiCommunicator>(own);
}

void finalize_mpi() {
  int initialized = 0, finalized = 0;
  CAPSTAN_MPI(MPI_Initialized(&initialized));
  CAPSTAN_MPI(MPI_Finalized(&finalized));
  if (!initialized || finalized) return;
  mover().stop();
  // MPI_Finalize waits for all ranks without a deadline, so they meet here first.
  MPI_Request request = MPI_REQUEST_NULL;
  CAPSTAN_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
  Patience patience;
  int done = 0;
  for (;;) {
    CAPSTAN_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) break;
    if (!patience.pause()) fail(ExitCode::io, "not all ranks reached the end of the program within {} s", deadline());
  }
  CAPSTAN_MPI(MPI_Finalize());
}

}  // namespace capstan::parallel
