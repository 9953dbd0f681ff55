#include "framework/safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "framework/files.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using testing::TestFolder;

/// 8 bytes of length, the header, the data.
std::string file_of(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = char(length >> (8 * i));
  return bytes + header + data;
}
std::string file_of(const std::string& header, const std::string& data) { return file_of(header, data, header.size()); }

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(bytes, std::int64_t(bytes.size()), "x.safetensors");
}

std::string refusal(const std::string& bytes) {
  const std::string line = error_of(ExitCode::bad_data, [&] { parse(bytes); });
  expect_parts(line, {"x.safetensors"});
  return line;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ParsesWhatTheFormatAllows) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + tensor("b", "F32", "[1,2]", "[2,10]") + "," +
                             tensor("a", "F16", "[]", "[0,2]") + "," + tensor("none", "I64", "[0,7]", "[10,10]") +
                             "}   ";
  const SafetensorsHeader parsed = parse(file_of(header, std::string(10, 'x')));
  EXPECT_EQ(parsed.tensors.size(), 3u);
  EXPECT_EQ(parsed.tensors.at("b").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(parsed.tensors.at("b").begin, 2);
  EXPECT_EQ(parsed.tensors.at("a").shape.size(), 0u);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_EQ(parsed.data_offset, std::int64_t(8 + header.size()));
  EXPECT_EQ(parse(file_of("{}", "")).tensors.size(), 0u);
}

TEST(Safetensors, RefusesLyingLengths) {
  for (const std::uint64_t length : {std::uint64_t(3), std::uint64_t(100'000'001), std::uint64_t(1) << 63,
                                     ~std::uint64_t(0), ~std::uint64_t(0) - 7}) {
    expect_parts(refusal(file_of("{}", "", length)), {"header length"});
  }
  expect_parts(refusal(file_of("{}", "", 1)), {"malformed JSON"});
  expect_parts(refusal(file_of("{}", "", 0)), {"does not begin"});
  expect_parts(refusal(""), {"at least 8"});
  expect_parts(refusal("1234567"), {"7 bytes"});
  // A file that claims to be larger than what was read of it.
  error_of(ExitCode::bad_data, [] { parse_safetensors_header(file_of("{}", "", 5000), 1 << 20, "x"); });
  error_of(ExitCode::bad_data, [] { parse_safetensors_header(file_of("{}", ""), -1, "x"); });
}

TEST(Safetensors, RefusesBadOffsets) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return file_of("{" + tensor("a", "U8", "[4]", a) + "," + tensor("b", "U8", "[4]", b) + "}", std::string(data, 'x'));
  };
  EXPECT_EQ(parse(two("[0,4]", "[4,8]", 8)).tensors.size(), 2u);
  EXPECT_EQ(parse(two("[4,8]", "[0,4]", 8)).tensors.size(), 2u);
  expect_parts(refusal(two("[4,0]", "[4,8]", 8)), {"'a'", "reversed"});
  expect_parts(refusal(two("[0,4]", "[2,6]", 6)), {"'b'", "overlap"});
  expect_parts(refusal(two("[0,4]", "[5,9]", 9)), {"'b'", "gap"});
  expect_parts(refusal(two("[1,5]", "[5,9]", 9)), {"'a'", "gap"});
  expect_parts(refusal(two("[0,4]", "[4,8]", 7)), {"truncated"});
  expect_parts(refusal(two("[0,4]", "[4,8]", 9)), {"belong to no tensor"});
  expect_parts(refusal(two("[0,4]", "[4,9]", 9)), {"'b'", "needs 4 bytes"});
  expect_parts(refusal(two("[-4,0]", "[0,4]", 4)), {"'a'", "-4", "negative"});
  expect_parts(refusal(two("[0,4,8]", "[4,8]", 8)), {"'a'", "more than 2"});
  expect_parts(refusal(two("[0]", "[4,8]", 8)), {"'a'", "not 2"});
  expect_parts(refusal(two("[0,4.0]", "[4,8]", 8)), {"'a'", "whole number"});
  expect_parts(refusal(two("[0,18446744073709551615]", "[4,8]", 8)), {"'a'", "at most 2^63 - 1"});
  expect_parts(refusal(two("[0,36893488147419103232]", "[4,8]", 8)), {"'a'", "whole number"});
}

