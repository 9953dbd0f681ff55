#include "framework/report/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <regex>

#include "framework/json.h"
#include "framework/perplexity.h"
#include "framework/report/chart.h"
#include "framework/report/sections.h"
#include "framework/retrieval.h"
#include "framework/task_evaluation.h"
#include "framework/token_file.h"
#include "tests/framework/small_model.h"
#include "tests/framework/sound_page.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using capstan::testing::expect_sound;
using capstan::testing::TestFolder;

// ---- runs -----------------------------------------------------------------------------------------------------------

std::string metrics_text(int steps, double from = 5) {
  std::string text;
  for (int s = 1; s <= steps; ++s) {
    nlohmann::ordered_json line = {{"step", s},
                                   {"loss", from / std::sqrt(s)},
                                   {"gradient_norm", 1.0 / s},
                                   {"learning_rate", 1e-3},
                                   {"tokens", 512}};
    if (s % 10 == 0) line["validation_loss"] = from / std::sqrt(s) + 0.1;
    line["layers"] = {{{"mean_gate", 0.5}, {"horizon", 30.0}, {"saturated", 0.25}}, {{"mean_z", 1.0}, {"max_z", 1.5}}};
    text += line.dump() + "\n";
  }
  return text;
}

std::string perplexity_text(std::int64_t window, double nll, std::int64_t stride = 0,
                            const std::string& data = "held.h5", const std::string& model = "runs/a") {
  const auto self = parallel::make_self_communicator();
  PerplexityResult result;
  result.options.window = window;
  result.options.stride = stride ? stride : window / 2;
  result.mean_nll = nll;
  result.perplexity = std::exp(nll);
  result.counted_tokens = 1000;
  result.windows = 7;
  result.bos = "none";
  result.buckets = {{0, window / 2, 500, nll + 0.1}, {window / 2, window, 500, nll - 0.1}};
  return perplexity_json(result, model, data, parallel::make_process_grid(*self, 1));
}

std::string passkey_text() {
  const auto self = parallel::make_self_communicator();
  RetrievalResult result;
  result.task.name = "passkey";
  result.tokenizer = "bytes";
  result.cells = {{512, 0, 1, 4}, {512, 1, 4, 4}, {1024, 0, 0, 4}, {1024, 1, 3, 4}};
  result.prompts.resize(16);
  for (auto& prompt : result.prompts) prompt.cell = 0;
  return retrieval_json(result, "runs/a", parallel::make_process_grid(*self, 1));
}

std::string needle_text(const std::string& task, std::int64_t keys, const std::string& haystack = "noise") {
  const auto self = parallel::make_self_communicator();
  RetrievalResult result;
  result.task.name = task;
  result.task.haystack = haystack;
  result.task.keys = keys;
  result.tokenizer = "bytes";
  result.cells = {{512, 0, 2, 5}, {512, 1, 5, 5}};
  result.prompts.resize(10);
  return retrieval_json(result, "runs/a", parallel::make_process_grid(*self, 1));
}

std::string write_run(const TestFolder& folder, const std::string& name, const std::string& metrics,
                      const std::string& config = "[position]\nkind = rope+cope\n") {
  folder.write(name + "/config.cfg", config);
  if (!metrics.empty()) folder.write(name + "/metrics.jsonl", metrics);
  return folder / name;
}

std::string page_of(const std::vector<std::string>& folders) {
  return report_page({read_runs(folders), {}, "", "capstan report", "build"});
}

TEST(ReportPage, ShowsOneRun) {
  const TestFolder folder;
  const std::string run = write_run(folder, "run <1> & 'co'", metrics_text(200));
  folder.write("run <1> & 'co'/eval/p1.json", perplexity_text(512, 1.25));
  folder.write("run <1> & 'co'/eval/deep/p2.json", perplexity_text(1024, 1.5));
  folder.write("run <1> & 'co'/eval/passkey.json", passkey_text());
  folder.write("run <1> & 'co'/eval/other.json", "{\"what\": 1}");
  const std::string page = page_of({run});
  expect_sound(page);
  expect_parts(page,
               {"run &lt;1&gt; &amp; &#39;co&#39;", "200", "102,400", "0.3536", number_text(std::exp(1.25)),
                number_text(std::exp(1.5)), "1/4", "3/4", "8/16", "CoPE: mean gate", "TAPE: mean |z|",
                "other.json: of a kind", "One run: nothing to compare", "data:text/csv",
                fmt::format("{:.1f} to {:.1f} %", 100 * wilson_interval(3, 4).low, 100 * wilson_interval(3, 4).high),
                "--depths 2 --trials 4 --seed 1"});
}

