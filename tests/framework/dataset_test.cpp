#include "framework/dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "framework/random.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

using framework::Batch;
using framework::Dataset;
using framework::SampleId;

std::string write_tokens(const capstan::testing::TestFolder& folder, const std::string& name,
                         const std::vector<std::int64_t>& lengths) {
  std::vector<framework::TokenDocument> documents;
  std::int32_t next = 0;
  for (const std::int64_t length : lengths) {
    framework::TokenDocument document;
    for (std::int64_t t = 0; t < length; ++t)
      document.ids.push_back(next++);  // every token names its place in the stream
    documents.push_back(document);
  }
  framework::TokenFileInfo info;
  info.vocabulary = 100000;
  info.tokenizer = "test";
  framework::write_token_file(folder / name, documents, info);
  return folder / name;
}

TEST(Random, PhiloxKnownAnswer) {  // Random123's kat_vectors, philox4x32 10 rounds
  EXPECT_EQ(framework::philox({0, 0, 0, 0}, {0, 0}),
            (framework::PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(framework::philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (framework::PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Dataset, PermutationVisitsEachOnce) {
  for (const std::int64_t size : {1, 2, 3, 17, 64, 1000}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < size; ++i) seen.insert(framework::permuted(i, size, 7, 3));
    EXPECT_EQ(std::int64_t(seen.size()), size);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
}

/// Every window once per epoch, another order in the next, the same when asked again or out of order.
TEST(Dataset, EpochsAreCompleteAndRepeatable) {
  capstan::testing::TestFolder folder;
  Dataset data({write_tokens(folder, "a.h5", {200, 171})}, {}, 10, true, 5);
  ASSERT_EQ(data.windows(), 37);
  std::vector<std::int64_t> order;
  for (std::int64_t g = 0; g < 111; ++g) order.push_back(data.sample(g).window);
  for (int epoch = 0; epoch < 3; ++epoch)
    EXPECT_EQ(std::set<std::int64_t>(order.begin() + 37 * epoch, order.begin() + 37 * (epoch + 1)).size(), 37u);
  EXPECT_NE(std::vector<std::int64_t>(order.begin(), order.begin() + 37),
            std::vector<std::int64_t>(order.begin() + 37, order.begin() + 74));
  EXPECT_EQ(data.sample(3).window, order[3]);
  EXPECT_EQ(data.sample(90).window, order[90]);
}

TEST(Dataset, WeightsDecideTheShares) {
  capstan::testing::TestFolder folder;
  Dataset data({write_tokens(folder, "a.h5", {200}), write_tokens(folder, "b.h5", {500})}, {3, 1}, 10, true, 5);
  std::int64_t first = 0;
  for (std::int64_t g = 0; g < 400; ++g) first += data.sample(g).file == 0;
  EXPECT_EQ(first, 300);
}

TEST(Dataset, RunsOfSamplesComeFromOneFile) {
  capstan::testing::TestFolder folder;
  const std::string a = write_tokens(folder, "a.h5", {200}), b = write_tokens(folder, "b.h5", {500});
  constexpr std::int64_t run = 8, runs = 40;
  Dataset data({a, b}, {3, 1}, 10, true, 5, run);
  std::vector<std::int64_t> windows[2];
  std::int64_t first = 0;
  for (std::int64_t g = 0; g < run * runs; ++g) {
    const SampleId id = data.sample(g);
    EXPECT_EQ(id.file, data.sample(g - g % run).file);
    first += id.file == 0;
    windows[id.file].push_back(id.window);
  }
  EXPECT_EQ(first, run * runs * 3 / 4);
  for (const int file : {0, 1}) {  // whole epochs, as without runs
    const std::size_t size = file == 0 ? 19 : 49;
    for (std::size_t at = 0; at + size <= windows[file].size(); at += size)
      EXPECT_EQ(std::set<std::int64_t>(windows[file].begin() + at, windows[file].begin() + at + size).size(), size);
  }
}

/// Shards of any ranks, put together, are the window; targets, positions, documents and N by brute force.
TEST(Dataset, ShardsCoverTheWindowForEveryRankCount) {
  capstan::testing::TestFolder folder;
  const std::vector<std::int64_t> lengths = {7, 3, 1, 245, 2, 64};
  std::vector<std::int64_t> document, start;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    for (std::int64_t t = 0; t < lengths[d]; ++t) {
      start.push_back(std::int64_t(document.size()) - t);
      document.push_back(std::int64_t(d));
    }
  for (const bool joined : {true, false}) {
    const std::int64_t context = 50;
    Dataset data({write_tokens(folder, joined ? "j.h5" : "s.h5", lengths)}, {}, context, joined, 1);
    for (const int ranks : {1, 2, 3, 4, 8})
      for (std::int64_t w = 0; w < data.windows(); ++w) {
        const auto layout = parallel::SequenceLayout::contiguous(context, ranks, 16);
        std::int64_t tokens = 0, counted = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Batch batch = data.read({data.window(w)}, layout, rank, kernels::Device::ref);
          const std::vector<std::int64_t> index = layout.local_index(rank);
          for (std::size_t i = 0; i < index.size(); ++i, ++tokens) {
            const std::int64_t t = w * context + index[i];
            EXPECT_EQ(batch.tokens.as<std::int32_t>()[i], t);
            const bool last = document[t] != document[t + 1];
            EXPECT_EQ(batch.targets.as<std::int32_t>()[i], !joined && last ? -1 : t + 1);
            counted += batch.targets.as<std::int32_t>()[i] >= 0;
            EXPECT_EQ(batch.index.as<std::int64_t>()[i], index[i]);
            EXPECT_EQ(batch.position.as<std::int64_t>()[i], joined ? index[i] : t - std::max(w * context, start[t]));
            EXPECT_EQ(batch.document.as<std::int64_t>()[i], joined ? 0 : document[t]);
          }
        }
        EXPECT_EQ(tokens, context);
        EXPECT_EQ(counted, data.counted(data.window(w))) << "window " << w;
      }
  }
}

TEST(Dataset, TooShortNamesBothNumbers) {
  capstan::testing::TestFolder folder;
  const std::string path = write_tokens(folder, "a.h5", {50});
  capstan::testing::expect_parts(
      capstan::testing::error_of(ExitCode::bad_data, [&] { Dataset({path}, {}, 50, true, 1); }), {path, "50", "51"});
  Dataset exact({write_tokens(folder, "b.h5", {51})}, {}, 50, true, 1);
  EXPECT_EQ(exact.windows(), 1);
}

}  // namespace
}  // namespace capstan::tests
