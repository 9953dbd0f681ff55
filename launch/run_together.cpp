#include "launch/run_together.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "parallel/failure.h"

namespace capstan::launch {
namespace {

/// How one rank came out of the body; `line` is empty if it did not fail.
struct Outcome {
  ExitCode code = ExitCode::done;
  std::string line;

  bool failed() const { return !line.empty(); }
  bool operator==(const Outcome& other) const = default;
  std::string packed() const { return fmt::format("{} {}", int(code), line); }
};

Outcome unpacked(const std::string& text) {
  int code = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  CAPSTAN_CHECK(error == std::errc() && *stop == ' ', "outcome of {} bytes", text.size());
  return {ExitCode(code), text.substr(std::size_t(stop - text.data()) + 1)};
}

Outcome attempt(const std::function<ExitCode()>& body) {
  try {
    return {body(), ""};
  } catch (...) {
    const Error error = parallel::current_error();
    const std::string line = error.what();
    return {error.code(), line.empty() ? "an error without text" : line};
  }
}

/// What all ranks say; a rank that succeeded waits for the others without limit: they may have hours of work left.
std::vector<Outcome> gather(parallel::Communicator& control, const Outcome& mine, double grace) {
  constexpr double without_limit = 1e9;
  const double before = parallel::deadline();
  parallel::set_deadline(mine.failed() ? grace : without_limit);
  std::vector<Outcome> all;
  for (const std::string& text : control.all_gather(mine.packed())) all.push_back(unpacked(text));
  parallel::set_deadline(before);
  return all;
}

/// The rank whose failure explains the others': one that did not merely lose touch with its peers, if there is one.
std::size_t root_cause(const std::vector<Outcome>& all) {
  std::size_t first = all.size();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].failed()) continue;
    if (all[rank].code != ExitCode::io) return rank;
    first = std::min(first, rank);
  }
  return first;
}

JointOutcome conclude(const std::vector<Outcome>& all) {
  const std::size_t cause = root_cause(all);
  if (cause == all.size()) {
    const auto later = [](const Outcome& a, const Outcome& b) { return int(a.code) < int(b.code); };
    return {std::max_element(all.begin(), all.end(), later)->code, "", 0, false};
  }
  const bool alike = std::all_of(all.begin(), all.end(), [&](const Outcome& one) { return one == all.front(); });
  return {all[cause].code, all[cause].line, int(cause), alike};
}

}  // namespace

JointOutcome run_jointly(parallel::Communicator& world, const std::function<ExitCode()>& body, double grace) {
  // Of its own, so that the messages of a collective that never came to its end are not taken for these.
  const auto control = world.split(0, world.rank());
  const Outcome mine = attempt(body);
  std::fflush(stdout);  // a launcher ends the other ranks when the first one leaves with a code that is not 0
  std::vector<Outcome> all;
  try {
    all = gather(*control, mine, grace);
  } catch (const Error& error) {
    if (mine.failed()) world.abort(mine.code, mine.line);
    world.abort(error.code(), error.what());
  }
  return conclude(all);
}

ExitCode run_together(parallel::Communicator& world, const std::function<ExitCode()>& body, double grace) {
  const JointOutcome outcome = run_jointly(world, body, grace);
  if (outcome.failed() && world.rank() == outcome.rank)
    parallel::print_failure(outcome.rank, outcome.alike ? 1 : world.size(), outcome.line);
  return outcome.code;
}

}  // namespace capstan::launch
