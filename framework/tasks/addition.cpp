// Addition of whole numbers, all written least digit first: McLeish et al., "Transformers Can Do Arithmetic with the Right
// Embeddings" (arXiv 2405.17399), used by TAPE (arXiv 2501.00712, §4.1).
//
//   9+7=61<end>    91+2=12… reads 19 + 2 = 21
//
// Operands have no leading zeros (a number of n digits is drawn evenly from 10^(n-1) … 10^n - 1), and nothing is padded.
// Scored: everything after "=", with the end mark. Lengths are digits of an operand.
// Sets: train and test have every pair of lengths equally often, each once in every pass over the pairs, in an order of
// the pass's own. grid walks the pairs in order, --per-cell examples of each, for a map of accuracy by lengths; the paper
// has 100.

#include <algorithm>

#include "framework/dataset.h"  // permuted
#include "framework/tasks/example.h"

namespace capstan::framework {
namespace {

/// Least digit first, as all numbers here.
std::string draw_number(ExampleDraws& draws, std::int64_t digits) {
  std::string number;
  for (std::int64_t i = 1; i < digits; ++i) number += char('0' + draws.below(10));
  return number + char('1' + draws.below(9));
}

std::string sum_of(const std::string& a, const std::string& b) {
  std::string sum;
  int carry = 0;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const int digits = (i < a.size() ? a[i] - '0' : 0) + (i < b.size() ? b[i] - '0' : 0) + carry;
    sum += char('0' + digits % 10);
    carry = digits / 10;
  }
  return carry ? sum + '1' : sum;
}

class AdditionTask : public Task {
 public:
  explicit AdditionTask(const TaskSettings& settings)
      : settings_(settings), is_grid_(settings.set == "grid"), lengths_(settings.longest - settings.shortest + 1),
        tokenizer_(make_tokenizer(settings.tokenizer)) {
    if (!is_grid_ && settings.per_cell > 0)
      fail(ExitCode::usage, "--per-cell {}: set {} draws its pairs of lengths; leave it out, or ask for --set grid",
           settings.per_cell, settings.set);
    if (is_grid_ && settings.per_cell == 0) settings_.per_cell = 100;
  }

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("addition", settings_, index);
    const std::int64_t pair = pair_of(index);
    const std::string a = draw_number(draws, settings_.shortest + pair / lengths_),
                      b = draw_number(draws, settings_.shortest + pair % lengths_);
    ExampleWriter writer(*tokenizer_);
    writer.write(a + "+" + b + "=");
    writer.write(sum_of(a, b), true);
    writer.end(true);
    return writer.take();
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::int64_t examples() const override { return is_grid_ ? lengths_ * lengths_ * settings_.per_cell : 0; }
  bool ends_with_mark() const override { return true; }

 private:
  std::int64_t pair_of(std::int64_t index) const {
    const std::int64_t pairs = lengths_ * lengths_;
    if (is_grid_) return index / settings_.per_cell % pairs;
    const std::uint64_t pass = std::uint64_t(index / pairs);
    return permuted(index % pairs, pairs, settings_.seed, stream_of("addition pairs " + settings_.set) ^ pass);
  }

  TaskSettings settings_;
  bool is_grid_;
  std::int64_t lengths_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_addition_task(const TaskSettings& settings) {
  return std::make_unique<AdditionTask>(settings);
}

std::optional<std::vector<std::int64_t>> addition_cell(const std::string& text) {
  const std::size_t plus = text.find('+'), equal = text.find('=');
  if (plus == std::string::npos || equal == std::string::npos || equal < plus) return {};
  return std::vector<std::int64_t>{std::int64_t(plus), std::int64_t(equal - plus - 1)};
}

}  // namespace capstan::framework
