// Attention over a million tokens, forward and backward, one layer, one head of 16, and the same at 65,536 and 262,144:
// seconds, memory, and sampled results against a direct computation (tests/support/long_attention.h). A markdown table.
//
//   bench_million [ENCODING…] [TOKENS…]             on 4 ranks that are threads
//   mpirun -n N bench_million [ENCODING…] [TOKENS…]
// ENCODING: cope, hierarchical_cope; both, if none is named. TOKENS: the three sizes above, if none is given.

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "parallel/failure.h"
#include "tests/support/long_attention.h"

namespace capstan::tests {
namespace {

using parallel::Communicator;

constexpr int thread_ranks = 4;
constexpr double hours = 3600;

bool within_bounds(const LongResult& result) {
  bool good = true;
  for (const std::vector<LongError>* errors : {&result.rows, &result.columns})
    for (const LongError& e : *errors) good = good && e.error <= e.bound;
  return good;
}

/// The error bars of every result, below the table.
std::string all_errors(const LongProblem& problem, const LongResult& result) {
  std::string text = fmt::format("- {} at {}:", name_of(problem.encoding), problem.tokens);
  for (const std::vector<LongError>* errors : {&result.rows, &result.columns})
    for (const LongError& e : *errors)
      text += fmt::format(" {} {:.2e} of {:.2e} ({} samples);", e.name, e.error, e.bound, e.samples);
  return text + fmt::format(" {:.1f} MiB resident.\n", double(result.resident_bytes) / (1 << 20));
}

/// Sizes in ascending order: peaks of memory are those of the process.
bool run_all(Communicator& comm, const std::vector<LongEncoding>& encodings, const std::vector<std::int64_t>& sizes) {
  const auto print = [&](const std::string& text) {
    if (comm.rank() == 0) fmt::print("{}", text);
    std::fflush(stdout);
  };
  bool good = true;
  std::string notes;
  print(long_table_head());
  for (const std::int64_t tokens : sizes)
    for (const LongEncoding encoding : encodings) {
      const LongProblem problem{encoding, tokens};
      const LongResult result = run_long_attention(comm, problem);
      print(long_table_row(problem, result));
      notes += all_errors(problem, result);
      good = good && within_bounds(result);
    }
  print("\n" + notes);
  return good;
}

}  // namespace
}  // namespace capstan::tests

int main(int count, char** arguments) {
  using namespace capstan;
  using tests::LongEncoding;
  std::vector<std::int64_t> sizes;
  std::vector<LongEncoding> encodings;
  for (const std::string& argument : std::vector<std::string>(arguments + 1, arguments + count)) {
    const std::size_t named = encodings.size();
    for (const LongEncoding one : {LongEncoding::cope, LongEncoding::hierarchical})
      if (argument == tests::name_of(one)) encodings.push_back(one);
    if (encodings.size() > named) continue;
    sizes.push_back(std::atoll(argument.c_str()));
    if (sizes.back() > 0) continue;
    fmt::print(stderr, "bench_million: {} is neither cope, hierarchical_cope nor a number of tokens\n", argument);
    return 2;
  }
  if (encodings.empty()) encodings = {LongEncoding::cope, LongEncoding::hierarchical};
  if (sizes.empty()) sizes = {65'536, 262'144, 1'048'576};
  parallel::set_deadline(tests::hours);
  bool good = true;
  const auto body = [&](parallel::Communicator& comm) {
    const bool mine = tests::run_all(comm, encodings, sizes);
    if (comm.rank() == 0) good = mine;
  };
  if (const auto world = parallel::make_mpi_communicator()) {
    parallel::run_guarded(*world, [&] { body(*world); });
    parallel::finalize_mpi();
  } else {
    parallel::run_on_threads(tests::thread_ranks, body);
  }
  return good ? 0 : 1;
}
