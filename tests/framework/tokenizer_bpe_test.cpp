#include <algorithm>
#include <random>
#include <thread>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/tokenizer.h"
#include "framework/tokenizers/bpe.h"
#include "framework/tokenizers/text_splitter.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::golden;
using testing::slurp;
using testing::survives;
using testing::TestFolder;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

// ---- Golden ids.

/// Holds every line of `lines` that has ids under `key` to them; returns how many.
int expect_golden(const Tokenizer& tokenizer, const std::string& lines, const std::string& key) {
  std::ifstream file(golden("tokenizers/" + lines));
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json entry = Json::parse(line);
    const std::string text = entry["text"];
    EXPECT_EQ(tokenizer.encode(text), entry[key].get<Ids>()) << key << ": " << printable(text, 200);
  }
  return count;
}

TEST(BpeTokenizer, GoldenIdsOfGpt2) {
  const auto tokenizer = make_tokenizer(golden("tokenizers/gpt2"));
  EXPECT_EQ(tokenizer->name(), "tokenizer.json");
  EXPECT_EQ(tokenizer->vocabulary(), 50257);
  EXPECT_EQ(tokenizer->bos(), 50256);
  EXPECT_EQ(tokenizer->end(), Ids{50256});
  EXPECT_EQ(expect_golden(*tokenizer, "tokenizer_golden.jsonl", "gpt2"), 25);
  const std::string plain = "<|endoftext|>";  // in GPT-2's own pair no token is looked for in the text
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(plain)), plain);
  EXPECT_EQ(tokenizer->decode({15496, 50256, 995}), "Hello world");
}

TEST(BpeTokenizer, GoldenIdsOfNeoxAndLlama3Kinds) {
  for (const std::string name : {"neox_kind", "llama3_kind"}) {
    const std::string path = golden("tokenizers/" + name + ".json");
    const auto tokenizer = make_tokenizer(path);
    EXPECT_EQ(tokenizer->name(), name + ".json");
    EXPECT_EQ(tokenizer->hash(), hex(xxh3_of_file(path)));
    EXPECT_EQ(expect_golden(*tokenizer, "bpe_golden.jsonl", name), 237);
  }
  const auto neox = make_tokenizer(golden("tokenizers/neox_kind.json"));
  EXPECT_EQ(neox->bos(), 0);
  EXPECT_EQ(neox->end(), Ids{0});
  const auto llama = make_tokenizer(golden("tokenizers/llama3_kind.json"));
  EXPECT_EQ(llama->bos(), 3259) << "by the template";
  EXPECT_EQ(llama->end(), Ids{}) << "by nothing";
  EXPECT_EQ(make_tokenizer(golden("tokenizers/llama3_kind.json"), {3263})->end(), Ids{3263});
}

// ---- Merging, against the definition.

/// The definition: look through all pairs, merge the first of the lowest rank, start again.
Ids naive_merge(Ids word, const std::vector<BpeMerge>& merges) {
  while (true) {
    std::size_t best = merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i)
      for (std::size_t rank = 0; rank < best; ++rank)
        if (merges[rank].left == word[i] && merges[rank].right == word[i + 1]) best = rank, at = i;
    if (best == merges.size()) return word;
    word[at] = merges[best].joined;
    word.erase(word.begin() + std::ptrdiff_t(at) + 1);
  }
}

