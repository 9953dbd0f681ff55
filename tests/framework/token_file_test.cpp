#include "framework/token_file.h"

#include "framework/files.h"
#include "framework/hdf5_file.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using testing::TestFolder;

TokenFileInfo info_of(std::int64_t vocabulary) {
  TokenFileInfo info;
  info.vocabulary = vocabulary;
  info.bos = 1;
  info.end = {2, 5};
  info.tokenizer = "tok512.model";
  info.tokenizer_hash = "0123456789abcdef";
  info.source = "a.txt b.txt";
  return info;
}

const std::vector<TokenDocument> two_documents = {{{1, 7, 8}, 2}, {{1, 9}, 1}};

TEST(TokenFile, ReadsWhatItWrote) {
  const TestFolder folder;
  for (const std::int64_t vocabulary : {512, 65536, 65537, 128256}) {
    const std::string path = folder / "t.h5";
    std::vector<TokenDocument> documents = two_documents;
    documents[1].ids[1] = std::int32_t(vocabulary - 1);  // the largest id must survive the narrow type
    write_token_file(path, documents, info_of(vocabulary));
    const TokenFile file = TokenFile::open(path);
    EXPECT_EQ(file.info().tokens, 5);
    EXPECT_EQ(file.info().documents, 2);
    EXPECT_EQ(file.info().words, 3);
    EXPECT_EQ(file.info().vocabulary, vocabulary);
    EXPECT_EQ(file.info().bos, 1);
    EXPECT_EQ(file.info().end, (std::vector<std::int32_t>{2, 5}));
    EXPECT_EQ(file.info().tokenizer, "tok512.model");
    EXPECT_EQ(file.info().tokenizer_hash, "0123456789abcdef");
    EXPECT_EQ(file.info().source, "a.txt b.txt");
    EXPECT_EQ(file.document_offsets(), (std::vector<std::int64_t>{0, 3, 5}));
    EXPECT_EQ(file.words(), (std::vector<std::int64_t>{2, 1}));
    EXPECT_EQ(file.read(2, 5), (std::vector<std::int32_t>{8, 1, std::int32_t(vocabulary - 1)}));
    EXPECT_TRUE(file.read(5, 5).empty());
    error_of(ExitCode::internal, [&] { file.read(4, 6); });
    EXPECT_EQ(verify_token_file(path), file.info().checksum);
    const Hdf5Type type = Hdf5File::open(path).dataset("tokens").type;
    EXPECT_EQ(name_of(type), vocabulary <= 65536 ? "u16" : "u32");
  }
}

TEST(TokenFile, KeepsTheLossMask) {
  const TestFolder folder;
  const std::string path = folder / "t.h5";
  std::vector<TokenDocument> documents = two_documents;
  write_token_file(path, documents, info_of(512));
  const std::string plain = verify_token_file(path);
  EXPECT_FALSE(TokenFile::open(path).info().loss_mask);
  EXPECT_EQ(TokenFile::open(path).read_loss_mask(1, 5), (std::vector<std::uint8_t>{1, 1, 1, 1}));

  documents[0].loss_mask = {0, 1, 0};  // the other has none: all of it counts
  write_token_file(path, documents, info_of(512));
  const TokenFile file = TokenFile::open(path);
  EXPECT_TRUE(file.info().loss_mask);
  EXPECT_EQ(file.read_loss_mask(0, 5), (std::vector<std::uint8_t>{0, 1, 0, 1, 1}));
  EXPECT_EQ(file.read_loss_mask(2, 4), (std::vector<std::uint8_t>{0, 1}));
  EXPECT_TRUE(file.read_loss_mask(5, 5).empty());
  EXPECT_EQ(verify_token_file(path), file.info().checksum);
  EXPECT_NE(file.info().checksum, plain);
  documents[0].loss_mask = {0, 1};
  error_of(ExitCode::internal, [&] { write_token_file(path, documents, info_of(512)); });
}

