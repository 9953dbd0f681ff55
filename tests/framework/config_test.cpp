#include "framework/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "kernels/check.h"

namespace capstan::framework {
namespace {

/// A recipe file that goes away with the test.
class RecipeFile {
 public:
  explicit RecipeFile(const std::string& text) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("capstan-config-{}-{}.cfg", getpid(), count++);
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~RecipeFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

Recipe read_text(const std::string& text) {
  Recipe recipe;
  read_recipe(recipe, RecipeFile(text).path());
  return recipe;
}

std::string refusal(const std::function<void()>& body, ExitCode code = ExitCode::config) {
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

/// The error line without the folder of the file.
std::string reading_refused(const std::string& text) {
  const RecipeFile file(text);
  Recipe recipe;
  const std::string line = refusal([&] { read_recipe(recipe, file.path()); });
  EXPECT_EQ(line.compare(0, file.path().size(), file.path()), 0) << line;
  return line.substr(std::min(file.path().size(), line.size()));
}

void expect_same(const Recipe& a, const Recipe& b) {
  Recipe first = a, second = b;
  const auto left = options(first), right = options(second);
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (const auto* number = std::get_if<double*>(&left[i].value)) {
      const double other = *std::get<double*>(right[i].value);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(**number), std::bit_cast<std::uint64_t>(other)) << left[i].name;
    }
    EXPECT_EQ(left[i].text(), right[i].text()) << left[i].name;
  }
}

void set_random(const Option& option, std::mt19937_64& random) {
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  if (!option.choices.empty()) return option.set(option.choices[random() % option.choices.size()], "test");
  if (auto* const* flag = std::get_if<bool*>(&option.value)) **flag = random() % 2 == 0;
  if (auto* const* number = std::get_if<double*>(&option.value))  // all magnitudes
    **number = std::clamp(std::exp(uniform(-60, 30)), option.least, option.most);
  if (auto* const* number = std::get_if<std::int64_t*>(&option.value))
    **number =
        std::uniform_int_distribution<std::int64_t>(std::int64_t(option.least), std::int64_t(option.most))(random);
  if (auto* const* text = std::get_if<std::string*>(&option.value)) {
    const std::string letters = "ab #\"\\=[],;ü'$";
    (*text)->clear();
    for (std::size_t length = random() % 12; length > 0; --length) **text += letters[random() % letters.size()];
  }
}

TEST(Options, EachIsNamedOnceDescribedAndWithinItsRange) {
  Recipe recipe;
  std::set<std::string> names;
  for (const Option& option : options(recipe)) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_EQ(std::count(option.name.begin(), option.name.end(), '.'), 1) << option.name;
    EXPECT_TRUE(!option.help.empty() && option.help.back() == '.') << option.name;
    EXPECT_NO_THROW(option.set(option.text(), "default")) << option.name;
    const bool number =
        std::holds_alternative<double*>(option.value) || std::holds_alternative<std::int64_t*>(option.value);
    if (number) { EXPECT_LT(option.least, option.most) << option.name; }
  }
  EXPECT_NO_THROW(check_recipe(recipe, "default"));
}

TEST(Options, CoverEveryFieldOfTheRecipe) {
  // Bytes of the bound fields against bytes of the structs: a field without an option makes a gap. Padding is under 8 bytes
  // per flag, and no flag can hide in it: flags that stand alone are padded by 7.
  Recipe recipe;
  std::size_t bytes = 0, flags = 0;
  for (const Option& option : options(recipe)) {
    bytes += std::visit([](const auto* held) { return sizeof *held; }, option.value);
    flags += std::holds_alternative<bool*>(option.value);
  }
  EXPECT_LT(sizeof recipe - bytes, 8 * flags);
  EXPECT_EQ((sizeof recipe - bytes) % 8, (8 - flags % 8) % 8);  // so one more flag would show
}

TEST(Options, OnlyLimitsIntervalsAndTheGridMayChange) {
  Recipe recipe;
  std::set<std::string> names;
  for (const Option& option : options(recipe))
    if (option.may_change) names.insert(option.name);
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint.every", "checkpoint.keep", "grid.heads", "grid.ring",
                                          "grid.schedule", "grid.threads", "train.max_time", "train.steps",
                                          "train.validate_every", "train.validate_sequences"}));
}

