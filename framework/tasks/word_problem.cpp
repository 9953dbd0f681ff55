// Word problems of groups: Merrill, Petty, Sabharwal, "The Illusion of State in State-Space Models" (arXiv 2404.08819).
// Elements of a group in a row; asked for is their product, left to right, that is the state after applying each in
// turn. S5 (all permutations of five things) and A5 (the even ones) need a depth that grows with the length, as far as
// is known (NC1-complete); Z60 (addition modulo 60) does not, at the size of A5.
//
//   --answers last    21345 13245 … 12354 = 31254    the product once, after "="
//   --answers each    21345 21345 13245 23145 …      after each element the product so far
//
// A permutation is written as the images of 1 … 5. The product x y applies x, then y: (x y)(i) = y(x(i)). Elements are
// drawn evenly. Lengths are elements, drawn evenly. Scored: the products.
// The paper labels every position with its product, and the labels are not read. In a text that is learned by its next
// token labels are read: with `each`, the product so far stands before the next element, and one multiplication
// suffices. So the task is `last`, whose even lengths ask for the product after every number of elements; `each` is its
// easy twin, with the state written out.

#include "framework/tasks/example.h"

namespace capstan::framework {
namespace {

using Permutation = std::string;  // images of 1 … 5

bool is_even(const Permutation& p) {
  int inversions = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    for (std::size_t j = i + 1; j < p.size(); ++j) inversions += p[i] > p[j];
  return inversions % 2 == 0;
}

std::string times(const Permutation& x, const Permutation& y) {
  Permutation product = x;
  for (char& image : product) image = y[std::size_t(image - '1')];
  return product;
}

/// Evenly: Fisher and Yates; an odd one becomes even by one exchange more, which pairs them off.
Permutation draw_permutation(ExampleDraws& draws, bool even) {
  Permutation p = "12345";
  for (std::size_t left = p.size(); left > 1; --left)
    std::swap(p[left - 1], p[std::size_t(draws.below(std::int64_t(left)))]);
  if (even && !is_even(p)) std::swap(p[0], p[1]);
  return p;
}

class WordProblemTask : public Task {
 public:
  explicit WordProblemTask(const TaskSettings& settings)
      : settings_(settings), tokenizer_(make_tokenizer(settings.tokenizer)) {
    if (settings_.group.empty()) settings_.group = "s5";
    if (settings_.answers.empty()) settings_.answers = "last";
    if (settings_.group != "s5" && settings_.group != "a5" && settings_.group != "z60")
      fail(ExitCode::usage, "--group {}: word_problem knows s5, a5 and z60", settings_.group);
    if (settings_.answers != "last" && settings_.answers != "each")
      fail(ExitCode::usage, "--answers {}: word_problem scores the last product or each", settings_.answers);
  }

  TaskExample example(std::int64_t index) const override {
    ExampleDraws draws("word_problem", settings_, index);
    const std::int64_t length = draws.between(settings_.shortest, settings_.longest);
    const bool each = settings_.answers == "each";
    ExampleWriter writer(*tokenizer_);
    std::string product = is_cyclic() ? "0" : "12345";
    for (std::int64_t i = 0; i < length; ++i) {
      const std::string element = draw_element(draws);
      product = multiplied(product, element);
      writer.write((i ? " " : "") + element);
      if (each) writer.write(" " + product, true);
    }
    if (!each) {
      writer.write(" =");
      writer.write(" " + product, true);
    }
    return writer.take();
  }

  const Tokenizer& tokenizer() const override { return *tokenizer_; }

 private:
  bool is_cyclic() const { return settings_.group == "z60"; }
  std::string draw_element(ExampleDraws& draws) const {
    return is_cyclic() ? std::to_string(draws.below(60)) : draw_permutation(draws, settings_.group == "a5");
  }
  std::string multiplied(const std::string& x, const std::string& y) const {
    return is_cyclic() ? std::to_string((std::stoi(x) + std::stoi(y)) % 60) : times(x, y);
  }

  TaskSettings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<Task> make_word_problem_task(const TaskSettings& settings) {
  return std::make_unique<WordProblemTask>(settings);
}

std::optional<std::vector<std::int64_t>> word_problem_cell(const std::string& text) {
  const std::size_t equal = text.find(" =");
  if (equal == std::string::npos) return {};
  std::int64_t spaces = 0;
  for (std::size_t i = 0; i < equal; ++i) spaces += text[i] == ' ';
  return std::vector<std::int64_t>{spaces + 1};
}

}  // namespace capstan::framework
