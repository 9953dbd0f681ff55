#include "framework/metrics_log.h"

#include <gtest/gtest.h>

#include <sstream>

#include "framework/json.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

using capstan::testing::slurp;

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::stringstream text(slurp(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

framework::StepMetrics metrics_of(std::int64_t step) {
  framework::StepMetrics m;
  m.step = step;
  m.loss = 1.0 / double(step);
  m.samples = {"0:1", "1:2"};
  m.layers.resize(2);
  m.layers[0].attention.gates = 4;
  m.layers[0].attention.gate_sum = 1;
  return m;
}

TEST(MetricsLog, AResumedRunCutsTheLinesThatItWillDoAgain) {
  capstan::testing::TestFolder folder;
  {
    framework::MetricsLog log(folder.path(), 0, 9);
    for (std::int64_t step = 1; step <= 5; ++step) log.write(metrics_of(step));
  }
  // A crash can leave half a line.
  std::FILE* file = std::fopen((folder / "metrics.jsonl").c_str(), "a");
  std::fputs("{\"step\": 6, \"lo", file);
  std::fclose(file);
  framework::MetricsLog log(folder.path(), 3, 9);
  log.write(metrics_of(4));
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_EQ(lines[2]["loss"].get<double>(), 1.0 / 3);  // every digit
  EXPECT_EQ(lines[0]["layers"][0]["mean_gate"], 0.25);
  EXPECT_FALSE(lines[0]["layers"][1].contains("mean_gate"));
  EXPECT_FALSE(lines[0].contains("validation_loss"));
}

TEST(MetricsLog, LayerSumsAreThoseOfAllRanks) {
  parallel::run_on_threads(3, [](parallel::Communicator& world) {
    std::vector<framework::LayerStats> mine(1);
    mine[0].attention = {1.5, 2, 3, 4};
    mine[0].z_max = double(world.rank());
    mine[0].z_count = 1;
    const auto all = framework::sum_over_ranks(world, mine);
    EXPECT_EQ(all[0].attention.gate_sum, 4.5);
    EXPECT_EQ(all[0].attention.saturated_tiles, 12);
    EXPECT_EQ(all[0].z_max, 2);
    EXPECT_EQ(all[0].z_count, 3);
  });
}

}  // namespace
}  // namespace capstan::tests