TEST(TokenFile, RefusesALossMaskThatDoesNotFit) {
  const TestFolder folder;
  const std::string path = folder / "t.h5";
  const auto write = [&](std::vector<std::uint8_t> mask) {
    Hdf5File file = Hdf5File::create(path);
    file.set_text("format", "capstan-tokens-2");
    file.set_integer("vocabulary", 512);
    file.set_integer("bos", 1);
    for (const char* name : {"end", "tokenizer", "tokenizer_hash", "source", "checksum"}) file.set_text(name, "");
    file.write("tokens", std::vector<std::uint16_t>{1, 7, 8});
    file.write("documents", std::vector<std::int64_t>{0, 3});
    file.write("words", std::vector<std::int64_t>{1});
    if (!mask.empty()) file.write("loss_mask", mask);
    file.close();
  };
  write({1, 0});
  expect_parts(error_of(ExitCode::bad_data, [&] { TokenFile::open(path); }), {path, "loss_mask", "2", "3 tokens"});
  write({});
  expect_parts(error_of(ExitCode::bad_data, [&] { TokenFile::open(path); }), {path, "loss_mask"});
  write({1, 2, 0});
  expect_parts(error_of(ExitCode::bad_data, [&] { TokenFile::open(path).read_loss_mask(0, 3); }),
               {path, "token 1", "is 2"});
}

TEST(TokenFile, SameContentGivesSameChecksum) {
  const TestFolder folder;
  write_token_file(folder / "a.h5", two_documents, info_of(512));
  write_token_file(folder / "b.h5", two_documents, info_of(512));
  EXPECT_EQ(verify_token_file(folder / "a.h5"), verify_token_file(folder / "b.h5"));
  EXPECT_EQ(slurp(folder / "a.h5"), slurp(folder / "b.h5")) << "no clock in the file";
}

TEST(TokenFile, RefusesToWriteWhatItWouldNotRead) {
  const TestFolder folder;
  const auto refused = [&](const std::vector<TokenDocument>& documents) {
    return error_of(ExitCode::bad_data, [&] { write_token_file(folder / "t.h5", documents, info_of(512)); });
  };
  expect_parts(refused({{{1, 512}, 1}}), {"t.h5", "token 1", "id 512", "vocabulary has 512"});
  expect_parts(refused({{{-1}, 1}}), {"id -1"});
  expect_parts(refused({{{1}, 1}, {{}, 0}}), {"document 1 has no tokens"});
  expect_parts(refused({}), {"no documents"});
  EXPECT_TRUE(list_folder(folder.path()).empty()) << "nothing half-written, no temporary file";
  error_of(ExitCode::io, [&] { write_token_file(folder.write("file", "x") + "/t.h5", two_documents, info_of(512)); });
}

/// A token file made by hand, with one thing wrong.
struct Foreign {
  std::string format = "capstan-tokens-1", end = "2";
  std::int64_t vocabulary = 512, bos = 1;
  std::vector<std::uint16_t> tokens{1, 7, 8, 1, 9};
  std::vector<std::int64_t> documents{0, 3, 5}, words{2, 1};

  std::string write(const TestFolder& folder) const {
    Hdf5File file = Hdf5File::create(folder / "f.h5");
    file.set_text("format", format);
    file.set_integer("vocabulary", vocabulary);
    file.set_integer("bos", bos);
    file.set_text("end", end);
    for (const char* name : {"tokenizer", "tokenizer_hash", "source", "checksum"}) file.set_text(name, "x");
    file.write("tokens", tokens);
    file.write("documents", documents);
    file.write("words", words);
    file.close();
    return folder / "f.h5";
  }
};

template <class Change> std::string refusal(Change&& change) {
  const TestFolder folder;
  Foreign foreign;
  change(foreign);
  const std::string path = foreign.write(folder);
  const std::string line = error_of(ExitCode::bad_data, [&] {
    const TokenFile file = TokenFile::open(path);
    file.read(0, file.info().tokens);
  });
  expect_parts(line, {"f.h5"});
  return line;
}

