#include "launch/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "kernels/check.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

using Words = std::vector<std::string>;

Syntax sample() {
  Syntax syntax;
  syntax.command = "eval sample";
  syntax.summary = "Does nothing.";
  syntax.positionals = {{"RECIPE", "recipe file", true, false}, {"MORE", "more files", false, true}};
  syntax.options = {
      CommandOption::text("output", "", "FILE", "Where to.").needed(),
      CommandOption::text("note", "none", "", "Note."),
      CommandOption::integer("window", 512, 1, 4096, "tokens", "Window."),
      CommandOption::real("temperature", 1, -2, 2, "", "Temperature."),
      CommandOption::flag("json", false, "As JSON."),
      CommandOption::choice("convention", "once", {"once", "longlora"}, "Convention."),
  };
  syntax.sections = recipe_sections();
  return syntax;
}

Arguments parse(Words words) {
  words.insert(words.end(), {"--output", "o.h5"});
  return parse_arguments(sample(), words);
}

std::string refusal(const std::function<void()>& body, ExitCode code = ExitCode::usage) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string refused(const Words& words, ExitCode code = ExitCode::usage) {
  return refusal([&] { parse(words); }, code);
}

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(CommandLine, DefaultsHoldUntilGiven) {
  const Arguments arguments = parse({"r.cfg"});
  EXPECT_EQ(arguments.positional("RECIPE"), "r.cfg");
  EXPECT_EQ(arguments.positional("MORE"), "");
  EXPECT_EQ(arguments.integer("window"), 512);
  EXPECT_EQ(arguments.real("temperature"), 1);
  EXPECT_FALSE(arguments.flag("json"));
  EXPECT_EQ(arguments.text("convention"), "once");
  EXPECT_FALSE(arguments.given("window"));
  EXPECT_TRUE(arguments.given("output"));
}

TEST(CommandLine, TakesBothSpellingsAnywhere) {
  const Arguments arguments =
      parse({"--window", "7", "r.cfg", "--temperature=-0.5", "a b", "--convention", "longlora", "c", "--json"});
  EXPECT_EQ(arguments.integer("window"), 7);
  EXPECT_EQ(arguments.real("temperature"), -0.5);
  EXPECT_EQ(arguments.text("convention"), "longlora");
  EXPECT_TRUE(arguments.flag("json"));
  EXPECT_EQ(arguments.positionals("MORE"), (Words{"a b", "c"}));
  EXPECT_EQ(parse({"r", "--temperature", "-1"}).real("temperature"), -1);
}

TEST(CommandLine, FlagsHaveThreeSpellings) {
  for (const auto& [words, value] : std::vector<std::pair<Words, bool>>{{{"r", "--json"}, true},
                                                                        {{"r", "--no-json"}, false},
                                                                        {{"r", "--json=false"}, false},
                                                                        {{"--json", "r"}, true}}) {
    EXPECT_EQ(parse(words).flag("json"), value);
    EXPECT_TRUE(parse(words).given("json"));
  }
  framework::Recipe recipe;
  parse({"r", "--no-model.tied"}).apply_to(recipe);
  EXPECT_FALSE(recipe.model.tied);
  parse({"r", "--model.tied"}).apply_to(recipe);
  EXPECT_TRUE(recipe.model.tied);
}

TEST(CommandLine, ValuesMayBeEmptyOrBeginWithDashes) {
  for (const Words& words : {Words{"r", "--output", "o", "--note="}, Words{"r", "--output", "o", "--note", ""}}) {
    EXPECT_TRUE(parse_arguments(sample(), words).given("note"));
    EXPECT_EQ(parse_arguments(sample(), words).text("note"), "");
  }
  EXPECT_EQ(parse_arguments(sample(), {"r", "--output=--x"}).text("output"), "--x");
  EXPECT_EQ(parse_arguments(sample(), {"r", "--output=a=b"}).text("output"), "a=b");
}

TEST(CommandLine, RecipeOptionsWinOverTheRecipe) {
  framework::Recipe recipe;
  recipe.train.steps = 3;
  recipe.data.validation = "v.h5";
  const Arguments arguments = parse({"r", "--train.steps", "9", "--position.kind=rope+cope", "--data.validation="});
  arguments.apply_to(recipe);
  EXPECT_EQ(recipe.train.steps, 9);
  EXPECT_EQ(recipe.position.kind, "rope+cope");
  EXPECT_EQ(recipe.data.validation, "");
  EXPECT_EQ(arguments.recipe_options().size(), 3u);
}

