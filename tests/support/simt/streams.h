#pragma once
// Streams that run lazily: what is queued runs when something waits for it, and several streams are interleaved as the order of
// the test wants it, within what stream order, events and meetings allow.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/simt/runtime_api.h"
#include "tests/support/simt/simt.h"

struct SimtStream;

namespace simt {

/// Everything that was queued on the stream up to its `count`-th operation.
struct Mark {
  std::shared_ptr<SimtStream> stream;
  std::uint64_t count = 0;
};

/// What an operation waits for that others queue, perhaps later than it: the other sides of its messages (nccl.cpp).
struct Meeting {
  std::vector<Mark> after;  // other sides that are queued
  int missing = 0;          // those that nobody has queued yet
  std::string text;         // who meets whom, for errors
};

struct Operation {
  std::function<cudaError_t()> run;
  std::vector<Mark> after;
  std::shared_ptr<const Meeting> meeting;  // or none
};

}  // namespace simt

struct SimtStream {
  std::deque<simt::Operation> queue;
  std::uint64_t queued = 0, done = 0;
  bool blocking = true;  // ordered with the default stream
  int device = 0;
};

struct SimtEvent {
  simt::Mark recorded;
  std::shared_ptr<double> time = std::make_shared<double>(0);  // in ms, once its record has run
};

namespace simt {

class Streams {
 public:
  Streams() { clear(); }

  cudaStream_t create(bool blocking, int device);
  /// nullptr: no such stream. A null handle is the default stream.
  std::shared_ptr<SimtStream> find(cudaStream_t handle) const;
  /// What is queued still runs.
  bool destroy(cudaStream_t handle);

  void queue(const std::shared_ptr<SimtStream>& stream, Operation operation);
  Mark mark(const std::shared_ptr<SimtStream>& stream) const { return {stream, stream->queued}; }
  static bool reached(const Mark& mark) { return !mark.stream || mark.stream->done >= mark.count; }
  /// Runs until the mark is reached, or until nothing can run before another thread queues more. The first error ends it.
  cudaError_t run_towards(const Mark& mark);
  /// The ends of a device's streams that have work.
  std::vector<Mark> ends(int device) const;
  /// Why the mark will never be reached, whoever queues what: meetings that wait for each other. Or empty.
  std::string deadlock(const Mark& mark) const;
  /// The meetings that wait for what nobody has queued.
  std::string missing() const;

  void set_order(const Order& order);
  const Order& order() const { return order_; }
  /// Drops what is queued; nobody need wait for it any more.
  void drop_queued();
  /// Drops the streams, too.
  void clear();

 private:
  static bool ready(const SimtStream& stream);
  static const Mark* first_unreached(const Operation& operation);
  static std::vector<SimtStream*> chain(const Mark& mark);
  static cudaError_t run_next(SimtStream& stream);
  SimtStream* next_towards(const Mark& mark);
  void forget_drained();

  std::vector<std::shared_ptr<SimtStream>> streams_;  // [0] is the default stream
  std::vector<std::shared_ptr<SimtStream>> handles_;  // those that the program has not destroyed
  Order order_;
  std::mt19937_64 random_;
};

}  // namespace simt
