#include "framework/tokenizer.h"

#include <algorithm>

#include "framework/files.h"
#include "framework/json.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::golden;
using testing::slurp;
using testing::TestFolder;
using Ids = std::vector<std::int32_t>;

TEST(ByteTokenizer, IsTheIdentityOnBytes) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->hash(), "bytes");
  EXPECT_EQ(tokenizer->vocabulary(), 258);
  EXPECT_EQ(tokenizer->bos(), 256);
  EXPECT_EQ(tokenizer->end(), Ids{257});
  EXPECT_EQ(tokenizer->encode("aé"), (Ids{97, 195, 169}));
  EXPECT_EQ(tokenizer->decode({256, 97, 195, 169, 257}), "aé");
  std::string all;
  for (int i = 0; i < 256; ++i) all += char(i);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)), all);
  expect_parts(error_of(ExitCode::bad_data, [&] { tokenizer->decode({258}); }), {"bytes", "id 258", "258"});
  error_of(ExitCode::bad_data, [&] { tokenizer->decode({-1}); });
  EXPECT_EQ(make_tokenizer("bytes", {10})->end(), Ids{10});
}

TEST(SentencePiece, GoldenIdsOf25Strings) {
  for (const std::string name : {"tok512", "pg19_bpe_2048", "pg19_bpe_8192"}) {
    const auto tokenizer = make_tokenizer(golden("tokenizers/" + name + ".model"));
    std::ifstream lines(golden("tokenizers/tokenizer_golden.jsonl"));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      const auto entry = nlohmann::json::parse(line);
      const std::string text = entry["text"];
      EXPECT_EQ(tokenizer->encode(text), entry[name].get<Ids>()) << name << ": " << text;
      const bool lossless = name != "tok512";  // its normaliser merges spaces
      EXPECT_TRUE(!lossless || tokenizer->decode(tokenizer->encode(text)) == text) << name << ": " << text;
    }
    EXPECT_EQ(count, 25);
  }
}

TEST(SentencePiece, KnowsItsModel) {
  const std::string path = golden("tokenizers/tok512.model");
  const auto tokenizer = make_tokenizer(path);
  EXPECT_EQ(tokenizer->name(), "tok512.model");
  EXPECT_EQ(tokenizer->hash(), hex(xxh3_of_file(path)));
  EXPECT_EQ(tokenizer->vocabulary(), 512);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->end(), Ids{2});
  EXPECT_EQ(make_tokenizer(path, {1})->end(), Ids{1});
  expect_parts(error_of(ExitCode::config, [&] { make_tokenizer(path, {512}); }), {"tok512.model", "512", "0 to 511"});
}

TEST(SentencePiece, DecodesBytesAndLeavesMarksOut) {
  const auto tokenizer = make_tokenizer(golden("tokenizers/tok512.model"));
  EXPECT_EQ(tokenizer->decode({1, 403, 407, 261, 378, 2}), "Once upon a time");
  const Ids newline = tokenizer->encode("a\nb");
  EXPECT_EQ(std::count(newline.begin(), newline.end(), 3 + '\n'), 1) << "byte piece <0x0A>";
  EXPECT_EQ(tokenizer->decode(newline), "a\nb");
  const Ids smile = tokenizer->encode("🙂");  // four byte pieces after the leading space
  EXPECT_EQ(tokenizer->decode(smile), "🙂");
  EXPECT_EQ(tokenizer->decode({}), "");
  EXPECT_EQ(tokenizer->decode({1, 1, 2}), "");
  expect_parts(error_of(ExitCode::bad_data, [&] { tokenizer->decode({512}); }), {"tok512.model", "id 512", "512"});
}

TEST(SentencePiece, LeadingSpaceOfTheTextOnlyIsKept) {
  const auto tokenizer = make_tokenizer(golden("tokenizers/pg19_bpe_2048.model"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("word")), "word");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" word")), " word");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  word ")), "  word ");
  // Streaming: what a token adds, as a difference of two decodes, keeps the spaces between words.
  const Ids ids = tokenizer->encode("Once upon a time");
  std::string streamed;
  for (std::size_t i = 1; i <= ids.size(); ++i) {
    const std::string now = tokenizer->decode({ids.begin(), ids.begin() + std::ptrdiff_t(i)});
    const std::string before = tokenizer->decode({ids.begin(), ids.begin() + std::ptrdiff_t(i) - 1});
    ASSERT_EQ(now.substr(0, before.size()), before);
    streamed += now.substr(before.size());
  }
  EXPECT_EQ(streamed, "Once upon a time");
}

