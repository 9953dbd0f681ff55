// Selective copying: Golovneva, Wang, Weston, Sukhbaatar, "Contextual Position Encoding" (arXiv 2405.18719), after Gu & Dao
// (arXiv 2312.00752): tokens with blanks strewn among them, then the tokens again without the blanks.
//
//   BOBABQ…<tab>OAQ…    B: a blank; A, C … Q: the 16 tokens to copy
//
// Sets by blanks: train and test have as many as tokens (256 and 256 in the paper), dense half as many, sparse twice as
// many. Lengths are tokens to copy. Scored: the copy. The paper leaves open, and we choose: the blank is a symbol beside
// the vocabulary of 16; tokens are drawn evenly, and every placing of the blanks among them is equally likely, so that
// the input may begin and end with blanks; a mark of its own, written as a tab, ends the input, and nothing ends the copy.

#include "framework/tasks/example.h"

namespace capstan::framework {
namespace {

constexpr char symbols[] = "ACDEFGHIJKLMNOPQ";

class SelectiveCopyTask : public Task {
 public:
  explicit SelectiveCopyTask(const TaskSettings& settings)
      : settings_(settings), tokenizer_(make_tokenizer(settings.tokenizer)) {}

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("selective_copy", settings_, index);
    std::int64_t tokens = draws.between(settings_.shortest, settings_.longest), blanks = blanks_beside(tokens);
    std::string input, copy;
    while (tokens + blanks > 0) {
      // The next one is blank with the share of blanks among those left: all placings are equally likely.
      if (draws.below(tokens + blanks) < blanks) {
        input += 'B';
        --blanks;
      } else {
        copy += symbols[draws.below(16)];
        input += copy.back();
        --tokens;
      }
    }
    ExampleWriter writer(*tokenizer_);
    writer.write(input + "\t");
    writer.write(copy, true);
    return writer.take();
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  std::int64_t blanks_beside(std::int64_t tokens) const {
    return settings_.set == "dense" ? tokens / 2 : settings_.set == "sparse" ? 2 * tokens : tokens;
  }

  TaskSettings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_selective_copy_task(const TaskSettings& settings) {
  return std::make_unique<SelectiveCopyTask>(settings);
}

}  // namespace capstan::framework
