#pragma once
// What the generators share: the draws of an example, and its tokens as they are written.

#include <string>
#include <vector>

#include "framework/random.h"
#include "framework/tasks/task.h"
#include "kernels/check.h"

namespace capstan::framework {

/// The draws of one example, in the order in which its generator asks for them: a pure function of (seed, task, set,
/// index), whatever other examples drew.
class ExampleDraws {
 public:
  ExampleDraws(const std::string& task, const TaskSettings& settings, std::int64_t index)
      : seed_(settings.seed), stream_(stream_of("task " + task + " set " + settings.set)),
        counter_(std::uint64_t(index) * most) {}

  std::int64_t below(std::int64_t bound) { return random_below(seed_, stream_, next(), bound); }  ///< [0, bound)
  std::int64_t between(std::int64_t least, std::int64_t greatest) { return least + below(greatest - least + 1); }
  double uniform() { return random_uniform(seed_, stream_, next()); }  ///< [0, 1)

 private:
  std::uint64_t next() {
    CAPSTAN_CHECK(drawn_ < most, "an example takes {} draws", drawn_);
    return counter_ + drawn_++;
  }

  static constexpr std::uint64_t most = std::uint64_t(1) << 28;  // for one example
  std::uint64_t seed_, stream_, counter_, drawn_ = 0;
};

/// An example that grows piece by piece. A piece is whole words of the tokenizer.
class ExampleWriter {
 public:
  explicit ExampleWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    if (tokenizer.bos() >= 0) add(tokenizer.bos(), false);
  }
  void write(const std::string& piece, bool scored = false) {
    for (const std::int32_t id : tokenizer_.encode(piece)) add(id, scored);
  }
  void end(bool scored) { add(tokenizer_.end().front(), scored); }
  TaskExample take() { return std::move(example_); }

 private:
  void add(std::int32_t id, bool scored) {
    example_.ids.push_back(id);
    example_.loss_mask.push_back(scored);
  }

  const Tokenizer& tokenizer_;
  TaskExample example_;
};

}  // namespace capstan::framework
