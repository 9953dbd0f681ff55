// Counting: Golovneva et al., "Contextual Position Encoding" (arXiv 2405.18719), as its released generator makes it. A
// program of steps, then a question for the value of one of its variables:
//
//   pass; pass; b = 0 ; pass; b ++; print b 1
//
// Steps are drawn with weights set 1, increment 7, pass 50: a set picks any variable and makes it 0; an increment picks
// one that exists, and the step is drawn again where none exists or the value is 10 already. The question picks a
// variable that exists. Scored: the answer, 0 … 10.
// Sets by the weight of pass: train and test 50, pass100 and pass10 outside the training distribution. Lengths are steps,
// drawn evenly; the paper has 3 to 512 (a step takes 1, 2 or 4 tokens) and cuts long programs at the left, while here
// examples are whole. We choose: a program in which nothing was ever set is drawn again, with the same number of steps.

#include <map>

#include "framework/tasks/example.h"

namespace capstan::framework {
namespace {

constexpr std::int64_t set_weight = 1, increment_weight = 7, largest_value = 10;

std::int64_t pass_weight(const std::string& set) { return set == "pass100" ? 100 : set == "pass10" ? 10 : 50; }

struct Program {
  std::string text;
  std::map<std::string, std::int64_t> values;  ///< of the variables that exist
};

class CountingTask : public Task {
 public:
  explicit CountingTask(const TaskSettings& settings)
      : settings_(settings), pass_(pass_weight(settings.set)), tokenizer_(make_tokenizer(settings.tokenizer)) {
    if (settings.variables != 1 && settings.variables != 3 && settings.variables != 5)
      fail(ExitCode::usage, "--variables {}: counting has programs of 1, 3 or 5 variables", settings.variables);
  }

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("counting", settings_, index);
    const std::int64_t steps = draws.between(settings_.shortest, settings_.longest);
    Program program = draw_program(draws, steps);
    while (program.values.empty()) program = draw_program(draws, steps);
    const auto& [variable, value] = *picked(draws, program);
    ExampleWriter writer(*tokenizer_);
    writer.write(program.text + "print " + variable);
    writer.write(" " + std::to_string(value), true);
    return writer.take();
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  static std::map<std::string, std::int64_t>::iterator picked(ExampleDraws& draws, Program& program) {
    return std::next(program.values.begin(), draws.below(std::ssize(program.values)));
  }

  Program draw_program(ExampleDraws& draws, std::int64_t steps) const {
    Program program;
    while (steps > 0)
      if (add_step(draws, program)) --steps;
    return program;
  }

  /// False for an increment that cannot be.
  bool add_step(ExampleDraws& draws, Program& program) const {
    const std::int64_t which = draws.below(set_weight + increment_weight + pass_);
    if (which < set_weight) {
      const std::string variable(1, char('a' + draws.below(settings_.variables)));
      program.values[variable] = 0;
      program.text += variable + " = 0 ; ";
    } else if (which < set_weight + increment_weight) {
      if (program.values.empty()) return false;
      const auto found = picked(draws, program);
      if (found->second == largest_value) return false;
      ++found->second;
      program.text += found->first + " ++; ";
    } else {
      program.text += "pass; ";
    }
    return true;
  }

  TaskSettings settings_;
  std::int64_t pass_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_counting_task(const TaskSettings& settings) {
  return std::make_unique<CountingTask>(settings);
}

}  // namespace capstan::framework
