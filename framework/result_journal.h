#pragma once
// Results that survive the program's death: items [0, count), each made once and noted in a file, so that the same command goes
// on where it was when it was killed.
//
// The file is text. Its first line is the identity, then comes one line of JSON per item; a last line that is cut off counts for
// nothing:
//
//   {"evaluation":"perplexity","model":"77b3…","window":512}
//   {"number":0,"value":[12.5,3.25]}
//   {"number":1,"value":[11.0,4.5]}

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/process_grid.h"

namespace capstan::framework {

struct Journal {
  std::string path;      ///< empty: no file
  std::string identity;  ///< one line of JSON: all that an item's value depends on, and nothing else (no rank counts)
};

/// The JSON texts of items [0, count), in order, the same on every rank. Items that the file does not know are dealt out over the
/// data ranks by their place among the missing ones, one per data rank and round; after each round they are noted (world rank 0
/// alone reads and writes). `make(number)`: one line of JSON, called by all ranks of a ring alike and giving the same text there.
/// A file of another identity is started over. Both that and going on are said in a line on stdout. Called by all ranks. Errors:
/// io, and those of make; what is noted stays.
std::vector<std::string> collect_items(const parallel::ProcessGrid& grid, const Journal& journal, std::int64_t count,
                                       const std::function<std::string(std::int64_t number)>& make);

/// Removes the file, when the results stand elsewhere. World rank 0 does it; others just return.
void remove_journal(const parallel::Communicator& world, const Journal& journal);

}  // namespace capstan::framework