TEST(TokenFile, RefusesInconsistentFiles) {
  const TestFolder folder;
  EXPECT_EQ(TokenFile::open(Foreign().write(folder)).read(0, 2), (std::vector<std::int32_t>{1, 7}));
  expect_parts(refusal([](Foreign& f) { f.format = "capstan-tokens-3"; }), {"capstan-tokens-3", "capstan-tokens-1"});
  expect_parts(refusal([](Foreign& f) { f.vocabulary = 0; }), {"vocabulary 0"});
  expect_parts(refusal([](Foreign& f) { f.vocabulary = 70000; }), {"'tokens' is u16", "of u32"});
  expect_parts(refusal([](Foreign& f) { f.vocabulary = std::int64_t(1) << 40; }), {"1099511627776"});
  expect_parts(refusal([](Foreign& f) { f.bos = 512; }), {"BOS 512"});
  expect_parts(refusal([](Foreign& f) { f.end = "2,600"; }), {"end id 600"});
  expect_parts(refusal([](Foreign& f) { f.end = "2,"; }), {"'2,'"});
  expect_parts(refusal([](Foreign& f) { f.end = "two"; }), {"'two'"});
  expect_parts(refusal([](Foreign& f) { f.documents = {1, 3, 5}; }), {"begins at token 1"});
  expect_parts(refusal([](Foreign& f) { f.documents = {0, 3, 3}; }), {"document 1", "empty"});
  expect_parts(refusal([](Foreign& f) { f.documents = {0, 7, 5}; }), {"document 1", "reversed"});
  expect_parts(refusal([](Foreign& f) { f.documents = {0, 3, 6}; }), {"end at token 6", "5 tokens"});
  expect_parts(refusal([](Foreign& f) { f.documents = {0}; }), {"no document"});
  expect_parts(refusal([](Foreign& f) { f.tokens = {}; }), {"no document"});
  expect_parts(refusal([](Foreign& f) { f.words = {1}; }), {"1 word counts", "2 documents"});
  expect_parts(refusal([](Foreign& f) { f.words = {1, -1}; }), {"-1 words"});
  expect_parts(refusal([](Foreign& f) { f.tokens[3] = 512; }), {"token 3", "id 512", "vocabulary has 512"});
}

TEST(TokenFile, RefusesMissingForeignAndDamagedFiles) {
  const TestFolder folder;
  expect_parts(error_of(ExitCode::io, [&] { TokenFile::open(folder / "none.h5"); }), {"none.h5", "check the path"});
  error_of(ExitCode::bad_data, [&] { TokenFile::open(folder.write("text.h5", "hello")); });
  error_of(ExitCode::bad_data, [&] { TokenFile::open(folder.write("empty.h5", "")); });
  Hdf5File other = Hdf5File::create(folder / "other.h5");
  other.write("x", std::vector<float>{1});
  other.close();
  expect_parts(error_of(ExitCode::bad_data, [&] { TokenFile::open(folder / "other.h5"); }),
               {"other.h5", "capstan prepare"});
}

TEST(TokenFile, VerifyFindsEveryChangedByteOfTheData) {
  const TestFolder folder;
  write_token_file(folder / "t.h5", two_documents, info_of(512));
  const std::string whole = slurp(folder / "t.h5");
  const std::string stored("\x01\0\x07\0\x08\0\x01\0\x09\0", 10);
  const std::size_t at = whole.find(stored);
  ASSERT_NE(at, std::string::npos);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    std::string damaged = whole;
    damaged[at + i] = char(damaged[at + i] ^ 1);
    folder.write("d.h5", damaged);
    EXPECT_TRUE(testing::survives([&] { verify_token_file(folder / "d.h5"); })) << i;
  }
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    folder.write("cut.h5", whole.substr(0, size));
    EXPECT_TRUE(testing::survives([&] { TokenFile::open(folder / "cut.h5"); })) << size;
  }
}

TEST(TokenFile, MovesKeepTheFileOpen) {
  const TestFolder folder;
  write_token_file(folder / "t.h5", two_documents, info_of(512));
  std::vector<TokenFile> files;
  for (int i = 0; i < 3; ++i) files.push_back(TokenFile::open(folder / "t.h5"));
  EXPECT_EQ(files[0].read(0, 1), std::vector<std::int32_t>{1});
}

}  // namespace
}  // namespace capstan::framework