TEST(BpeMerger, IsTheDefinitionOnRandomWords) {
  std::mt19937_64 random(3);
  const auto below = [&](std::size_t limit) { return std::size_t(random() % limit); };
  for (int trial = 0; trial < 400; ++trial) {
    const std::size_t letters = 1 + below(4);
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < letters; ++i) tokens.push_back(std::string(1, char('a' + i)));
    std::vector<BpeMerge> merges;
    for (std::size_t i = 0; i < 1 + below(30); ++i) {
      const std::size_t left = below(tokens.size()), right = below(tokens.size());
      const std::string joined = tokens[left] + tokens[right];
      const bool known = std::any_of(merges.begin(), merges.end(), [&](const BpeMerge& m) {
        return m.left == std::int32_t(left) && m.right == std::int32_t(right);
      });
      if (known) continue;
      auto place = std::find(tokens.begin(), tokens.end(), joined);  // two merges may give one token
      if (place == tokens.end()) place = tokens.insert(tokens.end(), joined);
      merges.push_back({std::int32_t(left), std::int32_t(right), std::int32_t(place - tokens.begin())});
    }
    std::shuffle(merges.begin(), merges.end(), random);  // ranks need not follow lengths
    const BpeMerger merger(merges);
    for (int i = 0; i < 20; ++i) {
      Ids word(below(40));
      for (std::int32_t& id : word) id = std::int32_t(below(letters));
      Ids merged = word;
      merger.merge(merged);
      ASSERT_EQ(merged, naive_merge(word, merges)) << "trial " << trial;
    }
  }
}

TEST(BpeMerger, LongWordsTakeNoSquareOfTheirLength) {
  const BpeMerger merger({{0, 0, 1}, {1, 1, 2}, {2, 2, 3}, {3, 3, 4}});
  Ids word(1 << 20, 0);  // a trillion steps otherwise
  merger.merge(word);
  EXPECT_EQ(word, Ids(1 << 16, 4));
}

// ---- Round trips.

TEST(BpeTokenizer, AnyBytesComeBack) {
  std::mt19937_64 random(7);
  const auto gpt2 = make_tokenizer(golden("tokenizers/gpt2")),
             llama = make_tokenizer(golden("tokenizers/llama3_kind.json"));
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes(random() % 60, '\0');
    for (char& byte : bytes) byte = char(trial % 2 == 0 ? random() % 256 : "é 's1\n€\t"[random() % 11]);
    ASSERT_EQ(gpt2->decode(gpt2->encode(bytes)), bytes) << printable(bytes);
    ASSERT_EQ(llama->decode(llama->encode(bytes)), bytes) << printable(bytes);
  }
}

TEST(BpeTokenizer, StreamsAndLeavesMarksOut) {
  const auto tokenizer = make_tokenizer(golden("tokenizers/llama3_kind.json"), {3263});
  const std::string text = "Once upon a time 🙂 it's";
  const Ids ids = tokenizer->encode(text);
  std::string streamed;
  for (std::size_t i = 1; i <= ids.size(); ++i) {
    const std::string now = tokenizer->decode({ids.begin(), ids.begin() + std::ptrdiff_t(i)});
    ASSERT_EQ(now.compare(0, streamed.size(), streamed), 0);
    streamed = now;
  }
  EXPECT_EQ(streamed, text);
  Ids marked{3259};
  marked.insert(marked.end(), ids.begin(), ids.end());
  marked.push_back(3263);
  EXPECT_EQ(tokenizer->decode(marked), text);
  EXPECT_EQ(tokenizer->decode({3261}), "<|start_header_id|>") << "only BOS and end are left out";
  expect_parts(error_of(ExitCode::bad_data, [&] { tokenizer->decode({3266}); }), {"llama3_kind.json", "3266"});
  error_of(ExitCode::bad_data, [&] { tokenizer->decode({-1}); });
  expect_parts(error_of(ExitCode::config, [&] { make_tokenizer(golden("tokenizers/llama3_kind.json"), {3266}); }),
               {"3266", "0 to 3265"});
}

TEST(BpeTokenizer, EncodesTheSameFromItsCacheAndFromFourThreads) {
  const auto tokenizer = make_tokenizer(golden("tokenizers/neox_kind.json"));
  const std::string text = slurp(golden("tokenizers/LICENSE"));
  const Ids first = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->encode(text), first);
  std::vector<std::thread> threads;
  std::vector<Ids> got(4);
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, first);
}

// ---- Small tokenizers: 256 byte tokens (in the alphabet's order) and what a test adds.

