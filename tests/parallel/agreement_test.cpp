// Ranks that were started wrongly: with different inputs, or by a launcher that is not theirs.

#include "parallel/agreement.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "parallel/failure.h"
#include "tests/support/ranks.h"

namespace capstan::tests {
namespace {

using parallel::Communicator;
using parallel::Facts;

std::string disagreement(Communicator& world, const Facts& facts) {
  try {
    parallel::require_agreement(world, facts);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    return error.what();
  }
  return "";
}

TEST(Agreement, IsSilentWhenAllAgree) {
  for_rank_counts({1, 2, 3, 4, 8}, [](Communicator& world) {
    EXPECT_EQ(disagreement(world, {}), "");
    EXPECT_EQ(disagreement(world, {{"recipe hash", "12:ab"}, {"binary", ""}, {"text", "two\nlines"}}), "");
  });
}

TEST(Agreement, NamesTheFactAndBothRanks) {
  for_rank_counts({2, 3, 4, 8}, [](Communicator& world) {
    const std::string host = parallel::host_name();
    const bool last = world.rank() + 1 == world.size();
    EXPECT_EQ(disagreement(world, {{"binary", "abc"}, {"data file a.h5", last ? "77" : "76"}}),
              fmt::format("the ranks do not agree on data file a.h5: rank 0 ({}) has '76', rank {} ({}) has '77'; give "
                          "all ranks the same",
                          host, world.size() - 1, host));
    EXPECT_EQ(
        disagreement(world, last ? Facts{{"binary", "abc"}, {"more", "1"}} : Facts{{"binary", "abc"}}),
        fmt::format(
            "the ranks do not agree on more: rank 0 ({}) has nothing, rank {} ({}) has '1'; give all ranks the same",
            host, world.size() - 1, host));
  });
}

/// The launchers' variables, and nothing else, for the length of a test.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& given) {
    for (const char* name : names) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
    for (const auto& [name, value] : given) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : names) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* names[] = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",    "PMI_RANK",
                                          "MV2_COMM_WORLD_SIZE",  "MV2_COMM_WORLD_RANK",  "PMIX_RANK",   "SLURM_NTASKS",
                                          "SLURM_STEP_ID",        "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};
  std::map<std::string, std::string> before_;
};

TEST(Launcher, IsFoundInTheEnvironment) {
  const auto size_under = [](const std::map<std::string, std::string>& given) {
    const Environment environment(given);
    return parallel::find_launcher().size;
  };
  EXPECT_EQ(size_under({}), 0);
  EXPECT_EQ(size_under({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}}), 4);
  EXPECT_EQ(size_under({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}), 3);
  EXPECT_EQ(size_under({{"PMI_SIZE", "many"}}), 0);
  EXPECT_EQ(size_under({{"SLURM_NTASKS", "8"}}), 0) << "a batch script is no launcher";
  EXPECT_EQ(size_under({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}}), 8);
  EXPECT_EQ(
      size_under({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
      1)
      << "mpirun inside a Slurm step";
  EXPECT_EQ(size_under({{"PMIX_RANK", "2"}}), 3) << "at least";
}

TEST(Launcher, NoneMeansOneRankWithoutMpi) {
  if (under_mpi()) GTEST_SKIP() << "runs under a launcher";
  const Environment environment({});
  EXPECT_EQ(parallel::make_mpi_communicator(), nullptr);
  parallel::finalize_mpi();  // nothing to do
}

}  // namespace
}  // namespace capstan::tests
