#include "framework/prepare.h"

#include <algorithm>
#include <map>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/token_file.h"
#include "framework/tokenizer.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::golden;
using testing::slurp;
using testing::TestFolder;
using Ids = std::vector<std::int32_t>;

class Prepare : public ::testing::Test {
 protected:
  Prepare() { options_.output = folder_ / "out.h5"; }

  PrepareReport run(const std::vector<std::string>& inputs) {
    options_.inputs = inputs;
    return prepare(options_);
  }
  std::string refusal(ExitCode code, const std::vector<std::string>& inputs) {
    const std::string line = error_of(code, [&] { run(inputs); });
    EXPECT_FALSE(std::filesystem::exists(options_.output)) << "no token file after an error";
    return line;
  }
  /// The decoded documents of the token file.
  std::vector<std::string> documents() const {
    const TokenFile file = TokenFile::open(options_.output);
    const auto tokenizer = make_tokenizer(options_.tokenizer);
    std::vector<std::string> texts;
    for (std::size_t i = 1; i < file.document_offsets().size(); ++i) {
      texts.push_back(tokenizer->decode(file.read(file.document_offsets()[i - 1], file.document_offsets()[i])));
    }
    return texts;
  }

  TestFolder folder_;
  PrepareOptions options_;
};

TEST_F(Prepare, ATextFileIsOneDocumentAsItIs) {
  const PrepareReport report = run({folder_.write("a.txt", "\xef\xbb\xbf one two\r\n\nthree ")});
  EXPECT_EQ(documents(), std::vector<std::string>{" one two\r\n\nthree "});
  EXPECT_EQ(report.documents, 1);
  EXPECT_EQ(report.tokens, 18);
  EXPECT_EQ(report.longest, 18);
  EXPECT_EQ(report.words, 3);
  const TokenFile file = TokenFile::open(options_.output);
  EXPECT_EQ(file.read(0, 2), (Ids{256, ' '}));
  EXPECT_EQ(file.info().bos, 256);
  EXPECT_TRUE(file.info().end.empty()) << "no end id was written";
  EXPECT_EQ(file.info().tokenizer, "bytes");
  EXPECT_EQ(file.words(), std::vector<std::int64_t>{3});
}

TEST_F(Prepare, MarksAreOptional) {
  options_.bos = false;
  options_.end = true;
  run({folder_.write("a.txt", "ab")});
  const TokenFile file = TokenFile::open(options_.output);
  EXPECT_EQ(file.read(0, 3), (Ids{'a', 'b', 257}));
  EXPECT_EQ(file.info().bos, -1);
  EXPECT_EQ(file.info().end, Ids{257});
}

TEST_F(Prepare, FoldersAreReadRecursivelyInOrder) {
  folder_.write("in/b.txt", "second");
  folder_.write("in/a/z.jsonl", "{\"text\":\"first\"}\n");
  folder_.write("in/c.md", "not read");
  folder_.write("in/c.txt", "third");
  std::filesystem::create_directory_symlink(folder_ / "in", folder_ / "in/a/up");  // must not be followed
  run({folder_ / "in", folder_.write("d.txt", "last")});
  EXPECT_EQ(documents(), (std::vector<std::string>{"first", "second", "third", "last"}));
}

TEST_F(Prepare, JsonlRules) {
  const std::string lines =
      "\xef\xbb\xbf{\"text\":\"one\"}\r\n"  // 1: byte order mark, CRLF
      "\n  \n"                              // 2, 3: blank
      "{\"text\":\"two\\nlines \"}\n"       // 4: kept as it is
      "{\"other\":\"x\"}\n"                 // 5: no text
      "{\"text\":null}\n"                   // 6
      "{\"text\":7}\n"                      // 7
      "{\"text\":\" \\n\\t\"}\n"            // 8: empty
      "{\"text\":\"\"}\n"                   // 9: empty
      "{\"text\":\"\xff\"}\n"               // 10: not UTF-8
      "{\"text\":\"a\\u0000b\"}\n"          // 11: NUL
      "{\"text\":\"last\"}";                // 12: no newline at the end
  const std::string path = folder_.write("a.jsonl", lines);
  const PrepareReport report = run({path});
  EXPECT_EQ(documents(), (std::vector<std::string>{"one", "two\nlines ", "last"}));
  std::map<std::string, std::pair<std::int64_t, std::string>> skipped;
  for (const PrepareSkip& skip : report.skipped) skipped[skip.reason] = {skip.count, skip.first};
  EXPECT_EQ(skipped.size(), 6u);
  EXPECT_EQ(skipped["no text"], std::pair(std::int64_t(1), path + ":5"));
  EXPECT_EQ(skipped["no text: null"], std::pair(std::int64_t(1), path + ":6"));
  EXPECT_EQ(skipped["no text: not a string"], std::pair(std::int64_t(1), path + ":7"));
  EXPECT_EQ(skipped["empty text"], std::pair(std::int64_t(2), path + ":8"));
  EXPECT_EQ(skipped["invalid UTF-8"], std::pair(std::int64_t(1), path + ":10"));
  EXPECT_EQ(skipped["a NUL in the text"], std::pair(std::int64_t(1), path + ":11"));
  const std::vector<std::string> printed = report.lines();
  EXPECT_EQ(printed.front(), "documents 3, tokens 20, longest 11, words 4");
  EXPECT_NE(std::find(printed.begin(), printed.end(), "skipped 2: empty text (first: " + path + ":8)"), printed.end());
}