Json byte_level(bool prefix_space = false, bool regex = true) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", regex}};
}

/// Ids 0…255 are the bytes, 256 "ab", 257 "abc", 258 <|endoftext|>.
Json small() {
  Json vocabulary = Json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printed = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int character = printed ? byte : next++;
    const std::string text = character < 0x80
                                 ? std::string(1, char(character))
                                 : std::string{char(0xc0 | character >> 6), char(0x80 | (character & 0x3f))};
    vocabulary[text] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  const Json end = {{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}};
  return {{"version", "1.0"},
          {"added_tokens", {end}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level()},
          {"post_processor", nullptr},
          {"decoder", byte_level()},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c"}}}}};
}

Json added(int id, const std::string& text) { return {{"id", id}, {"content", text}, {"normalized", false}}; }

class SmallTokenizer : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> make(const Json& json) const {
    return make_tokenizer(folder_.write("tokenizer.json", json.dump()));
  }

  /// What is changed from small() by the patch must be refused in a line with the parts.
  void refused(const Json& patch, const std::vector<std::string>& parts) const {
    Json json = small();
    json.merge_patch(patch);
    refused_whole(json, parts);
  }

  void refused_whole(const Json& json, const std::vector<std::string>& parts) const {
    const std::string line = error_of(ExitCode::bad_data, [&] { make(json); });
    expect_parts(line, {"tokenizer.json: "});
    expect_parts(line, parts);
  }

  TestFolder folder_;
};

TEST_F(SmallTokenizer, MergesWordsAndMarks) {
  const auto tokenizer = make(small());
  EXPECT_EQ(tokenizer->encode("abcab abd"), (Ids{257, 256, ' ', 256, 'd'}));
  EXPECT_EQ(tokenizer->encode("ab<|endoftext|>c"), (Ids{256, 258, 'c'}));
  EXPECT_EQ(tokenizer->decode({256, 258, 'c'}), "abc");
  EXPECT_EQ(tokenizer->vocabulary(), 259);
  EXPECT_EQ(tokenizer->encode(""), Ids{});
}

TEST_F(SmallTokenizer, AddedTokensAreTheLeftmostAndLongest) {
  Json json = small();
  for (const Json& token : {added(259, "[x"), added(260, "[x]"), added(261, "x]]")})
    json["added_tokens"].push_back(token);
  EXPECT_EQ(make(json)->encode("a[x]]"), (Ids{'a', 260, ']'}));
  EXPECT_EQ(make(json)->encode("[xx]]"), (Ids{259, 261}));
  json["added_tokens"][2]["lstrip"] = json["added_tokens"][2]["rstrip"] = true;
  EXPECT_EQ(make(json)->encode("a \n\u3000[x]\t b"), (Ids{'a', 260, 'b'}));
  // One that is found in the normalised text.
  json["added_tokens"].push_back({{"id", 262}, {"content", "e\u0301"}, {"normalized", true}});
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(make(json)->encode("\u00e9e\u0301"), (Ids{262, 262}));
}

TEST_F(SmallTokenizer, PrefixSpaceComesAndGoes) {
  Json json = small();
  json["pre_tokenizer"] = byte_level(true);
  const auto tokenizer = make(json);
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{' ', 256}));
  EXPECT_EQ(tokenizer->encode(" ab"), (Ids{' ', 256}));
  EXPECT_EQ(tokenizer->decode({' ', 256}), "ab");
}

TEST_F(SmallTokenizer, SplitsByPatternsAndTexts) {
  const auto cut = [&](const Json& split, const std::string& text) {
    Json json = small();
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}};
    return make(json)->encode(text);
  };
  const auto split = [](const char* kind, const char* pattern, const char* behavior, bool invert) -> Json {
    return {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", behavior}, {"invert", invert}};
  };
  EXPECT_EQ(cut(split("String", "b", "Isolated", false), "abc"), (Ids{'a', 'b', 'c'}));
  EXPECT_EQ(cut(split("String", ".", "Removed", false), "ab.ab"), (Ids{256, 256}));
  EXPECT_EQ(cut(split("Regex", "[a-c]+", "Removed", true), "-abc+ab "), (Ids{257, 256}));
  EXPECT_EQ(cut({{"type", "Digits"}, {"individual_digits", true}}, "ab12"), (Ids{256, '1', '2'}));
}