TEST(Options, RefuseWhatIsNoValueOfTheirs) {
  Recipe recipe;
  const auto set = [&](const std::string& name, const std::string& text) {
    for (const Option& option : options(recipe))
      if (option.name == name) option.set(text, "here");
  };
  for (const char* bad : {"", "x", "5x", "0", "4097", "-1", "1e3", "99999999999999999999", " 5", "5.0", "\"5\""})
    EXPECT_EQ(refusal([&] { set("model.layers", bad); }),
              fmt::format("here: model.layers = {} is not allowed; give 1 to 4096 layers", *bad ? bad : "empty"));
  for (const char* bad : {"", "nan", "inf", "-1", "1e400", "1,0", "0x1"}) refusal([&] { set("schedule.final", bad); });
  for (const char* bad : {"", "yes", "1", "True"})
    EXPECT_NE(refusal([&] { set("model.tied", bad); }).find("give true or false"), std::string::npos);
  EXPECT_EQ(
      refusal([&] { set("position.kind", "rpoe"); }),
      "here: position.kind = rpoe is not allowed; give none, sinusoidal, learned, rope, xpos, randomized, relative, "
      "alibi, t5, fire, cope, hierarchical_cope, forget or tape, or several joined by +");
  for (const char* bad : {"rope+", "+rope", "rope++cope", "rope+cpoe", ""}) refusal([&] { set("position.kind", bad); });
  EXPECT_EQ(refusal([&] { set("train.tile", "8"); }),
            "here: train.tile = 8 is not allowed; give 1, 4, 16 or 64 tokens");
  EXPECT_EQ(refusal([&] { set("model.norm", "before"); }),
            "here: model.norm = before is not allowed; give pre or post");
  EXPECT_EQ(refusal([&] { set("model.bias", "qkv"); }),
            "here: model.bias = qkv is not allowed; give false, true, attention or mlp");
  EXPECT_EQ(refusal([&] { set("model.mlp", "relu"); }),
            "here: model.mlp = relu is not allowed; give swiglu, geglu or gelu");
  for (const char* bad : {"a\nb", "\"open", "\"a\"b", "\"a\\"}) refusal([&] { set("data.train", bad); });
  expect_same(recipe, Recipe());  // a refusal changes nothing
}

TEST(Recipes, DefaultsSurviveARoundTrip) { expect_same(read_text(write_recipe(Recipe())), Recipe()); }

TEST(Recipes, RandomValuesOfEveryOptionSurviveARoundTrip) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    Recipe recipe;
    for (const Option& option : options(recipe)) set_random(option, random);
    expect_same(read_text(write_recipe(recipe)), recipe);
  }
}

TEST(Recipes, ReadSectionsCommentsQuotesAndForeignLineEnds) {
  const Recipe recipe = read_text(
      "\xEF\xBB\xBF# head = 1\r\n\r\n[model] # first\r\n  hidden_size =\t32\t# width\r\n[data]\n"
      "train = a#1.h5, b.h5 # two\nvalidation = \"x # y.h5\"   # quoted\nweights=\n[model]\ntied = false");
  EXPECT_EQ(recipe.model.hidden_size, 32);
  EXPECT_EQ(recipe.data.train, "a#1.h5, b.h5");
  EXPECT_EQ(recipe.data.validation, "x # y.h5");
  EXPECT_EQ(recipe.data.weights, "");
  EXPECT_FALSE(recipe.model.tied);
  expect_same(read_text(""), Recipe());
}

