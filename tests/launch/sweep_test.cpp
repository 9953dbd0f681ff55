// capstan sweep as a user meets it, on one rank and on two, and its figures by hand.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "framework/json.h"
#include "framework/stop_request.h"
#include "launch/command.h"
#include "launch/sweep_results.h"
#include "tests/framework/test_folder.h"
#include "tests/launch/program.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;
using capstan::testing::error_of;
using capstan::testing::expect_parts;
using capstan::testing::slurp;
using capstan::testing::TestFolder;
using capstan::testing::WithoutTraps;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// A tiny recipe with its data, and sweeps by it.
class Sweep : public ::testing::Test {
 protected:
  Sweep() {
    capstan({"task", "addition", "--longest", "2", "--context", "32", "--examples", "200", "--output",
             folder / "train.h5"});
    for (const char* set : {"test", "grid"})
      capstan({"task", "addition", "--set", set, "--longest", "2", "--context", "32",
               set == std::string("grid") ? "--per-cell" : "--examples", "5", "--output",
               folder / (set + std::string(".h5"))});
    folder.write("r.cfg", "[model]\nhidden_size = 16\nmlp_size = 24\nlayers = 1\nheads = 2\n[data]\ntrain = " +
                              (folder / "train.h5") + "\nvalidation = " + (folder / "test.h5") +
                              "\ncontext = 32\ndocuments = separate\n[train]\nsteps = 2\nsequences = 2\ntile = 16\n");
  }

  std::string sets() const { return (folder / "test.h5") + "," + (folder / "grid.h5"); }
  Words words(const std::string& runs, const Words& more = {}) const {
    Words all = {"sweep", folder / "r.cfg", "--over",     "position.kind=rope,rope+cope", "--seeds",
                 "2",     "--runs",         folder / runs};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Json results(const std::string& runs) const { return Json::parse(slurp(folder / (runs + "/results.json"))); }

  /// On so many ranks; returns what rank 0 came to and keeps what was printed.
  ExitCode sweep(int ranks, const Words& all) {
    ExitCode code = ExitCode::internal;
    ::testing::internal::CaptureStdout();
    try {
      parallel::run_on_threads(ranks, [&](parallel::Communicator& world) {
        const ExitCode mine = run_program(commands(), all, world);
        if (world.rank() == 0) code = mine;
      });
    } catch (...) {
      printed = ::testing::internal::GetCapturedStdout();
      throw;
    }
    printed = ::testing::internal::GetCapturedStdout();
    return code;
  }

  TestFolder folder;
  std::string printed;
};

/// The runs without what differs from one sweep to the next.
Json figures(const Json& results) {
  Json runs = results.at("runs");
  for (Json& run : runs) run.erase("seconds");
  return runs;
}

void expect_near(const Json& a, const Json& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    Json one = a[i], other = b[i];
    for (const char* loss : {"loss", "validation_loss"}) {
      EXPECT_NEAR(one.at(loss).get<double>(), other.at(loss).get<double>(), 1e-6) << i << " " << loss;
      one.erase(loss);
      other.erase(loss);
    }
    EXPECT_EQ(one, other);
  }
}

TEST_F(Sweep, GivesTheSameFiguresOnAnyRanks) {
  EXPECT_EQ(sweep(1, words("one", {"--eval", sets()})), ExitCode::done);
  expect_parts(printed, {"sweep     4 of 4: ", "rope+cope-s2", "| position.kind | addition, test | addition, grid |",
                         "4 of 4 runs are done", "saved to "});
  const Json one = results("one");
  ASSERT_EQ(one.at("runs").size(), 4u);
  const Json& last = one.at("runs").at(3);
  EXPECT_EQ(last.at("name"), "rope+cope-s2");
  EXPECT_EQ(last.at("values").at("position.kind"), "rope+cope");
  EXPECT_EQ(last.at("seed"), 2);
  EXPECT_EQ(last.at("status"), "done");
  EXPECT_EQ(last.at("steps"), 2);
  EXPECT_EQ(last.at("tokens"), 2 * 2 * 32);
  EXPECT_EQ(last.at("sets").at(0).at("examples"), 5);
  EXPECT_EQ(last.at("sets").at(1).at("examples"), 20);
  EXPECT_GT(last.at("validation_loss").get<double>(), 0);
  EXPECT_NE(last.at("loss"), one.at("runs").at(2).at("loss")) << "seeds change something";
  expect_parts(slurp(folder / "one/rope-s2/config.cfg"), {"kind = rope\n", "\nseed = 2\n"});
  EXPECT_TRUE(fs::exists(folder / "one/rope-s1/eval/task.json"));

  EXPECT_EQ(sweep(2, words("two", {"--eval", sets()})), ExitCode::done);
  expect_near(figures(results("two")), figures(one));
  EXPECT_EQ(sweep(2, words("spread", {"--eval", sets(), "--spread"})), ExitCode::done);
  EXPECT_EQ(figures(results("spread")), figures(one));
  EXPECT_EQ(slurp(folder / "spread/results.md"), slurp(folder / "one/results.md"));
  expect_parts(printed, {"sweep     3 of 4: ", "4 of 4 runs are done"});
  EXPECT_EQ(printed.find("2 of 4: "), std::string::npos) << "rank 1 is quiet";
}