TEST_F(SmallTokenizer, BytesWithoutTokens) {
  Json json = small();
  json["model"]["vocab"].erase("z");
  json["model"]["merges"] = Json::array();
  expect_parts(error_of(ExitCode::bad_data, [&] { make(json)->encode("az"); }), {"tokenizer.json", "0x7a"});
  json["model"]["unk_token"] = "?";
  EXPECT_EQ(make(json)->encode("azz"), (Ids{'a', '?', '?'}));
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(make(json)->encode("azz"), (Ids{'a', '?'}));
  expect_parts(error_of(ExitCode::bad_data, [&] { make(json)->decode({'z'}); }), {"id 122 is no token"});
}

TEST_F(SmallTokenizer, MarksComeFromTheFilesBeside) {
  make(small());
  const std::string path = folder_ / "tokenizer.json";
  const auto marks = [&] {
    const auto tokenizer = make_tokenizer(path);
    return std::pair(tokenizer->bos(), tokenizer->end());
  };
  folder_.write("config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 3]})");
  EXPECT_EQ(marks(), std::pair(1, Ids{2, 3}));
  folder_.write("generation_config.json", R"({"eos_token_id": 4})");
  EXPECT_EQ(marks(), std::pair(1, Ids{4}));
  folder_.write("tokenizer_config.json", R"({"bos_token": {"content": "ab"}, "eos_token": "abc"})");
  EXPECT_EQ(marks(), std::pair(256, Ids{257}));
  EXPECT_EQ(make_tokenizer(folder_.path(), {5})->end(), Ids{5});
  // Of another tokenizer.
  folder_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  expect_parts(error_of(ExitCode::bad_data, marks), {"tokenizer_config.json: eos_token", "'</s>'", "tokenizer.json"});
  folder_.write("tokenizer_config.json", R"({"eos_token": 7})");
  expect_parts(error_of(ExitCode::bad_data, marks), {"tokenizer_config.json: eos_token is 7", "a text"});
  folder_.write("tokenizer_config.json", "{}");
  folder_.write("generation_config.json", R"({"eos_token_id": 259})");
  expect_parts(error_of(ExitCode::bad_data, marks), {"generation_config.json: eos_token_id is 259", "0 to 258"});
  folder_.write("generation_config.json", R"({"eos_token_id": "x"})");
  expect_parts(error_of(ExitCode::bad_data, marks), {"eos_token_id is \"x\"", "ids below"});
  folder_.write("generation_config.json", "{");
  expect_parts(error_of(ExitCode::bad_data, marks), {"generation_config.json", "malformed"});
}