TEST(Recipes, ReadOverWhatIsThere) {
  Recipe recipe;
  recipe.train.steps = 7;
  recipe.model.layers = 9;
  read_recipe(recipe, RecipeFile("[model]\nlayers = 2\n").path());
  EXPECT_EQ(recipe.train.steps, 7);
  EXPECT_EQ(recipe.model.layers, 2);
}

TEST(Recipes, NameFileLineAndTheNearestName) {
  EXPECT_EQ(reading_refused("\n[trian]\n"), ":2: unknown section [trian]; did you mean [train]?");
  EXPECT_EQ(
      reading_refused("[zzzzzz]"),
      ":1: unknown section [zzzzzz]; sections are model, position, data, train, optimizer, schedule, grid, checkpoint");
  EXPECT_EQ(reading_refused("[train]\nstepz = 3\n"), ":2: unknown key train.stepz; did you mean train.steps?");
  EXPECT_EQ(reading_refused("[train]\nlr = 3\n"), ":2: unknown key train.lr; did you mean optimizer.lr?");
  EXPECT_EQ(reading_refused("[grid]\nxyzzyxyzzy = 3\n"),
            ":2: unknown key grid.xyzzyxyzzy; keys of [grid] are threads, ring, schedule, heads");
  EXPECT_EQ(reading_refused("[train]\nsteps = 3\n[data]\n[train]\nsteps = 3\n"),
            ":5: train.steps is given a second time (first in line 2); keep one of the two");
  EXPECT_EQ(reading_refused("[checkpoint]\n\nkeep = 0\n"),
            ":3: checkpoint.keep = 0 is not allowed; give 1 to 1000000 checkpoints");
  EXPECT_EQ(reading_refused("steps = 3\n"), ":1: steps stands before the first section; write [section] above it");
}

TEST(Recipes, RefuseJunk) {
  for (const char* junk :
       {"[train]\nsteps 3", "[train]\n= 3", "[train]\nste ps = 3", "[train]\n\x01\x02 = 3", "[train]\nsteps # = 3"})
    EXPECT_EQ(reading_refused(junk), ":2: not a line of a recipe; write [section], key = value, or a comment after #");
  for (const char* junk : {"[train", "[]", "[", "[tr ain]", "[train] steps = 3"})
    EXPECT_EQ(reading_refused(junk), ":1: not a section; write [name] on a line of its own");
  reading_refused("[data]\ntrain = \"open\n");
  reading_refused("[data]\ntrain = \"a\" b\n");
  reading_refused(std::string("[data]\ntrain = a\0b\n", 18));
  reading_refused("[train]\nsteps = " + std::string(100000, '9'));
}

TEST(Recipes, RefuseMissingAndHugeFiles) {
  Recipe recipe;
  EXPECT_NE(refusal([&] { read_recipe(recipe, "/nowhere/x.cfg"); }, ExitCode::io).find("/nowhere/x.cfg"),
            std::string::npos);
  const RecipeFile huge(std::string((1 << 20) + 1, '\n'));
  refusal([&] { read_recipe(recipe, huge.path()); }, ExitCode::bad_data);
  EXPECT_NO_THROW(read_text(std::string(1 << 20, '\n')));
}

/// One recipe with a broken relation, and a word that the refusal must hold.
struct Broken {
  std::string word;
  std::function<void(Recipe&)> change;
};