TEST(ReportPage, ShowsEachRetrievalTaskUnderItsOwnHeading) {
  const TestFolder folder;
  const std::string run = write_run(folder, "a", "");
  folder.write("a/eval/passkey.json", passkey_text());
  folder.write("a/eval/single.json", needle_text("ruler-single", 1));
  folder.write("a/eval/many.json", needle_text("ruler-multikey", 6, "my book.txt"));
  folder.write("a/eval/new.json", needle_text("ruler-future", 1));
  const std::string page = page_of({run});
  expect_sound(page);
  expect_parts(page,
               {"<h2>Passkey retrieval</h2>", "<h2>One needle (RULER)</h2>", "<h2>One needle of many (RULER)</h2>",
                "<a href=\"#ruler-single\">", "haystack noise, needles 1", "haystack my book.txt, needles 6",
                "<td>8/16</td>", "new.json: of a kind",
                "capstan eval needle --model runs/a --haystack noise --lengths 512 --depths 2 --trials 5 --seed 1",
                "capstan eval needle --model runs/a --task multikey --keys 6 --haystack &#39;my book.txt&#39;"});
  EXPECT_EQ(page.find("The prompts are not the same"), std::string::npos) << "tasks are not compared with each other";
}

/// Addition on a 2 × 2 grid, and a set without cells.
std::string task_text() {
  const auto self = parallel::make_self_communicator();
  TaskResult grid;
  grid.data = "grid.h5";
  grid.task = "addition";
  grid.set = "grid";
  grid.counts = {40, 25, 200, 180, 12.5};
  grid.cell_names = {"digits_a", "digits_b"};
  grid.cells = {{{1, 1}, 10, 10}, {{1, 2}, 10, 7}, {{2, 1}, 10, 8}, {{2, 2}, 10, 0}};
  TaskResult plain = grid;
  plain.data = "test.h5";
  plain.set = "test";
  plain.complete = false;
  plain.cells.clear();
  return task_json({grid, plain}, "runs/a", parallel::make_process_grid(*self, 1));
}

TEST(ReportPage, ShowsTasksWithMapsOfTheirCells) {
  const TestFolder folder;
  const std::string run = write_run(folder, "a", "");
  folder.write("a/eval/task.json", task_text());
  const std::string page = page_of({run});
  expect_sound(page);
  expect_parts(page, {"<a href=\"#tasks\">", "<td>25/40</td>", "62.50 %", "90.00 %", "A  a: addition, grid", ">70<",
                      "digits_a 1, digits_b 2: 7 of 10", "digits_a 2, digits_b 2: 0 of 10",
                      "capstan eval task --model runs/a --data grid.h5,test.h5 --max-examples 40"});
  EXPECT_EQ(page.find("A  a: addition, test"), std::string::npos) << "no map of a set without cells";
  folder.write("a/eval/task.json", "{\"kind\": \"task\", \"model\": \"a\", \"sets\": [{}]}");
  EXPECT_THROW(page_of({run}), Error);
}

TEST(ReportPage, TakesPasskeyFilesThatNameNoTask) {
  const TestFolder folder;
  const std::string run = write_run(folder, "a", "");
  std::string before = passkey_text();
  before.erase(before.find("\"task\": \"passkey\","), std::string("\"task\": \"passkey\",").size());
  folder.write("a/eval/passkey.json", before);
  expect_parts(page_of({run}), {"<h2>Passkey retrieval</h2>", "<td>8/16</td>"});
}