TEST(CommandLine, NamesTheNearestOption) {
  EXPECT_EQ(refused({"r", "--windw", "3"}), "unknown option --windw of capstan eval sample; did you mean --window?");
  EXPECT_EQ(refused({"r", "--train.stepz=3"}),
            "unknown option --train.stepz of capstan eval sample; did you mean --train.steps?");
  EXPECT_EQ(refused({"r", "--steps", "3"}),
            "unknown option --steps of capstan eval sample; did you mean --train.steps?");
  EXPECT_EQ(refused({"r", "--xyzzyxyzzy"}),
            "unknown option --xyzzyxyzzy of capstan eval sample; capstan eval sample --help lists them");
  EXPECT_EQ(refused({"r", "-window", "3"}),
            "unknown option -window of capstan eval sample; did you mean --window? (a file of that name is ./-window)");
  EXPECT_EQ(refused({"r", "--wind", "3"}).substr(0, 21), "unknown option --wind");  // no abbreviations
  EXPECT_EQ(refused({"r", "--no-window"}).substr(0, 26), "unknown option --no-window");
  for (const char* odd : {"--=3", "---", "--", "-x", "--a.b.c"}) refused({"r", odd});
  Syntax plain = sample();
  plain.sections.clear();
  EXPECT_EQ(refusal([&] {
              parse_arguments(plain, {"r", "--output", "o", "--train.steps", "3"});
            }),
            "--train.steps has no meaning for capstan eval sample; it takes no options of recipes");
}

TEST(CommandLine, NamesWhatIsWrongWithAValue) {
  EXPECT_EQ(refused({"r", "--window", "0"}), "capstan eval sample: --window = 0 is not allowed; give 1 to 4096 tokens");
  EXPECT_EQ(refused({"r", "--convention=twice"}),
            "capstan eval sample: --convention = twice is not allowed; give once or longlora");
  EXPECT_EQ(refused({"r", "--json=maybe"}), "capstan eval sample: --json = maybe is not allowed; give true or false");
  EXPECT_EQ(refused({"r", "--train.steps", "many"}, ExitCode::config),
            "command line: train.steps = many is not allowed; give 0 to 1000000000 steps");
  EXPECT_EQ(refused({"r", "--window", "1", "--window=2"}), "--window is given twice; keep one of the two");
  EXPECT_EQ(refused({"r", "--json", "--no-json"}), "--json is given twice; keep one of the two");
  const std::string missing =
      "--window needs a value; write --window VALUE, or --window=VALUE if the value begins with --";
  EXPECT_EQ(refused({"r", "--window"}), missing);  // takes the --output behind it
  EXPECT_EQ(refusal([] { parse_arguments(sample(), {"r", "--window"}); }), missing);
  EXPECT_EQ(refusal([] { parse_arguments(sample(), {"r", "--window", "--json"}); }), missing);
}

TEST(CommandLine, NamesWhatIsMissingOrTooMuch) {
  EXPECT_EQ(refused({}), "capstan eval sample needs RECIPE (recipe file); capstan eval sample --help shows how");
  EXPECT_EQ(refusal([] { parse_arguments(sample(), {"r"}); }),
            "capstan eval sample needs --output FILE; capstan eval sample --help shows how");
  EXPECT_EQ(refused({""}), "capstan eval sample: RECIPE is empty; give a name");
  EXPECT_EQ(refusal([] {
              parse_arguments(sample(), {"r", "--output="});
            }),
            "capstan eval sample: --output is empty; give FILE");
  Syntax one = sample();
  one.positionals.pop_back();
  EXPECT_EQ(refusal([&] {
              parse_arguments(one, {"r", "s", "--output", "o"});
            }),
            "capstan eval sample has no place for s; capstan eval sample --help shows what it takes");
}

TEST(CommandLine, HelpNeedsNothingElse) {
  for (const char* word : {"--help", "-h"}) EXPECT_TRUE(parse_arguments(sample(), {word}).help());
  EXPECT_FALSE(parse({"r"}).help());
}