TEST(MakeTokenizer, TakesAFolder) {
  const TestFolder folder;
  expect_parts(error_of(ExitCode::io, [&] { make_tokenizer(folder.path()); }), {"tokenizer.model", "'bytes'"});
  folder.write("tokenizer", "bytes\n");
  EXPECT_EQ(make_tokenizer(folder.path())->name(), "bytes");
  folder.write("tokenizer", "words\n");
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(folder.path()); }), {"'words'", "'bytes'"});
  std::filesystem::copy_file(golden("tokenizers/tok512.model"), folder / "tokenizer.model");
  EXPECT_EQ(make_tokenizer(folder.path())->vocabulary(), 512);
}

TEST(MakeTokenizer, RefusesWhatIsNoModel) {
  const TestFolder folder;
  expect_parts(error_of(ExitCode::io, [&] { make_tokenizer(folder / "none.model"); }),
               {"none.model", "check the path"});
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(folder.write("empty.model", "")); }), {"empty.model"});
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(folder.write("t.model", "just some text")); }),
               {"t.model"});
  const std::string big = folder.write("big.model", "");
  std::filesystem::resize_file(big, (std::uintmax_t(64) << 20) + 1);
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(big); }), {"big.model", "67108865", "67108864"});
}

TEST(MakeTokenizer, NoTruncationIsReadAsWhole) {
  const TestFolder folder;
  const std::string whole = slurp(golden("tokenizers/tok512.model"));
  for (std::size_t size = 0; size < whole.size(); size += size + 300 < whole.size() ? 13 : 1) {
    const std::string path = folder.write("cut.model", whole.substr(0, size));
    error_of(ExitCode::bad_data, [&] { make_tokenizer(path)->encode("Once upon a time é"); });
  }
}

TEST(MakeTokenizer, DamagedBytesGiveErrorsOnly) {
  const TestFolder folder;
  const std::string whole = slurp(golden("tokenizers/tok512.model"));
  for (std::size_t i = 0; i < whole.size(); i += 11) {
    for (const int flip : {1, 0xff}) {
      std::string damaged = whole;
      damaged[i] = char(damaged[i] ^ flip);
      const std::string path = folder.write("damaged.model", damaged);
      testing::survives([&] {
        const auto tokenizer = make_tokenizer(path);
        tokenizer->decode(tokenizer->encode("Once upon a time é 🙂"));
      });
    }
  }
}

/// One protobuf field of wire type 2.
std::string part(int number, const std::string& bytes) {
  std::string field(1, char(number << 3 | 2));
  for (std::size_t rest = bytes.size(); true; rest >>= 7) {
    field += char((rest & 0x7f) | (rest >= 0x80 ? 0x80 : 0));
    if (rest < 0x80) return field + bytes;
  }
}

/// tok512 with another normaliser: `trie` and `texts` as its character map.
std::string with_character_map(const std::string& trie, const std::string& texts) {
  const std::uint32_t size = std::uint32_t(trie.size());
  std::string map(reinterpret_cast<const char*>(&size), 4);
  map += trie + texts;
  return slurp(golden("tokenizers/tok512.model")) + part(3, part(2, map));  // protobuf merges: the last one wins
}

TEST(MakeTokenizer, CharacterMapMayNotPointOutside) {
  const TestFolder folder;
  const auto refused = [&](const std::string& trie, const std::string& texts) {
    const std::string path = folder.write("map.model", with_character_map(trie, texts));
    expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(path); }), {"map.model", "character map"});
  };
  std::string trie(1024, '\0');
  const std::string good = folder.write("good.model", with_character_map(trie, std::string("x\0", 2)));
  EXPECT_EQ(make_tokenizer(good)->encode("Once upon a time").size(), 4u);
  refused(trie, "x");                                       // the text has no end
  refused(trie, "");                                        // no texts
  refused(std::string(1000, '\0'), std::string("x\0", 2));  // not whole blocks
  trie[3] = 0x10;                                           // unit 0 leads far outside
  refused(trie, std::string("x\0", 2));
  trie[3] = char(0x80);
  trie[1] = 0x10;  // a value behind the last text
  refused(trie, std::string("x\0", 2));
}

}  // namespace
}  // namespace capstan::framework
