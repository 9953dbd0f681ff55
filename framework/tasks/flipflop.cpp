// Flip-flop language FFL(p): Liu, Ash, Goel, Krishnamurthy, Zhang, "Exposing Attention Glitches with Flip-Flop Language
// Modeling" (arXiv 2306.00946, §3). A memory of one bit, written as pairs of instruction and bit without separators:
//
//   w0 i1 r0 …    w: write the bit;  i: ignore it;  r: read, and the bit is the one last written
//
// The first instruction is w, the last r; the others are drawn independently, i with probability p and w, r with
// (1 - p) / 2 each. Bits after w and i are fair coins. Scored: the bits after r.
// Sets: train and test p = 0.8; sparse 0.98 and dense 0.1 lie outside the training distribution. The CoPE paper (arXiv
// 2405.18719) reports test and sparse. Lengths are pairs; the papers have 256.

#include "framework/tasks/example.h"

namespace capstan::framework {
namespace {

double ignore_probability(const std::string& set) { return set == "sparse" ? 0.98 : set == "dense" ? 0.1 : 0.8; }

class FlipflopTask : public Task {
 public:
  explicit FlipflopTask(const TaskSettings& settings)
      : settings_(settings), ignore_(ignore_probability(settings.set)), tokenizer_(make_tokenizer(settings.tokenizer)) {
  }

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("flipflop", settings_, index);
    const std::int64_t pairs = draws.between(settings_.shortest, settings_.longest);
    ExampleWriter writer(*tokenizer_);
    std::int64_t memory = 0;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double u = draws.uniform();
      const std::int64_t coin = draws.below(2);
      const char instruction = pair == 0               ? 'w'
                               : pair == pairs - 1     ? 'r'
                               : u < ignore_           ? 'i'
                               : u < (1 + ignore_) / 2 ? 'w'
                                                       : 'r';
      const bool read = instruction == 'r';
      if (instruction == 'w') memory = coin;
      writer.write(std::string(1, instruction));
      writer.write(std::to_string(read ? memory : coin), read);
    }
    return writer.take();
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  TaskSettings settings_;
  double ignore_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_flipflop_task(const TaskSettings& settings) {
  return std::make_unique<FlipflopTask>(settings);
}

}  // namespace capstan::framework
