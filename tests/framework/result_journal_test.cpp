#include "framework/result_journal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/json.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

using capstan::testing::slurp;
using capstan::testing::TestFolder;

constexpr std::int64_t count = 11;

/// Numbers with all their digits, also those that JSON is said to lose; no subnormal, which threads that compute flush.
double value_of(std::int64_t number) {
  const double odd[] = {0.1, -0.0, 1e-300, std::numeric_limits<double>::max(), 4, 1 / 3.0};
  return number < 6 ? odd[number] : std::sqrt(double(number));
}
std::string text_of(std::int64_t number) { return nlohmann::json({value_of(number), "é\n"}).dump(); }

/// The items as made in one go.
std::vector<std::string> expected() {
  std::vector<std::string> items;
  for (std::int64_t i = 0; i < count; ++i) items.push_back(text_of(i));
  return items;
}

std::vector<std::string> collect_alone(const Journal& journal,
                                       const std::function<std::string(std::int64_t)>& make = text_of) {
  const auto self = parallel::make_self_communicator();
  return collect_items(parallel::make_process_grid(*self, 1), journal, count, make);
}

/// What one run alone leaves that fails at item `bad`.
void break_at(const Journal& journal, std::int64_t bad) {
  const auto make = [&](std::int64_t number) {
    if (number == bad) throw Error(ExitCode::io, "cut short");
    return text_of(number);
  };
  EXPECT_THROW(collect_alone(journal, make), Error);
}

/// The numbers that a run on this rank alone makes.
std::vector<std::int64_t> made_now(const Journal& journal) {
  std::vector<std::int64_t> made;
  const std::vector<std::string> items = collect_alone(journal, [&](std::int64_t number) {
    made.push_back(number);
    return text_of(number);
  });
  EXPECT_EQ(items, expected());
  return made;
}

TEST(ResultJournal, WithoutAFileItOnlyDealsOut) {
  tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    for (int ring = 1; ring <= world.size(); ++ring) {
      if (world.size() % ring != 0) continue;
      EXPECT_EQ(collect_items(parallel::make_process_grid(world, ring), {}, count, text_of), expected());
    }
  });
}

TEST(ResultJournal, GoesOnWhereItFailed) {
  const TestFolder folder;
  const Journal journal{folder / "r.part", "{\"a\":1}"};
  break_at(journal, 4);
  EXPECT_EQ(made_now(journal), (std::vector<std::int64_t>{4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(made_now(journal), std::vector<std::int64_t>{});
  const auto self = parallel::make_self_communicator();
  remove_journal(*self, journal);
  EXPECT_FALSE(std::filesystem::exists(journal.path));
  remove_journal(*self, journal);  // one that was never begun
}

TEST(ResultJournal, DoublesKeepEveryBit) {
  const TestFolder folder;
  const Journal journal{folder / "r.part", "{}"};
  collect_alone(journal);
  const std::vector<std::string> items = collect_alone(journal);
  for (std::int64_t i = 0; i < count; ++i) {
    const double got = nlohmann::json::parse(items[static_cast<std::size_t>(i)])[0].get<double>(), wanted = value_of(i);
    EXPECT_EQ(std::memcmp(&got, &wanted, sizeof got), 0) << got << " for " << wanted;
  }
}

TEST(ResultJournal, DropsALineThatIsCutOff) {
  const TestFolder folder;
  const Journal journal{folder / "r.part", "{\"a\":1}"};
  break_at(journal, 6);
  const std::string whole = slurp(journal.path);
  for (std::size_t cut = 1; cut < 12; ++cut) {
    folder.write("r.part", whole.substr(0, whole.size() - cut));
    const bool is_whole = cut == 1;  // only the line's end is missing
    EXPECT_EQ(made_now(journal).front(), is_whole ? 6 : 5) << cut;
    EXPECT_EQ(made_now(journal), std::vector<std::int64_t>{}) << "what was appended is not glued to the cut line";
  }
  folder.write("r.part", whole + std::string(40, '\0'));  // as a machine that lost its power may leave it
  EXPECT_EQ(made_now(journal).front(), 6);
}

TEST(ResultJournal, StartsOverForAnotherIdentity) {
  const TestFolder folder;
  break_at({folder / "r.part", "{\"window\":5}"}, 8);
  const Journal other{folder / "r.part", "{\"window\":512}"};
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(made_now(other).size(), std::size_t(count));
  const std::string said = ::testing::internal::GetCapturedStdout();
  capstan::testing::expect_parts(said, {"r.part", "another evaluation", "starting over"});
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_TRUE(slurp(other.path).starts_with("{\"window\":512}\n{\"number\":0,"));
}

TEST(ResultJournal, SaysHowMuchIsKnown) {
  const TestFolder folder;
  const Journal journal{folder / "r.part", "{}"};
  break_at(journal, 3);
  ::testing::internal::CaptureStdout();
  collect_alone(journal);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            fmt::format("going on: 3 of 11 items are known from {}\n", journal.path));
}

TEST(ResultJournal, AFailureAtOnceLeavesNoFile) {
  const TestFolder folder;
  const Journal journal{folder / "r.part", "{}"};
  break_at(journal, 0);
  EXPECT_FALSE(std::filesystem::exists(journal.path));
}

/// What a run on so many ranks leaves that fails at item `bad`. Not under mpirun, where a failing rank ends the program.
std::string left_by(int ranks, const Journal& journal, std::int64_t bad) {
  if (tests::under_mpi()) return "";
  const auto make = [&](std::int64_t number) {
    if (number == bad) throw Error(ExitCode::io, "cut short");
    return text_of(number);
  };
  const auto body = [&](parallel::Communicator& world) {
    collect_items(parallel::make_process_grid(world, 1), journal, count, make);
  };
  EXPECT_THROW(parallel::run_on_threads(ranks, body), Error);
  return slurp(journal.path);
}

TEST(ResultJournal, GoesOnOnOtherRankCounts) {
  constexpr std::int64_t bad = 9;  // after two rounds or more
  for (const int before : {1, 2, 3, 4}) {
    const TestFolder folder;
    const Journal journal{folder / "r.part", "{}"};
    const std::string left = left_by(before, journal, bad);
    // Whole rounds; of the last one, the other ranks may have known before rank 0 could note it.
    const std::int64_t known = left.empty() ? 0 : std::count(left.begin(), left.end(), '\n') - 1,
                       most = bad / before * before;
    EXPECT_TRUE(left.empty() || known == most || known == most - before) << known;
    tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
      for (int ring = 1; ring <= world.size(); ++ring) {
        if (world.size() % ring != 0) continue;
        if (world.rank() == 0 && left.empty()) remove_journal(world, journal);
        if (world.rank() == 0 && !left.empty()) folder.write("r.part", left);
        world.barrier();
        const auto grid = parallel::make_process_grid(world, ring);
        std::int64_t made = 0;
        const std::vector<std::string> items = collect_items(grid, journal, count, [&](std::int64_t number) {
          EXPECT_GE(number, known) << "was known";
          ++made;
          return text_of(number);
        });
        EXPECT_EQ(items, expected());
        EXPECT_EQ(grid.data->all_reduce(made), count - known);
        world.barrier();
      }
    });
  }
}

}  // namespace
}  // namespace capstan::framework