TEST_F(SmallTokenizer, WhatIsNotKnownIsRefusedByName) {
  refused({{"version", "2.0"}}, {"version is \"2.0\"", "allowed is 1.0"});
  refused({{"extra", 1}}, {"extra is 1", "the fields known here"});
  refused({{"model", nullptr}}, {"model is null"});
  refused({{"model", {{"type", "Unigram"}}}}, {"model.type is \"Unigram\"", "allowed is BPE"});
  refused({{"model", {{"dropout", 0.1}}}}, {"model.dropout is 0.1", "null"});
  refused({{"model", {{"continuing_subword_prefix", "##"}}}}, {"model.continuing_subword_prefix is \"##\""});
  refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, {"model.end_of_word_suffix is \"</w>\""});
  refused({{"model", {{"byte_fallback", true}}}}, {"model.byte_fallback is true", "tokenizer.model"});
  refused({{"model", {{"ignore_merges", 1}}}}, {"model.ignore_merges is 1", "true or false"});
  refused({{"model", {{"new", 1}}}}, {"model.new is 1"});
  refused({{"model", {{"unk_token", "<unk>"}}}}, {"model.unk_token is \"<unk>\"", "a token of the vocabulary"});
  refused({{"normalizer", {{"type", "Lowercase"}}}}, {"normalizer.type is \"Lowercase\"", "NFC"});
  refused({{"normalizer", 1}}, {"normalizer is 1"});
  refused({{"pre_tokenizer", nullptr}}, {"pre_tokenizer is null", "ByteLevel"});
  refused({{"pre_tokenizer", {{"type", "Whitespace"}}}}, {"pre_tokenizer.type is \"Whitespace\"", "Split"});
  refused({{"pre_tokenizer", {{"odd", 1}}}}, {"pre_tokenizer.odd is 1"});
  refused({{"post_processor", {{"type", "BertProcessing"}}}}, {"post_processor.type", "TemplateProcessing"});
  refused({{"decoder", nullptr}}, {"decoder is null", "ByteLevel"});
  refused({{"decoder", {{"type", "Metaspace"}}}}, {"decoder.type is \"Metaspace\""});
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}};
  Json json = small();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level()}}};
  refused_whole(json, {"pre_tokenizer.pretokenizers[0].behavior is \"Contiguous\"", "Isolated or Removed"});
  json["pre_tokenizer"]["pretokenizers"] = {byte_level(), split};
  refused_whole(json, {"pretokenizers[1].type is \"Split\"", "none after ByteLevel"});
}