TEST(ReportPage, ShowsNineRunsApart) {
  const TestFolder folder;
  std::vector<std::string> runs;
  for (int i = 0; i < 9; ++i) {
    const std::string name = fmt::format("run{}", i);
    runs.push_back(
        write_run(folder, name, metrics_text(100 + i, 4 + i), fmt::format("[train]\nsteps = {}\n", 100 + i)));
    folder.write(name + "/eval/p.json", perplexity_text(512, 1 + 0.1 * i));
  }
  const std::string page = page_of(runs);
  expect_sound(page);
  expect_parts(page, {"A  run0", "I  run8", "class=\"l8\"", "train.steps", ">108<"});
  EXPECT_EQ(page.find(">data.context<"), std::string::npos) << "equal options are no difference";
}

TEST(ReportPage, TakesBrokenAndEmptyMetrics) {
  const capstan::testing::WithoutTraps numbers_like_1e999;
  const TestFolder folder;
  const std::string torn = write_run(folder, "torn",
                                     metrics_text(60) +
                                         "{\"step\": 61, \"loss\": null}\n{\"step\": 62, \"loss\": NaN}\n"
                                         "{\"step\": 63, \"loss\": 1e999}\n[1]\n{\"step\": 64, \"lo");
  const std::string empty = write_run(folder, "empty", "\n");
  const std::string none = write_run(folder, "none", "");
  const std::string one = write_run(folder, "one", metrics_text(1));
  const std::string page = page_of({torn, empty, none, one});
  expect_sound(page);
  expect_parts(page, {"A: 4 line(s) of metrics.jsonl could not be read", "A: 1 step(s) have no finite loss"});
  expect_sound(page_of({empty}));
  expect_parts(page_of({empty}), {"No run has a metrics.jsonl with steps"});
  expect_sound(page_of({one}));
}

TEST(ReportPage, OfAStepWrittenTwiceTheLaterLineCounts) {
  const TrainingCurve curve = parse_metrics(
      "{\"step\":2,\"loss\":9,\"tokens\":5}\n{\"step\":1,\"loss\":4,\"tokens\":5}\n{\"step\":2,\"loss\":3,\"tokens\":5}"
      "\n");
  ASSERT_EQ(curve.steps.size(), 2u);
  EXPECT_EQ(curve.last_loss(), 3);
  EXPECT_EQ(curve.tokens(), 10);
  EXPECT_TRUE(std::isnan(curve.last_validation()));
}

