#include "framework/plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "framework/model.h"
#include "parallel/ring_attention.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

framework::Recipe resolved_recipe(const std::string& kind) {
  framework::Recipe r;
  r.model.vocabulary = 512;
  r.model.kv_heads = 4;
  r.model.max_length = 512;
  r.position.kind = kind;
  r.data.context = 1000;
  framework::resolve_sizes(r.model, r.position);
  return r;
}

TEST(Plan, LayoutCoversTheContextAndHopsAreWhatTheRingSends) {
  for (const std::string kind : {"none", "rope+cope", "tape"})
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const framework::Recipe r = resolved_recipe(kind);
      const framework::Plan plan = framework::make_plan(r, ranks);
      EXPECT_EQ(std::accumulate(plan.local_tokens.begin(), plan.local_tokens.end(), std::int64_t(0)), r.data.context);
      // ordered_pull: chunks of 1000 / 2 ranks tokens in tiles of 64; K, V (and z) of 4 heads of 8 in f32, three 8-byte integers.
      const std::int64_t tiles = (1000 + 63) / 64,
                         chunk = std::min<std::int64_t>(1000, (tiles + 2 * ranks - 1) / (2 * ranks) * 64);
      const std::int64_t values = (kind == std::string("tape") ? 3 : 2) * chunk * 4 * 8 * 4;
      EXPECT_EQ(plan.bytes_per_hop_forward, ranks == 1 ? 0 : values + chunk * 3 * 8);
      EXPECT_EQ(plan.bytes_per_hop_backward, ranks == 1 ? 0 : 2 * values + chunk * 3 * 8);
      EXPECT_GT(plan.memory_total(), plan.parameters * 4);
    }
}

TEST(Plan, CountsTheTrainedModel) {
  EXPECT_EQ(framework::make_plan(resolved_recipe("rope"), 1).parameters, 260032);  // stories260K
  // CoPE: one table of 64 x 8 per layer; TAPE: alpha 4 x 4, up and down 16 x 4, gate 16 x 64 in all layers but the last.
  EXPECT_EQ(framework::make_plan(resolved_recipe("rope+cope"), 1).parameters, 260032 + 5 * 64 * 8);
  EXPECT_EQ(framework::make_plan(resolved_recipe("tape"), 1).parameters, 260032 + 4 * (16 + 64 + 64 + 1024));
  // Biases of q, o (64), k, v (32), gate, up (172) and down (64); a norm per layer moves, and the last one is gone; no gate.
  framework::Recipe other = resolved_recipe("rope");
  other.model.bias = "true";
  EXPECT_EQ(framework::make_plan(other, 1).parameters, 260032 + 5 * (2 * 64 + 2 * 32 + 2 * 172 + 64));
  other.model.norm = "post";
  EXPECT_EQ(framework::make_plan(other, 1).parameters, 260032 + 5 * (2 * 64 + 2 * 32 + 2 * 172 + 64) - 64);
  const std::int64_t gated = framework::make_plan(other, 1).memory_total();
  other.model.mlp = "gelu";
  EXPECT_EQ(framework::make_plan(other, 1).parameters, 260032 + 5 * (2 * 64 + 2 * 32 + 172 + 64) - 64 - 5 * 172 * 64);
  EXPECT_LT(framework::make_plan(other, 1).memory_total(), gated);
  framework::Recipe frozen = resolved_recipe("rope+cope");
  frozen.train.trainable = "*.position.*";
  EXPECT_EQ(framework::make_plan(frozen, 1).trainable, 5 * 64 * 8);
}

std::int64_t bytes_of(const framework::Plan& plan, const std::string& name) {
  for (const framework::MemoryLine& line : plan.memory)
    if (line.name == name) return line.bytes;
  ADD_FAILURE() << "no line " << name;
  return -1;
}