TEST_F(Sweep, ARerunTrainsNothingAgain) {
  sweep(1, words("runs", {"--eval", sets()}));
  const std::string before = slurp(folder / "runs/results.json");
  std::map<std::string, fs::file_time_type> times;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "runs"))
    if (entry.path().parent_path() != folder / "runs") times[entry.path()] = entry.last_write_time();
  EXPECT_EQ(sweep(1, words("runs", {"--eval", sets()})), ExitCode::done);
  expect_parts(printed, {"sweep     1 of 4: ", "rope-s1 is done"});
  EXPECT_EQ(printed.find("step "), std::string::npos) << printed;
  EXPECT_EQ(slurp(folder / "runs/results.json"), before);
  for (const auto& [path, time] : times) EXPECT_EQ(fs::last_write_time(path), time) << path;

  // More runs go beside them; other sets are evaluated, and nothing is trained.
  EXPECT_EQ(sweep(1, words("runs", {"--eval", folder / "grid.h5"})), ExitCode::done);
  EXPECT_EQ(printed.find("step 1/"), std::string::npos) << printed;
  EXPECT_EQ(results("runs").at("runs").at(0).at("sets").size(), 1u);
  // Another recipe is not what stands there.
  expect_parts(error_of(ExitCode::config,
                        [&] {
                          sweep(1, words("runs", {"--optimizer.lr", "0.5"}));
                        }),
               {"rope", "runs/rope-s1 was started with optimizer.lr", "another --run"});
  expect_parts(error_of(ExitCode::config,
                        [&] {
                          sweep(1, words("runs", {"--train.steps", "1"}));
                        }),
               {"runs/rope-s1 has been trained for 2 steps, train.steps = 1"});
}

TEST_F(Sweep, GoesOnWhereItWasStopped) {
  sweep(1, words("whole", {"--eval", sets()}));
  for (const int ranks : {1, 2}) {
    const std::string runs = fmt::format("stopped{}", ranks);
    int stops = 0;
    while (stops < 20 && sweep(ranks, words(runs, {"--eval", sets(), "--max-time", "1e-9"})) == ExitCode::stopped) {
      ++stops;
      expect_parts(printed, {"stopped: the same command goes on"});
      if (stops == 1) { EXPECT_EQ(results(runs).at("runs").at(0).at("status"), "waiting"); }
      if (stops == 2) { EXPECT_EQ(results(runs).at("runs").at(0).at("status"), "done"); }
    }
    EXPECT_EQ(stops, 7) << "a step at a time";
    if (ranks == 1) {
      EXPECT_EQ(figures(results(runs)), figures(results("whole")));
    } else {
      expect_near(figures(results(runs)), figures(results("whole")));
    }
  }
  fs::create_directories(folder / "file");
  folder.write("file/stop", "");
  EXPECT_EQ(sweep(2, words("file", {"--spread"})), ExitCode::stopped);
  for (const Json& run : figures(results("file"))) EXPECT_EQ(run.at("status"), "waiting");
  fs::remove(folder / "file/stop");
  EXPECT_EQ(sweep(2, words("file", {"--spread"})), ExitCode::done);
  expect_parts(printed, {"| position.kind | validation loss |", "(2) |"});
}

