#pragma once
// Streams that run lazily: what is queued runs when something waits for it, and several streams are interleaved as the order of
// the test wants it, within what stream order and events allow.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
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

struct Operation {
  std::function<cudaError_t()> run;
  std::vector<Mark> after;
};

}  // namespace simt

struct SimtStream {
  std::deque<simt::Operation> queue;
  std::uint64_t queued = 0, done = 0;
  bool blocking = true;  // ordered with the default stream
};

struct SimtEvent {
  simt::Mark recorded;
  std::shared_ptr<double> time = std::make_shared<double>(0);  // in ms, once its record has run
};

namespace simt {

class Streams {
 public:
  Streams() { clear(); }

  cudaStream_t create(bool blocking);
  /// nullptr: no such stream. A null handle is the default stream.
  std::shared_ptr<SimtStream> find(cudaStream_t handle) const;
  /// What is queued still runs.
  bool destroy(cudaStream_t handle);

  void queue(const std::shared_ptr<SimtStream>& stream, std::function<cudaError_t()> run, std::vector<Mark> after = {});
  Mark mark(const std::shared_ptr<SimtStream>& stream) const { return {stream, stream->queued}; }
  static bool reached(const Mark& mark) { return !mark.stream || mark.stream->done >= mark.count; }
  /// Runs until the mark is reached; the first error ends it.
  cudaError_t wait(const Mark& mark);
  cudaError_t wait_for_all();

  void set_order(const Order& order);
  const Order& order() const { return order_; }
  /// Drops what is queued; nobody need wait for it any more.
  void drop_queued();
  /// Drops the streams, too.
  void clear();

 private:
  bool ready(const SimtStream& stream) const;
  cudaError_t run_next(SimtStream& stream);
  cudaError_t run_needed(const Mark& mark);
  cudaError_t run_others_first(const Mark& mark);
  cudaError_t run_some(const Mark& mark);

  std::vector<std::shared_ptr<SimtStream>> streams_;  // [0] is the default stream
  std::vector<std::shared_ptr<SimtStream>> handles_;  // those that the program has not destroyed
  Order order_;
  std::mt19937_64 random_;
};

}  // namespace simt
