// A task as a user meets it: made, learned, evaluated, exported and imported again.

#include "framework/json.h"
#include "framework/token_file.h"
#include "launch/command.h"
#include "tests/framework/test_folder.h"
#include "tests/launch/program.h"

namespace capstan::launch {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using capstan::testing::slurp;
using capstan::testing::TestFolder;

const std::string recipe =
    "[model]\nhidden_size = 16\nmlp_size = 24\nlayers = 1\nheads = 2\n[data]\ncontext = 32\ndocuments = separate\n"
    "[train]\nsteps = 2\nsequences = 2\ntile = 16\n";

TEST(TaskCommand, FromExamplesToAccuracy) {
  const TestFolder folder;
  folder.write("r.cfg", recipe);
  expect_parts(capstan({"task", "addition", "--longest", "3", "--context", "32", "--output", folder / "train.h5"}),
               {"examples 1000", "sample: "});
  expect_parts(capstan({"task", "addition", "--set", "grid", "--per-cell", "2", "--longest", "3", "--context", "32",
                        "--output", folder / "grid.h5"}),
               {"examples 18"});
  const framework::TokenFileInfo info = framework::TokenFile::open(folder / "grid.h5").info();
  EXPECT_EQ(info.task, "addition");
  EXPECT_EQ(info.set, "grid");
  EXPECT_EQ(info.tokenizer, "task:addition");
  EXPECT_EQ(info.end, std::vector<std::int32_t>{1});
  expect_parts(info.source, {"task addition", "set grid", "18 examples of 1 to 3", "per cell 2"});

  capstan({"train", folder / "r.cfg", "--data.train", folder / "train.h5", "--run", folder / "run"});
  const auto evaluate = [&](const std::string& model) {
    const std::string table =
        capstan({"eval", "task", "--model", model, "--data", (folder / "grid.h5") + "," + (folder / "train.h5"),
                 "--max-examples", "12", "--tile", "16", "--json", folder / "result.json"});
    expect_parts(table, {"addition, grid", "addition, train", "length_a (down)", "only the first"});
    return nlohmann::json::parse(slurp(folder / "result.json")).at("sets");
  };
  const auto sets = evaluate(folder / "run");
  EXPECT_EQ(sets.at(0).at("examples"), 12);
  EXPECT_EQ(sets.at(0).at("cells").size(), 6u);
  EXPECT_EQ(sets.at(0).at("complete"), false);
  expect_parts(capstan({"generate", "--model", folder / "run", "--prompt", "1+2=", "--tokens", "4"}), {"1+2="});

  // The word list goes along by its name.
  capstan({"export", folder / "run", "--output", folder / "hf"});
  EXPECT_EQ(slurp(folder / "hf/tokenizer"), "task:addition\n");
  capstan({"import", folder / "hf", "--output", folder / "again"});
  EXPECT_EQ(evaluate(folder / "again"), sets);
}

TEST(TaskCommand, RefusesWhatDoesNotFit) {
  const TestFolder folder;
  const auto refused = [&](ExitCode code, std::vector<std::string> words) {
    words.insert(words.end(), {"--output", folder / "x.h5"});
    return error_of(code, [&] { capstan(words); });
  };
  expect_parts(refused(ExitCode::usage, {"task", "addition", "--set", "grid", "--examples", "9"}),
               {"--examples 9", "40000"});
  expect_parts(refused(ExitCode::usage, {"task", "flipflop", "--set", "ood"}), {"--set ood", "sparse"});
  expect_parts(refused(ExitCode::usage, {"task", "flipflop", "--variables", "3"}), {"--variables 3", "flipflop"});
  expect_parts(refused(ExitCode::usage, {"task", "flipflop", "--context", "512"}), {"--context 512", "513 tokens"});
  EXPECT_FALSE(std::filesystem::exists(folder / "x.h5"));
}

TEST(TaskCommand, ADefaultFileHoldsEveryExample) {
  // Each task's own context takes the longest example of each of its sets, or nearly: counting's are drawn.
  const TestFolder folder;
  for (const char* task : {"passkey", "repeat", "flipflop", "selective_copy", "counting", "addition", "word_problem"})
    expect_parts(capstan({"task", task, "--examples", "20", "--output", folder / "t.h5"}), {"examples 20"});
  capstan({"task", "selective_copy", "--set", "sparse", "--examples", "2", "--output", folder / "t.h5"});
  capstan({"task", "counting", "--set", "pass10", "--variables", "5", "--output", folder / "t.h5"});
}

}  // namespace
}  // namespace capstan::launch