TEST(Help, ShowsDefaultRangeAndUnitOfEveryOption) {
  const std::string help = help_text(sample());
  for (const char* part :
       {"capstan eval sample RECIPE [MORE…] --output FILE [options] [--section.key value]…\nDoes nothing.\n",
        "Window. [1 to 4096 tokens; default 512]", "--output FILE           Where to. [required]",
        "--json, --no-json       As JSON. [default false]", "Convention. [once or longlora; default once]", "[train]\n",
        "--train.steps N", "[0 to 1000000000 steps; default 100]"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  framework::Recipe recipe;
  for (const auto& option : framework::options(recipe)) {
    const bool flag = std::holds_alternative<bool*>(option.value);
    EXPECT_NE(help.find("--" + option.name + (flag ? "," : " ")), std::string::npos) << option.name;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130u) << line;  // bytes; … has three
}

TEST(CommandLine, TakesRecipeOptionsOfItsSectionsOnly) {
  Syntax syntax = sample();
  syntax.sections = {"position", "grid"};
  syntax.over_model = true;
  const auto read = [&](const char* option) { return parse_arguments(syntax, {"r", "--output", "o", option}); };
  EXPECT_EQ(read("--position.theta=5").recipe_options().size(), 1u);
  EXPECT_EQ(
      refusal([&] { read("--train.steps=3"); }),
      "--train.steps has no meaning for capstan eval sample; of a recipe's options it takes --position.*, --grid.*");
  EXPECT_EQ(refusal([&] { read("--positon.theta=5"); }),
            "unknown option --positon.theta of capstan eval sample; did you mean --position.theta?");
  const std::string help = help_text(syntax);
  EXPECT_NE(help.find("each wins over the model's own, which is its default\n[position]\n"), std::string::npos) << help;
  EXPECT_NE(help.find("--grid.ring N"), std::string::npos) << help;
  EXPECT_EQ(help.find("--train.steps"), std::string::npos) << help;
  EXPECT_EQ(help.find("default rope"), std::string::npos) << help;
  syntax.sections = {"position"};
  EXPECT_NE(help_text(syntax).find("[options] [--position.key value]…\n"), std::string::npos);
}

TEST(Help, TheReferenceInDocsIsTheOneGenerated) {
  EXPECT_EQ(file_text(CAPSTAN_SOURCE_DIR "/docs/options.md"), options_reference())
      << "run: build/capstan help-options > docs/options.md";
}

TEST(Help, TheTableOfEncodingsInDocsAndReadmeIsTheOneGenerated) {
  EXPECT_EQ(file_text(CAPSTAN_SOURCE_DIR "/docs/encodings.md"), encodings_reference())
      << "run: build/capstan help-encodings > docs/encodings.md";
  EXPECT_NE(file_text(CAPSTAN_SOURCE_DIR "/README.md").find(encodings_table()), std::string::npos)
      << "the README's table differs; copy it from docs/encodings.md";
}

/// A small program of three commands; the last run is remembered.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() : world_(parallel::make_self_communicator()) {
    for (const char* name : {"train", "eval perplexity", "eval passkey"}) {
      Command command;
      command.syntax.command = name;
      command.syntax.summary = std::string("Runs ") + name + ".";
      command.syntax.options = {CommandOption::integer("window", 5, 1, 9, "tokens", "Window.")};
      command.run = [this, name](const Arguments& arguments, parallel::Communicator&) {
        ran_ = fmt::format("{} {}", name, arguments.integer("window"));
        return ExitCode::stopped;
      };
      all_.push_back(command);
    }
  }

  ExitCode run(const Words& words) { return run_program(all_, words, *world_); }
  std::string refused(const Words& words) {
    return refusal([&] { run(words); });
  }
  std::string printed(const Words& words) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run(words), ExitCode::done);
    return testing::internal::GetCapturedStdout();
  }

  std::unique_ptr<parallel::Communicator> world_;
  std::vector<Command> all_;
  std::string ran_;
};

TEST_F(ProgramTest, RunsTheCommandThatIsNamed) {
  EXPECT_EQ(run({"train", "--window", "3"}), ExitCode::stopped);
  EXPECT_EQ(ran_, "train 3");
  EXPECT_EQ(run({"eval", "passkey"}), ExitCode::stopped);
  EXPECT_EQ(ran_, "eval passkey 5");
}

TEST_F(ProgramTest, NamesTheNearestCommand) {
  EXPECT_EQ(refused({}), "capstan needs a subcommand; capstan --help lists them");
  EXPECT_EQ(refused({"trian"}), "unknown subcommand trian of capstan; did you mean capstan train?");
  EXPECT_EQ(refused({"evl", "passkey"}), "unknown subcommand evl of capstan; did you mean capstan eval?");
  EXPECT_EQ(refused({"xyzzyxyzzy"}), "unknown subcommand xyzzyxyzzy of capstan; capstan --help lists them");
  EXPECT_EQ(refused({"eval"}), "capstan eval needs to know what; capstan eval --help lists the choices");
  EXPECT_EQ(refused({"eval", "pass-key"}),
            "unknown subcommand pass-key of capstan eval; did you mean capstan eval passkey?");
  EXPECT_EQ(refused({"eval", "train"}), "unknown subcommand train of capstan eval; capstan eval --help lists them");
}

TEST_F(ProgramTest, PrintsHelpOnEveryLevel) {
  EXPECT_NE(printed({"--help"}).find("  eval perplexity   Runs eval perplexity.\n"), std::string::npos);
  const std::string group = printed({"eval", "--help"});
  EXPECT_NE(group.find("eval passkey"), std::string::npos);
  EXPECT_EQ(group.find("train"), std::string::npos);
  EXPECT_EQ(printed({"eval", "passkey", "--help"}).substr(0, 30), "capstan eval passkey [options]");
  EXPECT_EQ(printed({"--version"}).substr(0, 8), "capstan ");
  EXPECT_EQ(ran_, "");
}

TEST(Commands, AreNamedOnceAndDescribed) {
  Words names;
  for (const Command& command : commands()) {
    EXPECT_EQ(std::count(names.begin(), names.end(), command.syntax.command), 0) << command.syntax.command;
    names.push_back(command.syntax.command);
    EXPECT_EQ(command.syntax.summary.back(), '.');
    EXPECT_TRUE(command.run);
    EXPECT_FALSE(help_text(command.syntax).empty());
  }
}

}  // namespace
}  // namespace capstan::launch