/// bf16: two bytes per weight and activation; gradients, moments, masters and attention's results are f32.
TEST(Plan, CountsTheBytesOfThePrecision) {
  framework::Recipe r = resolved_recipe("rope");
  const framework::Plan wide = framework::make_plan(r, 1);
  r.train.precision = "bf16";
  const framework::Plan one = framework::make_plan(r, 1), four = framework::make_plan(r, 4);
  EXPECT_EQ(bytes_of(wide, "parameters"), 4 * wide.parameters);
  EXPECT_EQ(bytes_of(one, "parameters"), 2 * wide.parameters);
  EXPECT_EQ(bytes_of(one, "gradients"), 4 * wide.parameters);
  EXPECT_EQ(bytes_of(wide, "optimizer"), 2 * 4 * wide.parameters);        // moments
  EXPECT_EQ(bytes_of(one, "optimizer"), 3 * 4 * wide.parameters);         // and masters
  EXPECT_EQ(bytes_of(four, "optimizer"), 4 * 4 * (wide.parameters / 4));  // and the gradient of a quarter
  EXPECT_EQ(bytes_of(one, "block inputs") * 2, bytes_of(wide, "block inputs"));
  EXPECT_EQ(bytes_of(one, "attention results"), bytes_of(wide, "attention results"));
  EXPECT_EQ(one.checkpoint_bytes, wide.checkpoint_bytes);
}

/// Multiply-adds by hand: 5 layers of width 64, 8 heads and 4 kv heads of 8, inner width 172; 512 words, 1,000 tokens.
TEST(Plan, CountsTheArithmeticOfASequence) {
  const double t = 1000, pairs = t * (t + 1) / 2, layers = 5;
  const auto flops_of = [](const framework::Recipe& r) { return framework::make_plan(r, 2).flops; };
  const framework::ForwardFlops rope = flops_of(resolved_recipe("rope"));
  EXPECT_EQ(rope.linear, 2 * t * (layers * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172) + 512 * 64));
  EXPECT_EQ(rope.attention, 2 * layers * pairs * 2 * 64);
  EXPECT_EQ(rope.position, 0);

  const auto added = [&](const framework::Recipe& r) {
    const framework::ForwardFlops flops = flops_of(r);
    EXPECT_EQ(flops.linear, rope.linear);
    EXPECT_EQ(flops.attention, rope.attention);
    return flops.position / 2;
  };
  framework::Recipe cope = resolved_recipe("rope+cope");
  EXPECT_EQ(added(cope), layers * t * 64 * 64) << "every head's q against 64 rows of 8";
  cope.position.cope_rotated = false;
  EXPECT_EQ(added(cope), layers * (t * 64 * 64 + pairs * 64)) << "gates from q and k before the rotation";
  EXPECT_EQ(added(resolved_recipe("tape")), 4 * (pairs * 64 + t * (8 * 4 * 4 + 2 * 8 * 4 * 16 + 64 * 16)));
  EXPECT_EQ(added(resolved_recipe("fire")), layers * pairs * 32 * (1 + 8));
  EXPECT_EQ(added(resolved_recipe("forget")), layers * t * 64 * 8);
  EXPECT_EQ(added(resolved_recipe("relative")), layers * t * 64 * 64);
  EXPECT_EQ(added(resolved_recipe("hierarchical_cope")), layers * (t * (2 * 64 * 64 + 64 * 32) + pairs / 256 * 64))
      << "two tables, keys of blocks, and one product for each row and block of 256";
}

TEST(Plan, RanksThatDoNotDivideAreRefused) {
  framework::Recipe r = resolved_recipe("rope");
  r.grid.ring = 3;
  capstan::testing::expect_parts(capstan::testing::error_of(ExitCode::config, [&] { framework::make_plan(r, 4); }),
                                 {"grid.ring = 3", "4 ranks"});
}

TEST(Plan, RecomputeLowersTheMemory) {
  framework::Recipe r = resolved_recipe("rope+cope");
  r.train.recompute = "none";
  const auto none = framework::make_plan(r, 2).memory_total();
  r.train.recompute = "block";
  const auto block = framework::make_plan(r, 2).memory_total();
  r.train.recompute = "block_full";
  EXPECT_GT(none, block);
  EXPECT_GT(block, framework::make_plan(r, 2).memory_total());
}

}  // namespace
}  // namespace capstan::tests
