#include <gtest/gtest.h>

#include "tests/framework/test_folder.h"
#include "tests/launch/program.h"

namespace capstan::launch {
namespace {

using testing::error_of;
using testing::expect_parts;

const std::string root = CAPSTAN_SOURCE_DIR;
const std::string recipe = root + "/recipes/llama2-7b-4k-8k-tape.cfg",
                  config = root + "/recipes/models/llama2-7b-shape/config.json";

/// Llama 2 7B has 6,738,415,616 parameters (Hugging Face's count). TAPE adds, in all layers but the last, alpha [32, 32], up and
/// down [128, 32] each, and the gate [128, 4096].
TEST(PlanCommand, PlansForAShapeWithoutWeightsOrData) {
  const std::int64_t tape = 31 * (32 * 32 + 2 * 128 * 32 + 128 * 4096), norms = 65 * 4096, embedding = 32000 * 4096;
  const std::string plan = capstan({"plan", recipe, "--config", config, "--ranks", "8"});
  EXPECT_NE(plan.find(fmt::format("{} parameters, {} trained", 6738415616 + tape, tape + norms + embedding)),
            std::string::npos)
      << plan;
  EXPECT_NE(plan.find(fmt::format("{} x 2 B", 6738415616 + tape)), std::string::npos) << plan;
  EXPECT_NE(plan.find("f32 masters"), std::string::npos) << plan;
}

TEST(PlanCommand, NeedsTheModelOrItsShape) {
  const testing::TestFolder folder;
  expect_parts(error_of(ExitCode::io, [] { capstan({"plan", recipe}); }), {"runs/llama2-7b"});
  expect_parts(error_of(ExitCode::io,
                        [&] {
                          capstan({"plan", recipe, "--config", folder / "missing.json"});
                        }),
               {folder / "missing.json"});
}

}  // namespace
}  // namespace capstan::launch
