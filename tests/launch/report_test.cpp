// capstan report as a user starts it: where the page goes, maps of a text, and what is refused before anything is written.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/framework/test_folder.h"
#include "tests/launch/program.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using testing::TestFolder;

std::string write_run(const TestFolder& folder, const std::string& name) {
  folder.write(name + "/config.cfg", "[position]\nkind = tape\n");
  folder.write(name + "/metrics.jsonl",
               "{\"step\": 1, \"loss\": 2.5, \"tokens\": 64}\n{\"step\": 2, \"loss\": 2.25, \"tokens\": 64}\n");
  return folder / name;
}

TEST(Report, OfOneRunLiesInItsFolder) {
  const TestFolder folder;
  const std::string run = write_run(folder, "one");
  expect_parts(capstan({"report", run, "--csv", folder / "table.csv"}),
               {"saved to " + run + "/report.html", "table.csv"});
  expect_parts(slurp(run + "/report.html"), {"<!DOCTYPE html>", "Capstan: one", "2.250", "</html>"});
  expect_parts(slurp(folder / "table.csv"), {"one,tape,2,128,2.25"});
  capstan({"report", run, "--output", folder / "again.html"});
  const std::string first = slurp(folder / "again.html");
  capstan({"report", run, "--output", folder / "again.html"});
  EXPECT_EQ(first, slurp(folder / "again.html")) << "equal input makes equal bytes";
}

TEST(Report, MapsATextByAModel) {
  const TestFolder folder;
  const std::string run = write_run(folder, "one"), model = folder / "model";
  capstan({"import", stories, "--output", model, "--tokenizer", stories + "/tokenizer.model"});
  const std::string text = folder.write("text.txt", "Once upon a time there was a <b>.");
  capstan({"report", run, "--text", text, "--model", model, "--tokens", "12", "--output", folder / "page.html"});
  expect_parts(slurp(folder / "page.html"), {"A text, token by token", "·upon", "neither gates nor states"});
  capstan({"report", model, "--text", text, "--output", folder / "model.html"});
  expect_parts(slurp(folder / "model.html"), {"Capstan: model", "&lt;"});
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"report", run, "--text", text});
                        }),
               {"no run has a checkpoint"});
  const std::string broken = folder.write("broken.txt", "a\xff");
  expect_parts(error_of(ExitCode::bad_data,
                        [&] {
                          capstan({"report", model, "--text", broken});
                        }),
               {"broken.txt", "not UTF-8"});
  EXPECT_FALSE(fs::exists(model + "/report.html"));
}

TEST(Report, RefusesBeforeItWrites) {
  const TestFolder folder;
  const std::string one = write_run(folder, "one"), two = write_run(folder, "two");
  expect_parts(error_of(ExitCode::usage, [&] { capstan({"report", one, two}); }), {"2 runs", "--output"});
  expect_parts(error_of(ExitCode::usage,
                        [&] {
                          capstan({"report", one, one, "--output", folder / "p.html"});
                        }),
               {"one run"});
  expect_parts(error_of(ExitCode::usage,
                        [&] {
                          capstan({"report", one, "--model", two});
                        }),
               {"--model goes with --text"});
  expect_parts(error_of(ExitCode::usage,
                        [&] {
                          capstan({"report", one, "--tokens", "5"});
                        }),
               {"--tokens goes with --text"});
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"report", one, "--output", folder / "no/p.html"});
                        }),
               {"no folder"});
  expect_parts(error_of(ExitCode::io, [&] { capstan({"report", folder / "none"}); }), {"no such run folder"});
  EXPECT_FALSE(fs::exists(one + "/report.html"));
  EXPECT_FALSE(fs::exists(folder / "p.html"));
}

}  // namespace
}  // namespace capstan::launch
