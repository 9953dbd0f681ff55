// Passkey retrieval as training data: the prompts of `eval passkey` with their answers. Length (tokens of prompt and answer),
// depth and key are drawn evenly for each example; only the answer counts. Its streams are older than ExampleDraws and stay:
// the shipped base was trained on these examples.

#include "framework/passkey.h"

#include "framework/random.h"
#include "framework/tasks/task.h"

namespace capstan::framework {
namespace {

class PasskeyTask : public Task {
 public:
  explicit PasskeyTask(const TaskSettings& settings)
      : settings_(settings), tokenizer_(make_tokenizer(settings.tokenizer)) {
    const PasskeyPrompt least = passkey_prompt(*tokenizer_, tokenizer_->bos(), {0, 0, largest_key});
    const std::int64_t tokens = std::ssize(least.ids) + std::ssize(least.expected);
    if (settings.shortest < tokens || settings.longest < settings.shortest)
      fail(ExitCode::usage,
           "--shortest {} --longest {}: a passkey example has at least {} tokens with {}, and --longest is not below "
           "--shortest",
           settings.shortest, settings.longest, tokens, tokenizer_->name());
  }

  TaskExample example(std::int64_t index) const override {
    const auto draw = [&](const char* what) {
      return random_uniform(settings_.seed, stream_of(what), std::uint64_t(index));
    };
    const std::int64_t lengths = settings_.longest - settings_.shortest + 1,
                       length = settings_.shortest + std::int64_t(draw("passkey length") * double(lengths));
    const auto key = std::int32_t(1 + std::int64_t(draw("passkey key") * double(largest_key)));
    const double depth = draw("passkey depth");
    const std::int64_t answer = std::ssize(passkey_prompt(*tokenizer_, tokenizer_->bos(), {0, 0, key}).expected);
    const PasskeyPrompt prompt = fitted_prompt(*tokenizer_, tokenizer_->bos(), length - answer, depth, key);
    TaskExample example{prompt.ids, std::vector<std::uint8_t>(prompt.ids.size(), 0)};
    example.ids.insert(example.ids.end(), prompt.expected.begin(), prompt.expected.end());
    example.loss_mask.resize(example.ids.size(), 1);
    return example;
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  TaskSettings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_passkey_task(const TaskSettings& settings) {
  return std::make_unique<PasskeyTask>(settings);
}

}  // namespace capstan::framework