TEST(Safetensors, RefusesBadShapesAndTypes) {
  const auto one = [](const std::string& dtype, const std::string& shape) {
    return file_of("{" + tensor("w", dtype, shape, "[0,8]") + "}", std::string(8, 'x'));
  };
  EXPECT_EQ(parse(one("F64", "[1]")).tensors.size(), 1u);
  expect_parts(refusal(one("F32", "[3]")), {"'w'", "[3] of F32 needs 12 bytes"});
  expect_parts(refusal(one("F4", "[16]")), {"'w'", "'F4'", "BF16"});
  expect_parts(refusal(one("f32", "[2]")), {"'f32'"});
  expect_parts(refusal(one("U8", "[-8]")), {"-8", "negative"});
  expect_parts(refusal(one("U8", "[4611686018427387904,4]")), {"more than 2^63"});
  expect_parts(refusal(one("F64", "[2305843009213693953]")), {"more than 2^63"});  // wraps to 8 in 64 bits
  expect_parts(refusal(one("U8", "[0,4611686018427387904,4]")), {"more than 2^63"});
  expect_parts(refusal(one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8]")), {"more than 16"});
  expect_parts(refusal(one("U8", "[[8]]")), {"a list where"});
  expect_parts(refusal(one("U8", "8")), {"a number where"});
}

TEST(Safetensors, RefusesBadJson) {
  const std::string a = tensor("a", "U8", "[1]", "[0,1]");
  const auto refused = [&](const std::string& header) { return refusal(file_of(header, "x")); };
  expect_parts(refused("{" + a + "," + a + "}"), {"'a'", "twice"});
  expect_parts(refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
               {"'dtype'", "twice"});
  expect_parts(refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}"), {"'a'", "'data_offsets' is missing"});
  expect_parts(refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}"),
               {"unknown field 'x'"});
  expect_parts(refused("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + a + "}"), {"'k'", "twice"});
  expect_parts(refused("{\"__metadata__\":{},\"__metadata__\":{}," + a + "}"), {"__metadata__", "twice"});
  expect_parts(refused("{\"__metadata__\":{\"k\":1}," + a + "}"), {"a number where"});
  expect_parts(refused("{\"__metadata__\":{\"k\":{\"d\":\"x\"}}," + a + "}"), {"an object where"});
  expect_parts(refused("{\"a\":null}"), {"'a'", "null where"});
  expect_parts(refused("{" + a + "}" + std::string(3, '\0')), {"malformed JSON"});
  expect_parts(refused(" {" + a + "}"), {"does not begin"});
  expect_parts(refused("\xef\xbb\xbf{" + a + "}"), {"does not begin"});
  expect_parts(refused("[]"), {"does not begin"});
  expect_parts(refused("{" + a + "}{}"), {"malformed JSON"});
  expect_parts(refused("{" + tensor("", "U8", "[1]", "[0,1]") + "}"), {"empty"});
  expect_parts(refused("{" + tensor("a\\u0000b", "U8", "[1]", "[0,1]") + "}"), {"control characters", "a\\x00b"});
  expect_parts(refused("{" + tensor("a\\nb", "U8", "[1]", "[0,1]") + "}"), {"control characters"});
  expect_parts(refused("{" + tensor("a\xff", "U8", "[1]", "[0,1]") + "}"), {"malformed JSON"});
  refused("{" + tensor("a\\ud800", "U8", "[1]", "[0,1]") + "}");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "{\"a\":";
  refused(deep);
  refused("{\"a\":" + std::string(1'000'000, '['));
}

std::vector<std::uint8_t> bytes_of_floats(const std::vector<float>& values) {
  std::vector<std::uint8_t> bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(Safetensors, WritesWhatItReads) {
  const TestFolder folder;
  const std::vector<SafetensorToWrite> tensors = {{"z", "F32", {2, 3}, bytes_of_floats({1, 2, 3, 4, 5, NAN})},
                                                  {"a \"quoted\" é", "U8", {3}, {1, 2, 3}},
                                                  {"s", "F32", {}, bytes_of_floats({7})}};
  write_safetensors(folder / "m.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file = SafetensorsFile::open(folder / "m.safetensors");
  EXPECT_EQ(file.header().data_offset % 8, 0);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.header().tensors.at("z").begin, 0) << "tensors keep the given order";
  for (const SafetensorToWrite& tensor : tensors) {
    EXPECT_EQ(file.raw(tensor.name), tensor.bytes);
    EXPECT_EQ(file.header().tensors.at(tensor.name).shape, tensor.shape);
  }
  EXPECT_EQ(file.as_f32("s"), std::vector<float>{7});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.as_f32("a \"quoted\" é"); }), {"U8", "F32, F16, BF16 or F64"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.raw("lm_head.weight"); }), {"no tensor 'lm_head.weight'"});
  error_of(ExitCode::internal, [&] { write_safetensors(folder / "n", {{"a", "F32", {2}, {1, 2, 3}}}, {}); });
  error_of(ExitCode::internal, [&] {
    write_safetensors(folder / "n", {{"a", "U8", {1}, {1}}, {"a", "U8", {1}, {1}}}, {});
  });
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"m.safetensors"});
}