TEST(Relations, RefuseEachBrokenOne) {
  const std::vector<Broken> cases = {
      {"model.hidden_size = 65", [](Recipe& r) { r.model.hidden_size = 65; }},
      {"model.kv_heads = 3", [](Recipe& r) { r.model.kv_heads = 3; }},
      {"model.kv_heads = 16", [](Recipe& r) { r.model.kv_heads = 16; }},
      {"head size is 7", [](Recipe& r) { r.model.head_size = 7; }},
      {"head size is 1",
       [](Recipe& r) {
         r.model.hidden_size = 8;
         r.position.kind = "tape";
       }},
      {"position.cope_positions = 1", [](Recipe& r) { r.position.cope_positions = 1; }},
      {"model.layers = 0", [](Recipe& r) { r.model.layers = 0; }},
      {"train.tile = 32", [](Recipe& r) { r.train.tile = 32; }},
      {"optimizer.lr = nan", [](Recipe& r) { r.optimizer.lr = std::numeric_limits<double>::quiet_NaN(); }},
      {"needs rotations",
       [](Recipe& r) {
         r.position.kind = "cope";
         r.position.scaling = "linear";
         r.position.factor = 2;
       }},
      {"position.factor = 2 has no effect", [](Recipe& r) { r.position.factor = 2; }},
      {"stretches nothing",
       [](Recipe& r) {
         r.position.scaling = "yarn";
         r.model.max_length = 512;
       }},
      {"position.length = 64", [](Recipe& r) { r.position.length = 64; }},
      {"needs the length",
       [](Recipe& r) {
         r.position.scaling = "dynamic";
         r.position.factor = 2;
       }},
      {"beta_fast",
       [](Recipe& r) {
         r.position.scaling = "yarn";
         r.position.factor = 2;
         r.model.max_length = 512;
         r.position.beta_slow = 32;
       }},
      {"high_freq_factor",
       [](Recipe& r) {
         r.position.scaling = "llama3";
         r.position.factor = 2;
         r.model.max_length = 512;
         r.position.low_freq_factor = 4;
       }},
      {"2 numbers for 1 files",
       [](Recipe& r) {
         r.data.train = "a.h5";
         r.data.weights = "1, 2";
       }},
      {"empty name", [](Recipe& r) { r.data.train = "a.h5,,b.h5"; }},
      {"holds x",
       [](Recipe& r) {
         r.data.train = "a.h5";
         r.data.weights = "x";
       }},
      {"holds -1",
       [](Recipe& r) {
         r.data.train = "a.h5";
         r.data.weights = "-1";
       }},
      {"an empty place",
       [](Recipe& r) {
         r.data.train = "a.h5,b.h5";
         r.data.weights = "1,";
       }},
      {"all 0",
       [](Recipe& r) {
         r.data.train = "a.h5";
         r.data.weights = "0";
       }},
      {"train.sequences = 0", [](Recipe& r) { r.train.sequences = 0; }},
      {"train.micro_batch = 9", [](Recipe& r) { r.train.micro_batch = 9; }},
      {"train.precision = f64", [](Recipe& r) { r.train.precision = "f64"; }},
      {"nothing would be trained", [](Recipe& r) { r.train.trainable = " "; }},
      {"train.frozen", [](Recipe& r) { r.train.frozen = "a,"; }},
      {"schedule.cooldown = 5", [](Recipe& r) { r.schedule.cooldown = 5; }},
      {"more than train.steps",
       [](Recipe& r) {
         r.schedule.kind = "trapezoid";
         r.schedule.cooldown = 60;
         r.schedule.warmup = 41;
       }},
      {"train.validate_every = 5", [](Recipe& r) { r.train.validate_every = 5; }},
      {"a rotation of queries and keys", [](Recipe& r) { r.position.kind = "rope+tape"; }},
      {"a sum of gates", [](Recipe& r) { r.position.kind = "cope+hierarchical_cope"; }},
      {"stands there twice", [](Recipe& r) { r.position.kind = "none+none"; }},
      {"out of order",
       [](Recipe& r) {
         r.position.kind = "rope+cope";
         r.grid.schedule = "zigzag";
       }},
      {"grid.heads = 2", [](Recipe& r) { r.grid.heads = 2; }},
      {"position.randomized_length = 511",
       [](Recipe& r) {
         r.position.kind = "randomized";
         r.position.randomized_length = 511;
       }},
      {"t5_distance = 16",
       [](Recipe& r) {
         r.position.kind = "t5";
         r.position.t5_distance = 16;
       }},
      {"position.block_window = 2",
       [](Recipe& r) {
         r.position.kind = "hierarchical_cope";
         r.position.block_gates = "token";
         r.position.block_window = 2;
       }},
      {"position.cope_every = 6",
       [](Recipe& r) {
         r.position.kind = "cope";
         r.position.cope_every = 6;
       }},
      {"leaves the range",
       [](Recipe& r) {
         r.position.kind = "xpos";
         r.data.context = 70'000;
       }},
      {"data.context = 524288",
       [](Recipe& r) {
         r.position.kind = "forget";
         r.train.device = "ref";
         r.train.precision = "f64";
         r.data.context = 524288;
       }},
  };
  for (const Broken& broken : cases) {
    Recipe recipe;
    broken.change(recipe);
    const std::string line = refusal([&] { check_recipe(recipe, "x.cfg"); });
    EXPECT_EQ(line.compare(0, 7, "x.cfg: "), 0) << line;
    EXPECT_NE(line.find(broken.word), std::string::npos) << "wanted: " << broken.word << "\ngot: " << line;
  }
}

