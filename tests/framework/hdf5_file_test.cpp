#include "framework/hdf5_file.h"

#include <thread>

#include "framework/files.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::slurp;
using testing::TestFolder;

/// One dataset of every type, one of each rank, and attributes.
std::string make_file(const TestFolder& folder) {
  const std::string path = folder / "a.h5";
  Hdf5File file = Hdf5File::create(path);
  file.write("u8", std::vector<std::uint8_t>{1, 255});
  file.write("u16", std::vector<std::uint16_t>{1, 65535, 3});
  file.write("u32", std::vector<std::uint32_t>{4294967295u});
  file.write("i64", std::vector<std::int64_t>{-1, std::int64_t(1) << 62});
  file.write("f32", std::vector<float>{0.1f, -0.0f});
  file.write("f64", std::vector<double>{1.0 / 3});
  file.write("empty", std::vector<float>{});
  const float matrix[6] = {1, 2, 3, 4, 5, 6};
  file.write("model.layers.0.weight", Hdf5Type::f32, {2, 3}, matrix);
  file.set_text("format", "test-1");
  file.set_text("nothing", "");
  file.set_text("unicode", "é🙂");
  file.set_text("long", std::string(64'000, 'x'));
  file.set_integer("step", -7);
  file.set_number("loss", 0.1);
  file.close();
  return path;
}

TEST(Hdf5File, ReadsWhatItWrote) {
  const TestFolder folder;
  const Hdf5File file = Hdf5File::open(make_file(folder));
  EXPECT_EQ(file.datasets(),
            (std::vector<std::string>{"empty", "f32", "f64", "i64", "model.layers.0.weight", "u16", "u32", "u8"}));
  EXPECT_EQ(file.read<std::uint8_t>("u8"), (std::vector<std::uint8_t>{1, 255}));
  EXPECT_EQ(file.read<std::uint16_t>("u16"), (std::vector<std::uint16_t>{1, 65535, 3}));
  EXPECT_EQ(file.read<std::uint32_t>("u32"), (std::vector<std::uint32_t>{4294967295u}));
  EXPECT_EQ(file.read<std::int64_t>("i64"), (std::vector<std::int64_t>{-1, std::int64_t(1) << 62}));
  EXPECT_EQ(file.read<float>("f32"), (std::vector<float>{0.1f, -0.0f}));
  EXPECT_EQ(file.read<double>("f64"), std::vector<double>{1.0 / 3});
  EXPECT_TRUE(file.read<float>("empty").empty());
  EXPECT_EQ(file.dataset("model.layers.0.weight").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.read<float>("model.layers.0.weight"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file.text("format"), "test-1");
  EXPECT_EQ(file.text("nothing"), "");
  EXPECT_EQ(file.text("unicode"), "é🙂");
  EXPECT_EQ(file.text("long").size(), 64'000u);
  EXPECT_EQ(file.integer("step"), -7);
  EXPECT_EQ(file.number("loss"), 0.1);
  EXPECT_TRUE(file.has_attribute("step"));
  EXPECT_FALSE(file.has_attribute("stop"));
  EXPECT_TRUE(file.has_dataset("u8"));
  EXPECT_FALSE(file.has_dataset("u9"));
}

TEST(Hdf5File, ReadsSlabs) {
  const TestFolder folder;
  const Hdf5File file = Hdf5File::open(make_file(folder));
  EXPECT_EQ(file.read_slab<std::uint16_t>("u16", 1, 3), (std::vector<std::uint16_t>{65535, 3}));
  EXPECT_TRUE(file.read_slab<std::uint16_t>("u16", 2, 2).empty());
  error_of(ExitCode::internal, [&] { file.read_slab<std::uint16_t>("u16", 1, 4); });
  error_of(ExitCode::internal, [&] { file.read_slab<float>("model.layers.0.weight", 0, 1); });
}

TEST(Hdf5File, ErrorsNameFileAndDataset) {
  const TestFolder folder;
  const Hdf5File file = Hdf5File::open(make_file(folder));
  expect_parts(error_of(ExitCode::bad_data, [&] { file.read<float>("none"); }), {"a.h5", "'none'", "missing"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.read<float>("u16"); }),
               {"'u16'", "holds u16", "f32 was expected"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.text("none"); }), {"attribute 'none'", "missing"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.text("step"); }), {"'step'", "not one text"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file.integer("loss"); }), {"'loss'", "not one integer"});
  error_of(ExitCode::internal, [&] { file.read<float>("a/b"); });
  expect_parts(error_of(ExitCode::io, [&] { Hdf5File::open(folder / "none.h5"); }), {"none.h5", "check the path"});
  expect_parts(error_of(ExitCode::bad_data, [&] { Hdf5File::open(folder.write("empty.h5", "")); }),
               {"empty.h5", "empty"});
  expect_parts(error_of(ExitCode::bad_data, [&] { Hdf5File::open(folder.write("t.h5", "text")); }),
               {"t.h5", "not an HDF5 file"});
  error_of(ExitCode::io, [&] { Hdf5File::create(folder / "none/a.h5"); });
}