TEST(Safetensors, ConvertsEveryHalfExactly) {
  const TestFolder folder;
  std::vector<std::uint8_t> all(2 * 65536);
  for (std::size_t i = 0; i < 65536; ++i) {
    all[2 * i] = std::uint8_t(i);
    all[2 * i + 1] = std::uint8_t(i >> 8);
  }
  const double third = 1.0 / 3.0;
  std::vector<std::uint8_t> f64(8);
  std::memcpy(f64.data(), &third, 8);
  write_safetensors(folder / "m",
                    {{"f16", "F16", {65536}, all}, {"bf16", "BF16", {65536}, all}, {"f64", "F64", {1}, f64}}, {});
  const SafetensorsFile file = SafetensorsFile::open(folder / "m");
  const auto f16 = file.as_f32("f16");
  const auto bf16 = file.as_f32("bf16");
  for (std::size_t i = 0; i < 65536; ++i) {
    const int exponent = int(i >> 10 & 31), mantissa = int(i & 1023);
    const double sign = i >> 15 != 0 ? -1 : 1;
    const double value = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                         : exponent == 0 ? std::ldexp(mantissa, -24)
                                         : std::ldexp(1024 + mantissa, exponent - 25);
    const std::uint32_t bits =
        std::bit_cast<std::uint32_t>(f16[i]) & 0x7fffffffu;  // a signalling NaN may trap when compared
    if (exponent == 31 && mantissa != 0) EXPECT_GT(bits, 0x7f800000u) << i;
    else EXPECT_EQ(f16[i], float(sign * value)) << i;
    EXPECT_EQ(std::signbit(f16[i]), i >> 15 != 0) << i;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(bf16[i]), std::uint32_t(i) << 16) << i;
  }
  EXPECT_EQ(file.as_f32("f64")[0], float(third));
}

/// About 2 KB: ten tensors and their data.
std::string small_file(const TestFolder& folder) {
  std::vector<SafetensorToWrite> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back({fmt::format("model.layers.{}.self_attn.q_proj.weight", i),
                       "F32",
                       {5, 5},
                       bytes_of_floats(std::vector<float>(25, float(i)))});
  }
  write_safetensors(folder / "small.safetensors", tensors, {{"format", "pt"}});
  return slurp(folder / "small.safetensors");
}

TEST(Safetensors, EveryTruncationAndExtensionIsRefused) {
  const TestFolder folder;
  const std::string whole = small_file(folder);
  ASSERT_GE(whole.size(), 2000u);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string path = folder.write("cut.safetensors", whole.substr(0, size));
    expect_parts(error_of(ExitCode::bad_data, [&] { SafetensorsFile::open(path); }), {"cut.safetensors"});
  }
  const std::string longer = folder.write("longer.safetensors", whole + "x");
  error_of(ExitCode::bad_data, [&] { SafetensorsFile::open(longer); });
}

