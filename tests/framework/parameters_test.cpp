#include "framework/parameters.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using framework::Init;
using framework::Parameters;

TEST(Parameters, PatternsOfNames) {
  EXPECT_TRUE(framework::matches_any("model.layers.3.position.table", "*.position.*"));
  EXPECT_TRUE(framework::matches_any("model.norm.weight", "lm_head.*, model.norm.weight"));
  EXPECT_FALSE(framework::matches_any("model.norm.weight", ""));
  EXPECT_TRUE(framework::matches_any("a1", "a?"));
}

TEST(Parameters, ShardsCoverTheBufferOnce) {
  for (const std::int64_t elements : {0, 1, 5, 64, 1001})
    for (const int ranks : {1, 2, 3, 8}) {
      std::int64_t at = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto shard = framework::shard_range(elements, rank, ranks);
        EXPECT_EQ(shard.begin, at);
        at = shard.end;
      }
      EXPECT_EQ(at, elements);
    }
}

/// A value depends on (seed, name, element): not on what else is declared, trained, or how many ranks there are.
TEST(Parameters, InitialValuesDependOnTheNameOnly) {
  Parameters a, b;
  a.declare("first", {3, 4}, Init::normal);
  a.declare("second", {5}, Init::one);
  b.declare("second", {5}, Init::one);
  b.declare("extra", {7, 7}, Init::normal);
  b.declare("first", {3, 4}, Init::normal);
  a.allocate(kernels::Device::ref, kernels::DType::f64, true, [](const std::string&) { return true; });
  b.allocate(
      kernels::Device::ref, kernels::DType::f64, true, [](const std::string& n) { return n != "first"; }, 4);
  a.initialise(3, 0.02);
  b.initialise(3, 0.02);
  EXPECT_EQ(values_of(a.find("first")->value), values_of(b.find("first")->value));
  EXPECT_EQ(values_of(a.find("second")->value), std::vector<double>(5, 1.0));
  EXPECT_FALSE(b.find("first")->grad);
  EXPECT_EQ(b.trainable_elements(), 54);
  EXPECT_EQ(b.trainable_values().elements(), 56);  // padded to 4 even shards
  b.initialise(4, 0.02);
  EXPECT_NE(values_of(a.find("first")->value), values_of(b.find("first")->value));
}

}  // namespace
}  // namespace capstan::tests
