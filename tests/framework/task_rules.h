#pragma once
// The rules of the tasks, written a second time and apart from their generators: each checker takes an example as words,
// says which of them an answer is, and adds test failures where a rule is broken.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan::tests {

using Words = std::vector<std::string>;
using Mask = std::vector<std::uint8_t>;

struct FlipflopFacts {
  std::int64_t pairs = 0, ignores = 0, writes = 0;  ///< ignores and writes: without the first and the last pair
  std::int64_t coins = 0, ones = 0;                 ///< free bits, and how many of them are 1
  Mask scored;
};

inline FlipflopFacts check_flipflop(const Words& words) {
  FlipflopFacts facts;
  facts.scored.assign(words.size(), 0);
  EXPECT_EQ(words.size() % 2, 0u);
  facts.pairs = std::ssize(words) / 2;
  std::string last_written = "?";
  for (std::int64_t pair = 0; pair < facts.pairs; ++pair) {
    const std::string &instruction = words[std::size_t(2 * pair)], &bit = words[std::size_t(2 * pair + 1)];
    EXPECT_TRUE(bit == "0" || bit == "1") << bit;
    EXPECT_TRUE(instruction == "w" || instruction == "i" || instruction == "r") << instruction;
    if (pair == 0) { EXPECT_EQ(instruction, "w"); }
    if (pair == facts.pairs - 1) { EXPECT_EQ(instruction, "r"); }
    if (pair > 0 && pair < facts.pairs - 1) {
      facts.ignores += instruction == "i";
      facts.writes += instruction == "w";
    }
    if (instruction == "r") {
      EXPECT_EQ(bit, last_written) << "pair " << pair;
      facts.scored[std::size_t(2 * pair + 1)] = 1;
      continue;
    }
    ++facts.coins;
    facts.ones += bit == "1";
    if (instruction == "w") last_written = bit;
  }
  return facts;
}

struct CopyFacts {
  std::int64_t kept = 0, blanks = 0;
  bool begins_blank = false;
  std::map<std::string, std::int64_t> symbols;
  Mask scored;
};

inline CopyFacts check_selective_copy(const Words& words) {
  CopyFacts facts;
  facts.scored.assign(words.size(), 0);
  Words kept;
  std::size_t at = 0;
  for (; at < words.size() && words[at] != "\t"; ++at) {
    if (words[at] == "B") {
      ++facts.blanks;
      facts.begins_blank |= at == 0;
    } else {
      EXPECT_TRUE(words[at].size() == 1 && words[at][0] >= 'A' && words[at][0] <= 'Q') << words[at];
      kept.push_back(words[at]);
      ++facts.symbols[words[at]];
    }
  }
  facts.kept = std::ssize(kept);
  EXPECT_EQ(Words(words.begin() + std::ptrdiff_t(at + 1), words.end()), kept);
  for (++at; at < words.size(); ++at) facts.scored[at] = 1;
  return facts;
}

struct CountingFacts {
  std::int64_t steps = 0, sets = 0, increments = 0, passes = 0, answer = 0;
  std::int64_t free_steps = 0, free_increments = 0;  ///< where no increment could be refused
  std::map<std::string, std::int64_t> values;        ///< at the end
  Mask scored;
};

inline CountingFacts check_counting(const Words& words) {
  CountingFacts facts;
  facts.scored.assign(words.size(), 0);
  std::size_t at = 0;
  for (; at < words.size() && words[at] != "print"; ++facts.steps) {
    const bool free = !facts.values.empty() && std::all_of(facts.values.begin(), facts.values.end(),
                                                           [](const auto& value) { return value.second < 10; });
    facts.free_steps += free;
    if (words[at] == "pass;") {
      ++facts.passes;
      ++at;
    } else if (words.at(at + 1) == "++;") {
      EXPECT_EQ(facts.values.count(words[at]), 1u) << words[at] << " is not there yet";
      EXPECT_LE(++facts.values[words[at]], 10);
      ++facts.increments;
      facts.free_increments += free;
      at += 2;
    } else {
      EXPECT_EQ(Words({words.at(at + 1), words.at(at + 2), words.at(at + 3)}), (Words{"=", "0", ";"}));
      facts.values[words[at]] = 0;
      ++facts.sets;
      at += 4;
    }
  }
  EXPECT_EQ(at + 3, words.size());
  const std::string& asked = words.at(at + 1);
  EXPECT_EQ(facts.values.count(asked), 1u) << asked;
  EXPECT_EQ(words.back(), std::to_string(facts.values[asked]));
  facts.answer = std::stol(words.back());
  facts.scored.back() = 1;
  return facts;
}

struct AdditionFacts {
  std::string a, b, c;  ///< least digit first
  Mask scored;
};

/// Of a number, least digit first.
inline std::uint64_t remainder_of(const std::string& number, std::uint64_t modulus) {
  std::uint64_t value = 0;
  for (std::size_t i = number.size(); i-- > 0;) value = (10 * value + std::uint64_t(number[i] - '0')) % modulus;
  return value;
}

inline AdditionFacts check_addition(const Words& words) {
  AdditionFacts facts;
  std::string text;
  for (const std::string& word : words) text += word;
  const std::size_t plus = text.find('+'), equal = text.find('=');
  EXPECT_TRUE(plus < equal && equal < text.size()) << text;
  facts.a = text.substr(0, plus);
  facts.b = text.substr(plus + 1, equal - plus - 1);
  facts.c = text.substr(equal + 1);
  for (const std::string* number : {&facts.a, &facts.b, &facts.c}) {
    EXPECT_EQ(number->find_first_not_of("0123456789"), std::string::npos) << text;
    EXPECT_FALSE(number->empty() || number->back() == '0') << text;
  }
  // Equal modulo 10 and four primes around 10^17: more than enough to tell two sums apart.
  for (const std::uint64_t modulus : {10ull, 99999999999999997ull, 100000000000000003ull, 100000000000000013ull})
    EXPECT_EQ((remainder_of(facts.a, modulus) + remainder_of(facts.b, modulus)) % modulus,
              remainder_of(facts.c, modulus))
        << text;
  facts.scored.assign(words.size(), 0);
  std::fill(facts.scored.begin() + std::ptrdiff_t(equal + 1), facts.scored.end(), std::uint8_t(1));
  return facts;
}

struct GroupFacts {
  std::int64_t length = 0;
  std::map<std::string, std::int64_t> elements;
  Mask scored;
};

/// Follows what stands where, instead of multiplying: a thing that stands at place p goes to the place that the
/// permutation's p-th image names.
inline GroupFacts check_word_problem(const Words& words, bool cyclic, bool each) {
  GroupFacts facts;
  facts.scored.assign(words.size(), 0);
  std::array<int, 5> place = {0, 1, 2, 3, 4};
  int residue = 0;
  const auto apply = [&](const std::string& element) {
    ++facts.length;
    ++facts.elements[element];
    if (cyclic) residue = (residue + std::stoi(element)) % 60;
    else
      for (int& where : place) where = element.at(std::size_t(where)) - '1';
  };
  const auto product = [&] {
    std::string images;
    for (const int where : place) images += char('1' + where);
    return cyclic ? std::to_string(residue) : images;
  };
  for (std::size_t at = 0; at < words.size(); ++at) {
    const bool answer = each ? at % 2 == 1 : at + 1 == words.size();
    facts.scored[at] = answer;
    if (answer) {
      EXPECT_EQ(words[at], product()) << "word " << at;
    } else if (!each && at + 2 == words.size()) {
      EXPECT_EQ(words[at], "=");
    } else apply(words[at]);
  }
  return facts;
}

}  // namespace capstan::tests