TEST(Safetensors, EveryFlippedHeaderByteIsAnErrorOrAnotherLegalFile) {
  const testing::WithoutTraps guard;
  const TestFolder folder;
  const std::string whole = small_file(folder);
  for (std::size_t i = 0; i < whole.size() - 1000; ++i) {
    for (const int flip : {1, 0x20, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[i] = char(damaged[i] ^ flip);
      testing::survives([&] { parse(damaged); });
    }
  }
}

TEST(Safetensors, MissingFileIsAnIoError) {
  const TestFolder folder;
  expect_parts(error_of(ExitCode::io, [&] { SafetensorsFile::open(folder / "none.safetensors"); }),
               {"none.safetensors", "check the path"});
  error_of(ExitCode::io, [&] { SafetensorsFile::open(folder.path()); });
  expect_parts(error_of(ExitCode::io, [&] { open_safetensors_model(folder.path()); }),
               {"model.safetensors.index.json"});
}

class Shards : public ::testing::Test {
 protected:
  Shards() {
    write_safetensors(folder_ / "m-1.safetensors", {{"a", "U8", {1}, {1}}, {"b", "U8", {1}, {2}}}, {});
    write_safetensors(folder_ / "m-2.safetensors", {{"c", "U8", {1}, {3}}}, {});
  }
  SafetensorsModel open(const std::string& weight_map) {
    folder_.write("model.safetensors.index.json",
                  "{\"metadata\":{\"total_size\":3},\"weight_map\":" + weight_map + "}");
    return open_safetensors_model(folder_.path());
  }
  std::string refusal(const std::string& weight_map) {
    return error_of(ExitCode::bad_data, [&] { open(weight_map); });
  }
  TestFolder folder_;
};

TEST_F(Shards, AreReadThroughTheIndex) {
  const SafetensorsModel model = open(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"})");
  ASSERT_EQ(model.files.size(), 2u);
  EXPECT_EQ(model.files[model.file_of.at("c")].raw("c"), std::vector<std::uint8_t>{3});
}

TEST_F(Shards, MustAgreeWithTheIndex) {
  expect_parts(refusal(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})"),
               {"'b'", "m-2.safetensors"});
  expect_parts(refusal(R"({"a":"m-1.safetensors","c":"m-2.safetensors"})"), {"'b'", "not in the index"});
  expect_parts(refusal(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors","d":"m-2.safetensors"})"),
               {"'d'"});
  expect_parts(refusal(R"({"a":"m-1.safetensors","a":"m-2.safetensors"})"), {"'a'", "twice"});
  expect_parts(refusal("{}"), {"weight_map"});
  write_safetensors(folder_ / "m-2.safetensors", {{"a", "U8", {1}, {3}}, {"c", "U8", {1}, {3}}}, {});
  expect_parts(refusal(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"})"), {"'a'", "also in"});
}

TEST_F(Shards, CannotLeaveTheFolder) {
  for (const char* name :
       {"../m-1.safetensors", "/etc/passwd", "..", "", "sub/m-1.safetensors", "m-1\\u0000.safetensors", "a\\nb"}) {
    expect_parts(refusal(fmt::format("{{\"a\":\"{}\"}}", name)), {"plain name", "'a'"});
  }
  expect_parts(refusal("{\"a\":1}"), {"plain name"});
  error_of(ExitCode::io, [&] { open(R"({"a":"none.safetensors"})"); });
}

TEST_F(Shards, OneFileComesFirst) {
  write_safetensors(folder_ / "model.safetensors", {{"a", "U8", {1}, {9}}}, {});
  const SafetensorsModel model = open_safetensors_model(folder_.path());
  EXPECT_EQ(model.files.size(), 1u);
  EXPECT_EQ(model.files[0].raw("a"), std::vector<std::uint8_t>{9});
}

}  // namespace
}  // namespace capstan::framework