TEST_F(SmallTokenizer, FieldsThatContradictEachOtherAreRefused) {
  refused({{"model", {{"vocab", {{"ab", 255}}}}}}, {"model.vocab: '", "is 255", "an id of its own"});
  refused({{"model", {{"vocab", {{"ab", -1}}}}}}, {"model.vocab: 'ab' is -1", "0 to 3999999"});
  refused({{"model", {{"vocab", {{"ab", 4000000}}}}}}, {"model.vocab: 'ab' is 4000000"});
  refused({{"model", {{"vocab", {{"ab", 1.5}}}}}}, {"model.vocab: 'ab' is 1.5"});
  refused({{"model", {{"vocab", {{"", 300}}}}}}, {"a token of 1 to 4096 bytes"});
  refused({{"model", {{"vocab", {{"ab", nullptr}}}}}}, {"model.merges[0] is \"a b\"", "has no 'ab'"});
  refused({{"model", {{"merges", {"a b", "ab"}}}}}, {"model.merges[1] is \"ab\"", "two tokens"});
  refused({{"model", {{"merges", {"a b c"}}}}}, {"model.merges[0] is \"a b c\""});
  refused({{"model", {{"merges", {1}}}}}, {"model.merges[0] is 1"});
  refused({{"model", {{"merges", {"a b", {"a", "b"}}}}}}, {"model.merges[1]", "a pair that is there once"});
  refused({{"model", {{"merges", nullptr}}}}, {"model.merges is null"});
  refused({{"model", {{"merges", "x"}}}}, {"model.merges is \"x\"", "a list"});
  const auto with = [&](const Json& token) {
    Json json = small();
    json["added_tokens"].push_back(token);
    return json;
  };
  refused_whole(with(added(3, "ab")), {"added_tokens[1].id is 3", "256, as in model.vocab"});
  refused_whole(with(added(3, "new")), {"added_tokens[1].id is 3", "an id of its own"});
  refused_whole(with(added(258, "<|endoftext|>")), {"added_tokens[1].content", "there once"});
  refused_whole(with(added(259, "")), {"added_tokens[1].content", "1 to 4096 bytes"});
  Json odd = added(259, "x");
  odd["single_word"] = true;
  refused_whole(with(odd), {"added_tokens[1].single_word is true", "allowed is false"});
  refused_whole(with({{"id", 259}}), {"added_tokens[1].content is null"});
  const auto templated = [&](const Json& single, const Json& tokens) {
    Json json = small();
    json["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
    return json;
  };
  const Json text = {{"Sequence", {{"id", "A"}}}}, mark = {{"SpecialToken", {{"id", "ab"}}}};
  const Json right = {{"ab", {{"id", "ab"}, {"ids", {256}}}}}, wrong = {{"ab", {{"id", "ab"}, {"ids", {7}}}}};
  EXPECT_EQ(make(templated({mark, text}, right))->bos(), 256);
  EXPECT_EQ(make(templated({text, mark}, right))->end(), Ids{256});
  refused_whole(templated({mark, text}, wrong), {"post_processor.special_tokens.ab.ids is [7]", "256"});
  refused_whole(templated({mark, text}, Json::object()), {"a name of special_tokens"});
  refused_whole(templated({mark, mark, text}, right), {"post_processor.single[1]", "at most one token"});
  refused_whole(templated(Json::array({mark}), right), {"a list with a Sequence"});
}

TEST_F(SmallTokenizer, NoTruncationAndNoDamageIsReadAsWhole) {
  const std::string whole = small().dump();
  for (std::size_t size = 0; size < whole.size(); size += 7)
    error_of(ExitCode::bad_data, [&] { make_tokenizer(folder_.write("cut.json", whole.substr(0, size))); });
  for (std::size_t i = 0; i < whole.size(); i += 3)
    for (const int flip : {1, 2, 0x80}) {
      std::string damaged = whole;
      damaged[i] = char(damaged[i] ^ flip);
      survives([&] {
        const auto tokenizer = make_tokenizer(folder_.write("damaged.json", damaged));
        tokenizer->decode(tokenizer->encode("abc é 🙂<|endoftext|>"));
      });
    }
}

TEST_F(SmallTokenizer, NestedAndHugeFilesAreRefused) {
  expect_parts(
      error_of(ExitCode::bad_data, [&] { make_tokenizer(folder_.write("deep.json", std::string(100000, '['))); }),
      {"deep.json"});
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(folder_.write("list.json", "[]")); }),
               {"list.json", "an object"});
  const std::string big = folder_.write("big.json", "");
  std::filesystem::resize_file(big, (std::uintmax_t(64) << 20) + 1);
  expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(big); }), {"big.json", "67108864"});
}

// ---- GPT-2's pair.

TEST(Gpt2Pair, BecomesOneFileThatIsTheSameTokenizer) {
  const TestFolder folder;
  const TokenizerFile file = tokenizer_file(golden("tokenizers/gpt2"));
  EXPECT_EQ(file.name, "tokenizer.json");
  const auto pair = make_tokenizer(golden("tokenizers/gpt2"));
  const auto one = make_tokenizer(folder.write("tokenizer.json", file.bytes));
  EXPECT_EQ(one->hash(), pair->hash());
  EXPECT_EQ(one->encode("Hello world, it's 2024"), pair->encode("Hello world, it's 2024"));
  EXPECT_EQ(one->bos(), pair->bos());
  EXPECT_EQ(tokenizer_file(folder.path()).bytes, file.bytes);
}

TEST(Gpt2Pair, DamageIsRefused) {
  const TestFolder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  const auto refused = [&](const std::string& merges, const std::vector<std::string>& parts) {
    folder.write("merges.txt", merges);
    expect_parts(error_of(ExitCode::bad_data, [&] { make_tokenizer(folder.path()); }), parts);
  };
  refused("#version: 0.2\n", {"merges.txt", "no merges"});
  refused("a b\nab\n", {"tokenizer.json: model.merges[1] is \"ab\""});
  refused("a c\n", {"model.merges[0]", "no 'c'"});
  refused("a \xff\n", {"merges.txt", "UTF-8"});
  folder.write("merges.txt", "#version: 0.2\r\na b\r\n");
  EXPECT_EQ(make_tokenizer(folder.path())->encode("aba"), (Ids{2, 0}));
  folder.write("vocab.json", "[1]");
  refused("a b\n", {"vocab.json", "no JSON object"});
}

