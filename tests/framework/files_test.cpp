#include "framework/files.h"

#include <sys/stat.h>

#include <cstring>

#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using testing::TestFolder;

TEST(Files, ReadsAWholeFileAndRefusesWhatIsNone) {
  const TestFolder folder;
  EXPECT_EQ(read_file(folder.write("a", "one\0two"), 100), "one");
  EXPECT_EQ(read_file(folder.write("empty", "")), "");
  expect_parts(error_of(ExitCode::io, [&] { read_file(folder / "none"); }), {"none", "No such file", "check the path"});
  expect_parts(error_of(ExitCode::io, [&] { read_file(folder.path()); }), {"not a regular file"});
  expect_parts(error_of(ExitCode::bad_data, [&] { read_file(folder.write("big", "12345"), 4); }),
               {"big", "5 bytes", "at most 4"});
}

TEST(Files, APipeIsRefusedWithoutWaiting) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  error_of(ExitCode::io, [&] { read_file(folder / "pipe"); });
}

TEST(Files, AtomicWriteReplacesOrLeavesEverythingAsItWas) {
  const TestFolder folder;
  write_text_atomically(folder / "a", "first");
  EXPECT_EQ(slurp(folder / "a"), "first");
  EXPECT_THROW(write_atomically(folder / "a",
                                [](const std::string& temporary) {
                                  std::ofstream(temporary) << "half";
                                  fail(ExitCode::io, "disk full");
                                }),
               Error);
  EXPECT_EQ(slurp(folder / "a"), "first");
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"a"}) << "the temporary file was left behind";
  write_text_atomically(folder / "a", "second");
  EXPECT_EQ(slurp(folder / "a"), "second");
  write_text_atomically(folder / "new/folder/a", "x");
  EXPECT_EQ(slurp(folder / "new/folder/a"), "x");
  error_of(ExitCode::io, [&] { write_text_atomically(folder / "a/b", "x"); });                 // "a" is a file
  error_of(ExitCode::io, [&] { write_atomically(folder / "b", [](const std::string&) {}); });  // wrote nothing
}

TEST(Files, FullDiskIsAnIoErrorWithTheSystemsReason) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  OutputFile file("/dev/full");
  expect_parts(error_of(ExitCode::io, [&] { file.write("x", 1); }), {"/dev/full", "No space left", "free some space"});
}

TEST(Files, Hashes) {
  const TestFolder folder;
  EXPECT_EQ(hex(xxh3_of("", 0)), "2d06800538d394c2");  // published value of XXH3_64bits on empty input
  const std::string text(3'000'000, 'x');
  const std::uint64_t whole = xxh3_of(text.data(), text.size());
  EXPECT_EQ(xxh3_of_file(folder.write("x", text)), whole);
  Hasher pieces;
  pieces.add(text.data(), 1);
  pieces.add(text.data(), text.size() - 1);
  EXPECT_EQ(pieces.value(), whole);
  EXPECT_EQ(hex(255), "00000000000000ff");
}

TEST(Files, FreeBytesAndFolders) {
  const TestFolder folder;
  EXPECT_GT(free_bytes(folder.path()), 0);
  error_of(ExitCode::io, [&] { free_bytes(folder / "none"); });
  error_of(ExitCode::io, [&] { list_folder(folder / "none"); });
  folder.write("b", "");
  folder.write("a", "");
  EXPECT_EQ(list_folder(folder.path()), (std::vector<std::string>{"a", "b"}));
}

TEST(Files, AFileThatShrinksIsNoticed) {
  const TestFolder folder;
  const InputFile file(folder.write("a", "123456"));
  std::filesystem::resize_file(folder / "a", 3);
  char buffer[6];
  expect_parts(error_of(ExitCode::bad_data, [&] { file.read(0, buffer, 6); }), {"ends at byte 3", "6 bytes"});
}

TEST(Text, Utf8IsStrict) {
  for (const char* good : {"", "a", "é", "€", "🙂", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xff"}) {
    EXPECT_FALSE(is_utf8(bad)) << printable(bad);
  }
}

TEST(Text, PrintableIsOneLine) {
  EXPECT_EQ(printable("a\nb\tc\r\x01\xff é"), "a\\nb\\tc\\r\\x01\\xff é");
  EXPECT_EQ(printable("éééé", 3), "ééé…");
}

TEST(Text, PlainNamesStayInTheirFolder) {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", ".hidden", "a..b"})
    EXPECT_TRUE(is_plain_name(good)) << good;
  for (const char* bad : {"", ".", "..", "../a", "/a", "a/b", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_plain_name(bad)) << bad;
}

TEST(Json, StrictCheck) {
  const testing::WithoutTraps guard;
  check_json(R"({"a": [1, {"a": 2}], "b": {"a": null}})", "x");
  expect_parts(error_of(ExitCode::bad_data, [] { check_json(R"({"a": 1, "a": 2})", "x.json"); }),
               {"x.json", "'a'", "twice"});
  expect_parts(error_of(ExitCode::bad_data, [] { check_json("{\n\"a\": }", "x.json"); }), {"x.json", "line 2"});
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1}x", "{\"a\":NaN}", "{\"a\":1e999}", "\"\xff\"", "{'a':1}"}) {
    error_of(ExitCode::bad_data, [&] { check_json(bad, "x.json"); });
  }
  error_of(ExitCode::bad_data, [] { check_json(std::string("{}\0{}", 5), "x.json"); });
  error_of(ExitCode::bad_data, [] { check_json(std::string(1'000'000, '['), "deep.json"); });
}

}  // namespace
}  // namespace capstan::framework
