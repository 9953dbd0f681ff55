// Repetition: random tokens, then the same again. Every token of the second copy but its first can be known only by
// finding the first copy, so attention learns to look a sequence up (induction heads: Olsson et al., arXiv 2209.11895) in
// few steps. A first stage for models that have to retrieve. Lengths: tokens of the whole example without BOS.

#include "framework/tasks/example.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

class RepeatTask : public Task {
 public:
  explicit RepeatTask(const TaskSettings& settings)
      : settings_(settings), tokenizer_(make_tokenizer(settings.tokenizer)) {
    if (settings.shortest < 4 || settings.longest < settings.shortest)
      fail(ExitCode::usage,
           "--shortest {} --longest {}: a repeat example has at least 4 tokens, and --longest is not below --shortest",
           settings.shortest, settings.longest);
  }

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("repeat", settings_, index);
    const std::int64_t half = draws.between(settings_.shortest, settings_.longest) / 2;
    TaskExample example;
    if (tokenizer_->bos() >= 0) example.ids.push_back(tokenizer_->bos());
    const std::size_t first = example.ids.size();
    for (std::int64_t i = 0; i < half; ++i) example.ids.push_back(std::int32_t(draws.below(tokenizer_->vocabulary())));
    example.loss_mask.assign(first + std::size_t(half) + 1, 0);
    for (std::int64_t i = 0; i < half; ++i) example.ids.push_back(example.ids[first + std::size_t(i)]);
    example.loss_mask.resize(example.ids.size(), 1);
    return example;
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  TaskSettings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_repeat_task(const TaskSettings& settings) { return std::make_unique<RepeatTask>(settings); }

}  // namespace capstan::framework