// ---- Patterns and normal forms.

Words pieces(const std::string& pattern, const std::string& text) {
  Words words;
  SplitPattern(pattern, "test").cut(text, [&](std::string_view piece, bool matched) {
    words.push_back((matched ? "" : "-") + std::string(piece));
  });
  return words;
}

TEST(SplitPattern, CutsTheWholeText) {
  EXPECT_EQ(pieces("b+", "abbcb"), (Words{"-a", "bb", "-c", "b"}));
  EXPECT_EQ(pieces("x*", "axxé"), (Words{"-a", "xx", "-é"})) << "empty matches cut nothing";
  EXPECT_EQ(pieces(R"(\s+(?!\S)|\s+)", "a  b "), (Words{"-a", " ", " ", "-b", " "}));
  EXPECT_EQ(pieces(R"(\s)", "\u180e\u0085"), (Words{"-\u180e", "\u0085"})) << "Unicode's white space";
  EXPECT_EQ(pieces(R"([^\s]+)", "a b"), (Words{"a", "- ", "b"}));
  EXPECT_EQ(pieces(R"(\p{L}+)", "é\xff\xc3é"), (Words{"é", "-\xff\xc3", "é"})) << "what is not UTF-8 is not matched";
  EXPECT_EQ(pieces(escaped_pattern("a.+\\é"), "xa.+\\é"), (Words{"-x", "a.+\\é"}));
  EXPECT_EQ(pieces("a", ""), Words{});
}

TEST(SplitPattern, RefusesWhatTheTwoLanguagesReadDifferently) {
  for (const char* pattern : {R"(\w)", R"(\h)", R"(\b)", R"(\K)", R"(\C)", R"(a\)", R"([a[b]])", "[a&&b]", "(*UTF)",
                              "[]a]", "(a", "a**(", R"(\p{Nonsense})", "", "\xff"})
    expect_parts(error_of(ExitCode::bad_data, [&] { SplitPattern(pattern, "test"); }), {"test: the pattern"});
  error_of(ExitCode::bad_data, [] { SplitPattern(std::string(70000, 'a'), "test"); });
  error_of(ExitCode::bad_data, [] { SplitPattern(std::string(20000, '(') + std::string(20000, ')'), "test"); });
}

TEST(SplitPattern, NoPatternRunsForEver) {
  for (const char* pattern : {"(a+)+b", "(a|aa)+b", "(a|a)*b"})
    expect_parts(error_of(ExitCode::bad_data, [&] { pieces(pattern, std::string(60, 'a') + "cb"); }),
                 {"test: the pattern", "cannot be matched", "10000000 steps"});
  EXPECT_EQ(pieces("(?:ab)+", std::string(2, 'x') + "abab"), (Words{"-xx", "abab"}));
  std::string many;
  for (int i = 0; i < 100000; ++i) many += "ab";
  EXPECT_EQ(pieces("(?:a|b)+", many), Words{many}) << "deeper than a small stack";
}

TEST(NormalForms, AreUnicodes) {
  EXPECT_EQ(normalised("e\u0301", NormalForm::nfc), "\u00e9");
  EXPECT_EQ(normalised("\u00e9", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normalised("\ufb01", NormalForm::nfkc), "fi");
  EXPECT_EQ(normalised("\ufb01", NormalForm::nfc), "\ufb01");
  EXPECT_EQ(normalised("\u1e9b\u0323", NormalForm::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normalised("\xff\u1100\u1161\xc3", NormalForm::nfc), "\xff\uac00\xc3") << "other bytes stay";
  EXPECT_EQ(normalised(std::string("a\0b\u0301", 5), NormalForm::nfc), std::string("a\0b\u0301", 5));
}

}  // namespace
}  // namespace capstan::framework
