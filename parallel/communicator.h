#pragma once
// The one interface through which ranks talk. Backends: comm_self (one rank), comm_threads (N ranks as threads of this
// process), comm_mpi, comm_nccl (a GPU per rank, over one of the others). A backend moves messages; the collectives are written
// once over `exchange` (collectives.cpp) and add in rank order, so that every backend gives the same bits.
//
// Who waits for whom: every member is called by all ranks of the communicator in the same order (`exchange` only by
// those that have messages). A buffer handed to `exchange` belongs to the communicator until `wait` returns. A send may
// wait for its receive, whatever its size: post both sides before waiting. Everything else is done when the call
// returns. An exception or a lost peer on one rank reaches the others as an Error (code io) within `deadline` seconds,
// never as a hang; among threads at once, among MPI processes by the end of all of them (failure.h).
//
// Messages on `cuda` (self, threads, nccl; both sides must lie there) are queued like operations, and the host does not wait for
// the GPU. exchange() comes after what the calling thread has queued so far: it has written what is sent, and is done with what
// will be overwritten. The messages then move beside what the thread queues next, which may read what is sent and nothing else
// of theirs. wait() returns when the host side is settled, and what the thread queues from then on comes after the messages: it
// may read what came, write what was sent, and give either back. A thread works with one GPU (kernels/device_queue.h) from
// before its first such message until its Pendings are gone.
//
// NCCL knows no tags: what one rank sends to another is received in the order in which it was sent; and an exchange holds up all
// later ones of its rank until its peers have come to theirs. A backend for all therefore asks of messages on `cuda`:
//   1. Both ends of a message post it in exchanges that they count alike. If each rank's exchanges are numbered so that a
//      message has one number on both sides, and every rank posts in the order of the numbers, then the exchange of the lowest
//      number that is not done can always go on: nobody waits in a circle. Collectives, called by all in one order, are such
//      numbers; inside of one, the messages go down a tree or a chain. ring_exchanges.h numbers a ring's slots.
//   2. Messages of a pair in one exchange may be listed in any order; backends match them by tag. With one tag they keep theirs.
// Sending in one exchange while one's own receives stand in the next one breaks the first rule as soon as ranks do it in a
// circle. Host messages are matched by tag alone and know no such rule.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::parallel {

using kernels::View;

struct Message {
  View data;  ///< counts and types come from the view
  int peer;   ///< rank in this communicator
  int tag;    ///< 0 … 32767; messages between two ranks with one tag keep their order
};

enum class Reduce : std::uint8_t { sum, max, min };

/// An exchange under way. wait() must be called exactly once. Destroyed without it (an exception passes through), it lets
/// go of the buffers before it returns. It is gone before its communicator, if it has messages on `cuda`.
class Pending {
 public:
  virtual ~Pending() = default;
  /// From now on it moves while its rank computes. Between threads it always does; MPI moves nothing by itself, so a
  /// thread of that backend looks after it. To be called where work follows; not for an exchange that is awaited at once.
  virtual void in_background() = 0;
  /// True once everything has left and arrived, or has failed (which wait() will tell). Moves nothing, waits for nothing.
  virtual bool done() = 0;
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string backend() const = 0;  ///< "self", "threads", "mpi", "nccl"

  /// Starts all sends and receives at once. Sizes must agree on both sides. Messages over 1 GiB are split underneath.
  /// A message to oneself is allowed and copied.
  virtual std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) = 0;

  /// Ranks with the same color form a new communicator, ordered by (key, old rank).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// The ranks that share this one's host, in the order in which they are here.
  virtual std::unique_ptr<Communicator> split_by_host() = 0;

  /// Ends every rank of the program at once with this exit code; `reason` is printed first, once, with the rank.
  [[noreturn]] virtual void abort(ExitCode code, const std::string& reason) = 0;

  // Collectives. Sums are taken in rank order 0, 1, …, W-1 (floating point in the element type).
  void barrier();
  void broadcast(const View& data, int root);                   ///< overwrites data on all ranks but root
  void all_gather(const View& mine, const View& all);           ///< all [W · elements of mine], rank order
  void all_reduce(const View& data, Reduce how = Reduce::sum);  ///< overwrites data
  void reduce_scatter(const View& all, const View& mine);       ///< mine = sum over ranks of all's piece `rank`
  void exclusive_scan(const View& data);                        ///< data = sum of lower ranks' data (rank 0: zero)

  // The same for single values and for strings of any length.
  std::int64_t all_reduce(std::int64_t value, Reduce how = Reduce::sum);
  double all_reduce(double value, Reduce how = Reduce::sum);
  std::string broadcast(const std::string& text, int root);
  std::vector<std::string> all_gather(const std::string& text);

 protected:
  /// Peers and tags in range, every view present: a wrong message is our defect and fails on the rank that made it.
  void check_messages(std::span<const Message> sends, std::span<const Message> receives) const;
};

std::unique_ptr<Communicator> make_self_communicator();

/// Runs body(rank's communicator) on `ranks` threads and joins them. When one throws, the others leave their waits with
/// Error(io) "rank r stopped: …". After all threads ended, the exception of the lowest rank that failed by itself, not
/// through another, is rethrown as an Error "rank r: …" with its exit code.
void run_on_threads(int ranks, const std::function<void(Communicator&)>& body);

/// A copy of MPI_COMM_WORLD. Initialises MPI if the program runs under an MPI launcher, else returns nothing. Refuses
/// (Error config) a binary that another MPI's launcher started, where every rank would believe it is alone.
/// Without MPI in the build: comm_mpi_absent.cpp, which throws "built without MPI" under a launcher.
std::unique_ptr<Communicator> make_mpi_communicator();
/// The ranks of `host` again. Messages whose data are on `cuda` go through NCCL, each rank with the GPU that its thread works with
/// (kernels/device_queue.h), of which no two ranks may have the same; everything else goes through `host`, which must outlive it.
/// Collective over the ranks, as are the communicators that are split from it and their ends. A lost peer or an exchange that is
/// not done within `deadline` ends the program through host.abort. Without NCCL in the build: comm_nccl_absent.cpp, which throws.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host);
/// Finalises MPI if it was initialised. Called once, at the very end, by all ranks.
void finalize_mpi();

/// Seconds a rank waits for a message before it gives up (settable for tests; default 600).
void set_deadline(double seconds);
double deadline();

/// Bytes above which MPI and NCCL messages are split (settable for tests; default 1 GiB). The same on every rank.
void set_message_split(std::int64_t bytes);
std::int64_t message_split();

}  // namespace capstan::parallel