TEST(Relations, AllowWhatIsMeantToWork) {
  const std::vector<std::function<void(Recipe&)>> cases = {
      [](Recipe& r) { r.model.kv_heads = 1; },
      [](Recipe& r) {
        r.model.hidden_size = 65;
        r.model.head_size = 8;
      },
      [](Recipe& r) {
        r.model.head_size = 7;
        r.position.kind = "cope";
      },
      [](Recipe& r) {
        r.model.from = "m";
        r.model.heads = 7;
      },  // the model's own numbers hold
      [](Recipe& r) {
        r.position.kind = "tape";
        r.position.scaling = "linear";
        r.position.factor = 2;
      },
      [](Recipe& r) {
        r.position.scaling = "dynamic";
        r.position.original_length = 512;
        r.position.length = 1024;
      },
      [](Recipe& r) {
        r.position.scaling = "yarn";
        r.position.factor = 2;
        r.model.from = "m";
      },
      [](Recipe& r) {
        r.train.precision = "f64";
        r.train.device = "ref";
      },
      [](Recipe& r) {
        r.schedule.kind = "trapezoid";
        r.schedule.cooldown = 60;
        r.schedule.warmup = 40;
      },
      [](Recipe& r) {
        r.data.train = "a.h5, b.h5";
        r.data.weights = "0, 2.5";
      },
      [](Recipe& r) {
        r.train.validate_every = 5;
        r.data.validation = "v.h5";
      },
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Recipe recipe;
    cases[i](recipe);
    EXPECT_NO_THROW(check_recipe(recipe, "x.cfg")) << i;
  }
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  const std::vector<std::string> known = {"train.steps", "optimizer.lr", "train.max_time", "window"};
  EXPECT_EQ(nearest_name("train.stpes", known), "train.steps");
  EXPECT_EQ(nearest_name("steps", known), "train.steps");
  EXPECT_EQ(nearest_name("max-time", known), "train.max_time");
  EXPECT_EQ(nearest_name("LR", known), "optimizer.lr");
  EXPECT_EQ(nearest_name("windoow", known), "window");
  for (const char* far : {"", "x", "banana", "xy", "tokenizer"}) EXPECT_EQ(nearest_name(far, known), "") << far;
}

TEST(SplitList, TrimsAndKeepsEmptyPlaces) {
  EXPECT_EQ(split_list(""), std::vector<std::string>{});
  EXPECT_EQ(split_list(" \t"), std::vector<std::string>{});
  EXPECT_EQ(split_list(" a b ,c"), (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(split_list("a,, b,"), (std::vector<std::string>{"a", "", "b", ""}));
}

}  // namespace
}  // namespace capstan::framework