/// Two files, each step from one of them: their losses differ by what is read, not by what is learned.
TEST(ReportPage, DrawsFilesApartWhereStepsDoNotMixThem) {
  const auto line = [](int step, double loss, const std::string& samples) {
    return fmt::format("{{\"step\":{},\"loss\":{},\"tokens\":8,\"samples\":[{}]}}\n", step, loss, samples);
  };
  const std::string apart = line(1, 4.5, "\"0:7\",\"0:2\"") + line(2, 0.25, "\"1:7\"") + line(3, 4.125, "\"0:9\"") +
                            line(4, 0.0625, "\"1:3\"");
  EXPECT_EQ(parse_metrics(apart).files_apart(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(parse_metrics(apart).last_loss(), 4.125) << "of the first file";
  EXPECT_TRUE(parse_metrics(apart + line(5, 2, "\"0:1\",\"1:1\"")).files_apart().empty()) << "one step mixes them";
  EXPECT_TRUE(parse_metrics(line(1, 4, "\"0:7\"") + line(2, 3, "\"0:8\"")).files_apart().empty()) << "one file";
  for (const std::string samples : {"", "\"x\"", "7", "\"-1:2\"", "\"0\",\"1\""})
    EXPECT_TRUE(parse_metrics(line(1, 4, samples) + line(2, 3, "\"1:8\"")).files_apart().empty()) << samples;

  const TestFolder folder;
  const std::string run = write_run(folder, "a", apart, "[data]\ntrain = x/books.h5,x/keys.h5\n");
  const std::string page = page_of({run});
  expect_sound(page);
  expect_parts(page, {"Training loss, books.h5", "Training loss, keys.h5", "<td>4.125 / 0.0625</td>"});
  EXPECT_EQ(page.find("<figcaption>Training loss</figcaption>"), std::string::npos);
}

TEST(ReportPage, StaysSmallWithManySteps) {
  const TestFolder folder;
  const std::string run = write_run(folder, "long", metrics_text(20000));
  const std::string page = page_of({run});
  expect_sound(page);
  EXPECT_LT(page.size(), 200000u);
}

TEST(ReportPage, CsvHasAllDigits) {
  const TestFolder folder;
  const std::string run = write_run(folder, "a,b", metrics_text(3));
  folder.write("a,b/eval/p.json", perplexity_text(512, 1.25));
  folder.write("a,b/eval/stretched.json", perplexity_text(512, 2, 0, "held.h5", "runs/a with position.factor = 2"));
  const std::string csv = report_csv(read_runs({run}));
  EXPECT_EQ(
      csv,
      fmt::format("run,position,steps,tokens,last_loss,validation_loss,perplexity_512,passkey_correct,passkey_trials\n"
                  "\"a,b\",rope+cope,3,1536,{},,{},,\n"
                  "\"a,b with position.factor = 2\",rope+cope,,,,,{},,\n",
                  5 / std::sqrt(3), std::exp(1.25), std::exp(2.0)));
}

// ---- what does not belong together ----------------------------------------------------------------------------------

TEST(ReportRefuses, FoldersThatAreNoRuns) {
  const TestFolder folder;
  folder.write("void/readme", "x");
  expect_parts(error_of(ExitCode::bad_data, [&] { read_run(folder / "void"); }), {"void", "holds nothing of a run"});
  expect_parts(error_of(ExitCode::io, [&] { read_run(folder / "missing"); }), {"missing", "no such run folder"});
  const std::string run = write_run(folder, "a", "");
  expect_parts(error_of(ExitCode::usage, [&] { read_runs({run, run + "/"}); }), {"are one run"});
  folder.write("a/config.cfg", "[model]\nhiden_size = 3\n");
  expect_parts(error_of(ExitCode::config, [&] { read_run(run); }), {"config.cfg:2", "model.hidden_size"});
}

TEST(ReportRefuses, BrokenEvaluations) {
  const TestFolder folder;
  const std::string run = write_run(folder, "a", "");
  for (const char* text : {"{", "{\"window\": 3, \"mean_nll\": \"x\"}", "{\"window\": 1, \"mean_nll\": 2}",
                           "{\"preset\": null, \"cells\": 3}"}) {
    folder.write("a/eval/e.json", text);
    expect_parts(error_of(ExitCode::bad_data, [&] { read_run(run); }), {"e.json"});
  }
  std::string more = passkey_text();
  more.replace(more.find("\"correct\": 1"), 12, "\"correct\": 9");
  more.replace(more.find("\"correct\": 4"), 12, "\"correct\": 9");
  folder.write("a/eval/e.json", more);
  expect_parts(error_of(ExitCode::bad_data, [&] { read_run(run); }), {"e.json", "9 correct of 4"});
}

TEST(ReportRefuses, NeedlesOfOtherHaystacks) {
  const TestFolder folder;
  const std::string a = write_run(folder, "a", ""), b = write_run(folder, "b", "");
  folder.write("a/eval/n.json", needle_text("ruler-single", 1));
  folder.write("b/eval/n.json", needle_text("ruler-single", 1, "book.txt"));
  expect_parts(page_of({a, b}), {"The prompts are not the same", "A has seed 1, haystack noise, needles 1",
                                 "B has seed 1, haystack book.txt, needles 1"});
}

TEST(ReportRefuses, TokenizersThatDiffer) {
  const TestFolder folder;
  const auto file = [&](const std::string& name, const std::string& tokenizer, const std::string& hash) {
    TokenFileInfo info;
    info.vocabulary = 10;
    info.tokenizer = tokenizer;
    info.tokenizer_hash = hash;
    write_token_file(folder / name, {{{1, 2, 3}, 1}}, info);
    return folder / name;
  };
  const auto run = [&](const std::string& name, const std::string& data) {
    return write_run(folder, name, metrics_text(3), fmt::format("[data]\ntrain = {}\n", data));
  };
  const std::string a = run("a", file("a.h5", "bytes", "bytes")),
                    b = run("b", file("b.h5", "x.model", "0123456789abcdef"));
  const std::string line = error_of(ExitCode::bad_data, [&] { read_runs({a, b}); });
  expect_parts(line, {"a has tokenizer bytes", "b has tokenizer 0123456789abcdef", "report on them separately"});
}

TEST(ReportRefuses, ValidationOfOtherData) {
  const TestFolder folder;
  const std::string a = write_run(folder, "a", metrics_text(20), "[data]\nvalidation = one.h5\n");
  const std::string b = write_run(folder, "b", metrics_text(20), "[data]\nvalidation = two.h5\ncontext = 1024\n");
  const std::string page = page_of({a, b});
  expect_sound(page);
  expect_parts(page, {"a measured on one.h5, b on two.h5", "data.context is 512 in A, 1024 in B"});
}

TEST(ReportRefuses, PerplexitiesOfOtherConventions) {
  const TestFolder folder;
  const std::string a = write_run(folder, "a", ""), b = write_run(folder, "b", "");
  folder.write("a/eval/p.json", perplexity_text(512, 1));
  folder.write("b/eval/p.json", perplexity_text(512, 1, 128));
  std::string page = page_of({a, b});
  expect_sound(page);
  expect_parts(page,
               {"Not drawn: at window 512, A counts 1,000 tokens with stride 256, and B counts 1,000 with stride 128"});
  EXPECT_EQ(page.find("Perplexity against length"), std::string::npos);
  folder.write("b/eval/p.json", perplexity_text(512, 1, 0, "other.h5"));
  page = page_of({a, b});
  expect_sound(page);
  expect_parts(page, {"2 sets of conventions, a chart each", "other.h5: convention once"});
}

// ---- positions of a text --------------------------------------------------------------------------------------------

std::vector<std::int32_t> ids_of(int n) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(std::int32_t(tests::random_bits(std::uint64_t(i) + 1, 5) % 37));
  return ids;
}

TEST(ReportPositions, AreTheSumsThatAttentionCarries) {
  // Of a table too long to be reached no tile is saturated, and the carry is the sum of all gates of a row, in units of 2^-44.
  const std::vector<std::int32_t> ids = ids_of(100);
  for (const char* gate : {"keys", "values", "separate"})
    for (const bool rotated : {false, true}) {
      PositionConfig position = tests::tiny_position();
      position.cope_gate = gate;
      position.cope_rotated = rotated;
      position.cope_floor = 0.1;
      const auto model = tests::small_model({"rope+cope"}, position);
      const TextPositions text = text_positions(*model, ids);
      ASSERT_EQ(text.gates.size(), 3u);
      const auto self = parallel::make_self_communicator();
      const Batch batch = tests::whole_batch(ids, Device::ref);
      const Pass pass = model->forward(model->make_ring(*self, 100, 64), batch, 64, Keep::ring);
      int compared = 0;
      for (std::size_t layer = 0; layer < 3; ++layer) {
        const LayerGates& gates = text.gates[layer];
        EXPECT_EQ(gates.last_position, 8);
        for (std::int64_t i = 0; i < 100; ++i)
          for (std::int64_t h = 0; h < 4; ++h) {
            const double all = gates.at(gates.position, h, i, 0);
            EXPECT_NEAR(gates.at(gates.position, h, i, i), gates.at(gates.gate, h, i, i), 1e-15);
            if (i + 1 < 100) { EXPECT_TRUE(std::isnan(gates.at(gates.gate, h, i, i + 1))); }
            if (i >= 64) continue;  // one tile: it enters with nothing, and is summed
            const double carried =
                double((*pass.blocks[layer].ring).carry[0].as<std::int64_t>()[i * 4 + h]) / std::pow(2.0, 44);
            EXPECT_NEAR(all, carried, 1e-11);
            ++compared;
          }
      }
      EXPECT_EQ(compared, 3 * 64 * 4);
      EXPECT_EQ(text.nll.size(), 100u);
      EXPECT_TRUE(std::isnan(text.nll[0]));
      for (int t = 0; t + 1 < 100; ++t) EXPECT_NEAR(text.nll[std::size_t(t + 1)], pass.nll.as<double>()[t], 1e-12);
    }
}

TEST(ReportPositions, KeepToTheWindowOfHierarchicalCope) {
  PositionConfig position = tests::tiny_position();
  position.block_size = 16;
  position.block_window = 1;
  const auto model = tests::small_model({"hierarchical_cope"}, position);
  const TextPositions text = text_positions(*model, ids_of(40));
  ASSERT_FALSE(text.gates.empty());
  EXPECT_TRUE(std::isnan(text.gates[0].at(text.gates[0].gate, 0, 20, 15)));
  EXPECT_TRUE(std::isfinite(text.gates[0].at(text.gates[0].gate, 0, 20, 16)));
}

TEST(ReportPositions, TapeBeginsAsRope) {
  const auto model = tests::small_model({"tape"});
  const TextPositions text = text_positions(*model, ids_of(30));
  ASSERT_EQ(text.states.size(), 3u);
  EXPECT_TRUE(text.gates.empty());
  for (std::size_t t = 0; t < 30; ++t) {
    EXPECT_NEAR(text.states[0].magnitude[t], 1, 1e-12);
    EXPECT_NEAR(text.states[0].drift[t], 0, 1e-9);
    if (t > 0) {  // the first token sees only itself, at angle 0
      EXPECT_GT(text.states[2].drift[t], 1e-6);
    }
  }
  // Layer 1's state by hand: pass.blocks[1].z against phases.
  const auto self = parallel::make_self_communicator();
  const Pass pass =
      model->forward(model->make_ring(*self, 30, 64), tests::whole_batch(ids_of(30), Device::ref), 64, Keep::inputs);
  const double* z = pass.blocks[1].z.as<double>();  // [30, 2, 6]
  const double* first = pass.blocks[0].z.as<double>();
  double magnitude = 0, drift = 0;
  for (int at : {0, 1, 2, 6, 7, 8}) {
    const std::complex<double> now(z[12 * 29 + at], z[12 * 29 + at + 3]),
        rope(first[12 * 29 + at], first[12 * 29 + at + 3]);
    magnitude += std::abs(now) / 6;
    drift += std::abs(std::arg(now / rope)) / 6 * 180 / 3.14159265358979324;
  }
  EXPECT_NEAR(text.states[1].magnitude[29], magnitude, 1e-12);
  EXPECT_NEAR(text.states[1].drift[29], drift, 1e-9);
}

TEST(ReportPositions, MakeASoundPage) {
  const capstan::testing::WithoutTraps missing_gates_are_nan;
  for (const char* kind : {"rope", "rope+cope", "tape"}) {
    TextPositions text = text_positions(*tests::small_model({kind}), ids_of(128));
    text.model = "a <model>";
    text.tokens.assign(128, "<&\">");
    const std::string section = text_section({text, text, text}, "a & b");
    expect_sound(section);
    expect_parts(section, {"a &lt;model&gt;", "&lt;&amp;&quot;&gt;",
                           std::string(kind) == "rope"   ? "neither gates nor states"
                           : std::string(kind) == "tape" ? "drift of the state"
                                                         : "positions seen from"});
  }
}

TEST(ReportPositions, NamesTokens) {
  const auto bytes = make_tokenizer("bytes");
  const auto ids = report_tokens(*bytes, 256, 258, "a b\né!", 100);
  EXPECT_EQ(token_names(*bytes, 256, ids).front(), "BOS");
  EXPECT_EQ(token_names(*bytes, 256, ids)[2], "·");
  EXPECT_EQ(token_names(*bytes, 256, ids)[4], "⏎");
  EXPECT_EQ(report_tokens(*bytes, 256, 258, "abc", 2).size(), 2u);
  expect_parts(error_of(ExitCode::bad_data, [&] { report_tokens(*bytes, -1, 258, "a", 9); }), {"1 token(s)"});
  expect_parts(error_of(ExitCode::bad_data, [&] { report_tokens(*bytes, -1, 90, "az", 9); }), {"id 97", "0 to 89"});
}

}  // namespace
}  // namespace capstan::framework