TEST(Hdf5File, WritersCannotDoTheImpossible) {
  const TestFolder folder;
  Hdf5File file = Hdf5File::create(folder / "b.h5");
  file.write("a", std::vector<float>{1});
  expect_parts(error_of(ExitCode::io, [&] { file.write("a", std::vector<float>{1}); }), {"b.h5", "'a'"});
  error_of(ExitCode::internal, [&] { file.write("a/b", std::vector<float>{1}); });
  error_of(ExitCode::internal, [&] { file.write("c", Hdf5Type::f32, {1, 1, 1}, nullptr); });
  error_of(ExitCode::internal, [&] { file.set_text("t", std::string(64'001, 'x')); });
  file.close();
  error_of(ExitCode::internal, [&] { file.close(); });
}

TEST(Hdf5File, NoTruncationIsReadAsWhole) {
  const TestFolder folder;
  const std::string whole = slurp(make_file(folder));
  for (std::size_t size = 0; size < whole.size(); size += size < 2048 ? 5 : 197) {
    const std::string path = folder.write("cut.h5", whole.substr(0, size));
    expect_parts(error_of(ExitCode::bad_data, [&] { Hdf5File::open(path); }), {"cut.h5"});
  }
}

/// Everything that a reader would do with a file it does not know.
void read_everything(const std::string& path) {
  const Hdf5File file = Hdf5File::open(path);
  for (const std::string& name : file.datasets()) {
    if (!is_plain_name(name)) continue;
    const Hdf5Dataset dataset = file.dataset(name);
    std::vector<std::uint8_t> bytes(std::size_t(dataset.elements() * size_of(dataset.type)));
    file.read(name, dataset.type, bytes.data());
  }
  file.text("format");
  file.integer("step");
}

TEST(Hdf5File, DamagedBytesGiveErrorsOnly) {
  const TestFolder folder;
  const std::string path = folder / "small.h5";
  Hdf5File file = Hdf5File::create(path);
  file.write("tokens", std::vector<std::uint16_t>{1, 2, 3});
  file.write("f32", std::vector<float>(20, 1.0f));
  file.set_text("format", "test-1");
  file.set_integer("step", 1);
  file.close();
  const std::string whole = slurp(path);
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = char(damaged[i] ^ 0xff);
    folder.write("damaged.h5", damaged);
    refused += testing::survives([&] { read_everything(folder / "damaged.h5"); });
  }
  EXPECT_GT(refused, int(whole.size()) / 12) << "the structure carries checksums";
}

TEST(Hdf5File, ThreadsMayShareAFile) {
  const TestFolder folder;
  const Hdf5File file = Hdf5File::open(make_file(folder));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) EXPECT_EQ(file.read_slab<std::uint16_t>("u16", 1, 2)[0], 65535);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace capstan::framework