TEST_F(Sweep, AFailedRunIsAResult) {
  const WithoutTraps it_diverges;
  for (const bool spread : {false, true}) {
    const std::string runs = spread ? "spread" : "runs";
    Words all = {"sweep",
                 folder / "r.cfg",
                 "--over",
                 "optimizer.lr=1000,1e-3",
                 "--seeds",
                 "1",
                 "--runs",
                 folder / runs,
                 "--train.steps",
                 "50",
                 "--optimizer.weight_decay",
                 "100",
                 "--schedule.kind",
                 "constant"};
    if (spread) all.push_back("--spread");
    expect_parts(error_of(ExitCode::internal, [&] { sweep(2, all); }), {"1 of 2 runs failed (1000-s1)", "results.md"});
    const Json all_runs = results(runs).at("runs"), failed = all_runs.at(0);
    EXPECT_EQ(failed.at("status"), "failed");
    expect_parts(failed.at("reason").get<std::string>(), {"nothing was updated", "optimizer.lr"});
    EXPECT_EQ(all_runs.at(1).at("status"), "done");
    expect_parts(slurp(folder / (runs + "/results.md")), {"| 1000 | - |", "(1) |", "- failed: 1000-s1: "});
  }
}

TEST_F(Sweep, AnErrorOfOneRankComesAfterTheOthersWork) {
  fs::create_directories(folder / "runs/rope-s2");
  const int held = open(folder.write("runs/rope-s2/lock", "").c_str(), O_RDWR);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  const Words all = words("runs", {"--spread"});
  expect_parts(error_of(ExitCode::config, [&] { sweep(2, all); }), {"rope-s2: ", "another run is writing here"});
  Words states;
  for (const Json& run : figures(results("runs"))) states.push_back(run.at("status"));
  EXPECT_EQ(states, (Words{"done", "waiting", "done", "waiting"}));
  close(held);
  EXPECT_EQ(sweep(2, all), ExitCode::done);
}