TEST_F(Prepare, TheTextKeyCanBeChosen) {
  options_.text_key = "story";
  run({folder_.write("a.jsonl", "{\"story\":\"x\",\"text\":\"y\"}\n")});
  EXPECT_EQ(documents(), std::vector<std::string>{"x"});
}

TEST_F(Prepare, MalformedJsonNamesFileAndLine) {
  const std::string good = "{\"text\":\"x\"}\n";
  for (const char* bad : {"{\"text\":\"x\"", "{\"text\":\"x\"} {}", "text", "{\"text\":\"\\ud800\"}"}) {
    expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", good + "\n" + bad + "\n" + good)}),
                 {"a.jsonl:3", "malformed"});
  }
  expect_parts(
      refusal(ExitCode::bad_data, {folder_.write("a.jsonl", good + "{\"text\":\"x\"}" + std::string(3, '\0'))}),
      {"a.jsonl:2", "malformed"});
  for (const char* bad : {"[]", "\"x\"", "7"}) {
    expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", good + bad)}),
                 {"a.jsonl:2", "not a JSON object"});
  }
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", "{\"text\":" + std::string(100'000, '['))}),
               {"a.jsonl:1"});
}

TEST_F(Prepare, NothingToRead) {
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.txt", "")}),
               {"no text in", "a.txt", "skipped 1: empty text", "a.txt:1"});
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", "\n\n")}), {"no text in"});
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", "{\"txt\":\"x\"}\n")}),
               {"skipped 1: no text", "text key 'text'"});
  std::filesystem::create_directory(folder_ / "empty");
  expect_parts(refusal(ExitCode::bad_data, {folder_ / "empty"}), {"empty", "no .txt or .jsonl"});
  expect_parts(refusal(ExitCode::io, {folder_ / "none.txt"}), {"none.txt", "check the path"});
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.pdf", "x")}), {"a.pdf", "only .txt and .jsonl"});
  options_.tokenizer = folder_ / "none.model";
  expect_parts(refusal(ExitCode::io, {folder_.write("b.txt", "x")}), {"none.model"});
}

TEST_F(Prepare, LongLinesAreRefused) {
  options_.line_limit = 100;
  run({folder_.write("a.jsonl", "{\"text\":\"" + std::string(89, 'x') + "\"}\n")});
  std::filesystem::remove(options_.output);
  const std::string longer = "\n{\"text\":\"" + std::string(90, 'x') + "\"}\n";
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.jsonl", longer)}), {"a.jsonl:2", "more than 100 bytes"});
  expect_parts(refusal(ExitCode::bad_data, {folder_.write("a.txt", std::string(101, 'x'))}),
               {"a.txt", "101 bytes", "at most 100"});
  options_.split = "--";
  expect_parts(refusal(ExitCode::bad_data,
                       {folder_.write("a.txt", "a\n--\n" + std::string(60, 'x') + "\n" + std::string(60, 'y'))}),
               {"a.txt:3", "a document of more than 100 bytes"});
}

TEST_F(Prepare, LinesAcrossTheReadBuffer) {
  const std::string half(700'000, 'x');  // the reader's buffer holds 1 MiB
  run({folder_.write("a.jsonl", "{\"text\":\"" + half + "\"}\n{\"text\":\"" + half + "y\"}\n{\"text\":\"z\"}")});
  EXPECT_EQ(documents(), (std::vector<std::string>{half, half + "y", "z"}));
}

TEST_F(Prepare, SplitStripsEachDocument) {
  options_.split = "<|endoftext|>";
  const std::string text = "\n one\ntwo \n<|endoftext|>\r\n\n<|endoftext|>\nx <|endoftext|> y\n<|endoftext|>\n\n";
  const PrepareReport report = run({folder_.write("a.txt", text)});
  EXPECT_EQ(documents(), (std::vector<std::string>{"one\ntwo", "x <|endoftext|> y"}));
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].count, 1) << "what follows the last mark is no document";
  EXPECT_EQ(report.skipped[0].first, folder_ / "a.txt:5");
}

TEST_F(Prepare, SamplesAreShortAndPrintable) {
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += fmt::format("{{\"text\":\"{}\\né{}\"}}\n", i, std::string(200, 'x'));
  const PrepareReport report = run({folder_.write("a.jsonl", lines)});
  ASSERT_EQ(report.samples.size(), 3u);
  EXPECT_EQ(report.samples[0], "0\\né" + std::string(77, 'x') + "…");
  EXPECT_EQ(report.samples[1].front(), '2');
  EXPECT_EQ(report.samples[2].front(), '4');
}

TEST_F(Prepare, GoldenIdsOfTheStories) {
  options_.tokenizer = golden("tokenizers/tok512.model");
  options_.split = "<|endoftext|>";
  const PrepareReport report = run({golden("stories260K/tinystories_sample.txt")});
  EXPECT_EQ(report.documents, 5);
  EXPECT_TRUE(report.skipped.empty());
  const auto oracle = nlohmann::json::parse(slurp(golden("stories260K/stories_ids.json")))["stories"];
  const TokenFile file = TokenFile::open(options_.output);
  ASSERT_EQ(oracle.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(file.read(file.document_offsets()[i], file.document_offsets()[i + 1]), oracle[i].get<Ids>())
        << "story " << i;
  }
  EXPECT_EQ(file.info().vocabulary, 512);
  EXPECT_EQ(file.info().tokenizer, "tok512.model");
}

}  // namespace
}  // namespace capstan::framework