TEST_F(Sweep, RefusesWhatCannotBeBeforeItTrains) {
  const auto refused = [&](ExitCode code, const Words& more) {
    Words all = {"sweep", folder / "r.cfg", "--runs", folder / "none"};
    all.insert(all.end(), more.begin(), more.end());
    return error_of(code, [&] { capstan(all); });
  };
  const Words kinds = {"--over", "position.kind=rope,cope"};
  const auto over = [&](const Words& more) {
    Words all = kinds;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_parts(refused(ExitCode::usage, {}), {"needs --over KEY=V,…"});
  for (const char* text : {"position.kind", "=rope", "position.kind=", "position.kind=rope,,cope"})
    expect_parts(refused(ExitCode::usage, {"--over", text}), {"is not KEY=V,…", "--over position.kind=rope,cope"});
  expect_parts(refused(ExitCode::usage, {"--over", "positon.kind=rope"}),
               {"unknown key positon.kind", "position.kind?"});
  expect_parts(refused(ExitCode::config, {"--over", "position.kind=rope,coop"}), {"position.kind = coop", "give none"});
  expect_parts(refused(ExitCode::usage, over({"--over", "position.kind=tape"})),
               {"--over position.kind is given twice"});
  expect_parts(refused(ExitCode::usage, {"--over", "optimizer.lr=1e-3,0.001"}), {"the value 0.001 twice"});
  expect_parts(refused(ExitCode::usage, over({"--position.kind", "rope"})), {"position.kind is given by --over and"});
  expect_parts(refused(ExitCode::usage, {"--over", "train.seed=1,2"}), {"--seeds N"});
  expect_parts(refused(ExitCode::usage, over({"--data.seed", "3"})), {"--data.seed", "leave it out"});
  expect_parts(refused(ExitCode::usage, over({"--seeds", "0"})), {"--seeds = 0 is not allowed; give 1 to 1000"});
  expect_parts(refused(ExitCode::usage, over({"--eval="})), {"--eval is empty"});
  expect_parts(refused(ExitCode::usage, over({"--eval", sets() + "," + (folder / "test.h5")})), {"test.h5 twice"});
  expect_parts(refused(ExitCode::io, over({"--eval", folder / "absent.h5"})), {"absent.h5"});
  expect_parts(refused(ExitCode::config, over({"--data.validation="})), {"data.validation", "--eval"});
  expect_parts(refused(ExitCode::config, {"--over", "model.heads=2,3"}), {"3: ", "heads"});
  expect_parts(refused(ExitCode::config, {"--over", "train.frozen=lm_head,*"}),
               {"train.frozen = *", "nothing to train"});
  expect_parts(refused(ExitCode::config, over({"--grid.schedule", "zigzag"})), {"cope: ", "ordered_pull"});
  capstan(
      {"task", "counting", "--longest", "9", "--context", "64", "--examples", "9", "--output", folder / "other.h5"});
  expect_parts(refused(ExitCode::bad_data, over({"--eval", folder / "other.h5"})), {"task:counting", "task:addition"});
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST(SweepFigures, MeanAndDeviationByHand) {
  EXPECT_EQ(summary_of(std::vector<double>{}).n, 0);
  EXPECT_EQ(text_of(summary_of(std::vector<double>{}), 1, 2), "-");
  EXPECT_EQ(text_of(summary_of({0.938}), 100, 2), "93.80 (1)");
  // 0.5, 0.7, 0.9: mean 0.7; squares 0.04 + 0 + 0.04 = 0.08, over 2 = 0.04, sd 0.2.
  const Summary three = summary_of({0.5, 0.7, 0.9});
  EXPECT_EQ(three.n, 3);
  EXPECT_NEAR(three.mean, 0.7, 1e-15);
  EXPECT_NEAR(*three.sd, 0.2, 1e-15);
  EXPECT_EQ(text_of(three, 100, 1), "70.0 ± 20.0 (3)");
  // 2, 4, 4, 4, 5, 5, 7, 9: mean 5; squares 32 over 7.
  EXPECT_EQ(text_of(summary_of({2, 4, 4, 4, 5, 5, 7, 9}), 1, 4), "5.0000 ± 2.1381 (8)");
}

TEST(SweepFigures, TheTableByHand) {
  SweepPlan plan;
  plan.recipe = "r.cfg";
  plan.axes = {{"position.kind", {"rope", "a|b"}}};
  plan.seeds = 2;
  plan.sets = {{"t.h5", "addition", "test", "", "", ""}, {"x.h5", "", "", "", "", ""}};
  for (const char* value : {"rope", "a|b"})
    for (const int seed : {1, 2}) plan.runs.push_back({fmt::format("{}-s{}", value, seed), {value}, seed, {}});
  const auto result = [](double first, double second) {
    RunResult one;
    one.sets = {{"t.h5", "addition", "test", "", 4, 0, first}, {"x.h5", "", "", "", 4, 0, second}};
    return one;
  };
  RunResult failed;
  failed.failure = "step 3: no";
  const std::string text = sweep_table(plan, {result(0.25, 1), result(0.75, 1), failed, std::nullopt});
  EXPECT_EQ(text.substr(text.find("\n\n") + 2),
            "| position.kind | addition, test | x.h5 |\n|---|---|---|\n"
            "| rope | 50.00 ± 35.36 (2) | 100.00 ± 0.00 (2) |\n| a\\|b | - | - |\n\n- failed: a|b-s1: step 3: no\n");
  expect_parts(text, {"Sweep of r.cfg: accuracy in %", "2 of 4 runs are done"});
}

TEST(SweepNames, AreSafeAndReadable) {
  for (const char* value : {"rope", "rope+cope", "1e-3", "true", "0.5", "per_head"}) EXPECT_EQ(safe_name(value), value);
  for (const char* value : {"a/b", "..", ".x", "", "a b", "a,b", "ä"}) {
    const std::string name = safe_name(value);
    EXPECT_EQ(name.find_first_of("/ ,"), std::string::npos) << name;
    EXPECT_EQ(name[0], '_') << name;
  }
  EXPECT_NE(safe_name("a/b"), safe_name("a b"));
  EXPECT_NE(safe_name(std::string(100, 'a') + "1"), safe_name(std::string(100, 'a') + "2"));
}

TEST(SweepStop, ASignalBetweenTwoRunsIsNotForgotten) {
  const TestFolder folder;
  const auto alone = parallel::make_self_communicator();
  {
    framework::StopRequest whole(folder.path(), 0);
    EXPECT_EQ(whole.reason(*alone), "");
    std::raise(SIGUSR1);
    framework::StopRequest next_run(folder.path(), 0);
    EXPECT_EQ(whole.reason(*alone), "a signal asked for it");
    EXPECT_EQ(next_run.reason(*alone), "a signal asked for it");
  }
  EXPECT_EQ(framework::StopRequest(folder.path(), 0).reason(*alone), "");
}

}  // namespace
}  // namespace capstan::launch
