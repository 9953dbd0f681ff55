// The bf16 tile products over the emulated tile unit: the same packing and blocking that runs on the real one. On a machine
// without the unit this is all the proof there is: its speed is measured only where it exists.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/amx.h"
#include "kernels/attention_bf16_cpu.h"
#include "kernels/attention_walk_cpu.h"
#include "tests/kernels/attention_runs.h"
#include "tests/kernels/attention_shapes.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/tensors.h"
#include "tests/support/without_traps.h"

namespace capstan::tests {
namespace {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Tensor;
using kernels::View;
using namespace kernels::cpu;

/// f(call, with_products)
template <class F>
void emulated(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings, const F& f) {
  const bool few = std::min(settings.tile, queries.q.dim(0)) <= 16;
  const Call call(queries, keys, settings, few ? 16 : 64, tile_depth);
  f(call, [few](const auto& body) {
    if (few) body(Bf16Products<EmulatedTiles, 16, 4>{});
    else body(Bf16Products<EmulatedTiles, 64, 4>{});
  });
}

const TileKernels on_tiles{
    [](const kernels::AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
       const AttentionSettings& settings, kernels::AttentionStats* stats) {
      emulated(queries, keys, settings, [&](const Call& call, const auto& with_products) {
        forward_pieces(call, with_products, state, *stats);
      });
    },
    [](const kernels::AttentionGradients& out, const kernels::AttentionBackwardState& state, const QueryChunk& queries,
       const KeyChunk& keys, const View& d_o, const kernels::AttentionSaved& saved, const AttentionSettings& settings) {
      const BackwardArrays arrays{out, state, d_o, saved};
      emulated(queries, keys, settings,
               [&](const Call& call, const auto& with_products) { backward_pieces(call, with_products, arrays); });
    }};

TileRun run_on_tiles(const AttentionProblem& problem, std::int64_t tile, const TileCuts& cuts = {}) {
  return run_tiles(problem, DType::bf16, Device::cpu, settings_for(problem, tile), cuts, on_tiles);
}

/// The term shapes that the tile unit takes.
std::vector<NamedShape> shapes_without_z() {
  std::vector<NamedShape> shapes = all_term_shapes();
  std::erase_if(shapes, [](const NamedShape& named) { return named.shape.z; });
  return shapes;
}

// ---- the naive implementation ---------------------------------------------------------------------------------------

float bf16(float x) { return to_float(kernels::to_bfloat16(x)); }

/// Attention with or without plain CoPE, row by row in f32 from the formulas of attention_tile.h; weights and gradients of
/// scores are rounded to bf16 where they are multiplied with v, dO, k and q.
class Naive {
 public:
  DenseOutputs outputs;
  DenseGradients gradients;

  explicit Naive(const AttentionProblem& problem) : p_(problem.cast(DType::f32)) {
    tokens_ = p_.q.shape()[0];
    heads_ = p_.q.shape()[1];
    groups_ = p_.k.shape()[1];
    depth_ = p_.q.shape()[2];
    scale_ = float(1 / std::sqrt(double(depth_)));
    outputs.o = zeros_like(p_.q);
    outputs.lse = Tensor({tokens_, heads_}, DType::f32, Device::ref);
    gradients.dq = zeros_like(p_.q);
    gradients.dk = zeros_like(p_.k);
    gradients.dv = zeros_like(p_.v);
    if (p_.table) gradients.dtable = zeros_like(p_.table);
    for (std::int64_t head = 0; head < heads_; ++head)
      for (std::int64_t row = 0; row < tokens_; ++row) attend(row, head);
  }

 private:
  float* of_row(const Tensor& x, std::int64_t row, std::int64_t head) const {
    return x.as<float>() + (row * heads_ + head) * x.shape()[2];
  }
  float* of_key(const Tensor& x, std::int64_t key, std::int64_t head) const {
    return x.as<float>() + (key * groups_ + head / (heads_ / groups_)) * depth_;
  }
  float dot(const float* a, const float* b) const {
    float sum = 0;
    for (std::int64_t d = 0; d < depth_; ++d) sum += a[d] * b[d];
    return sum;
  }
  void add(float* to, float factor, const float* x) const {
    for (std::int64_t d = 0; d < depth_; ++d) to[d] += factor * x[d];
  }

  void attend(std::int64_t row, std::int64_t head) {
    std::int64_t first = row;
    while (first > 0 && p_.document[first - 1] == p_.document[row]) --first;
    const std::int64_t keys = row + 1 - first;
    const float* q = of_row(p_.q, row, head);
    std::vector<float> score(keys), logit(keys), gate(keys), place(keys, 0.0f);
    for (std::int64_t j = 0; j < keys; ++j) logit[j] = score[j] = scale_ * dot(q, of_key(p_.k, first + j, head));
    float position = 0;
    for (std::int64_t j = keys - 1; p_.table && j >= 0; --j) {
      gate[j] = 1 / (1 + std::exp(-score[j]));
      position += gate[j];
      place[j] = std::min(position, float(p_.table.shape()[2] - 1));
      const float* table = of_row(p_.table, row, head);
      const float low = std::floor(place[j]), weight = place[j] - low;
      logit[j] += (1 - weight) * table[int(low)] + weight * table[int(std::ceil(place[j]))];
    }
    const float most = *std::max_element(logit.begin(), logit.end());
    float sum = 0, *o = of_row(outputs.o, row, head);
    for (std::int64_t j = 0; j < keys; ++j) {
      const float weight = std::exp(logit[j] - most);
      sum += weight;
      add(o, bf16(weight), of_key(p_.v, first + j, head));
    }
    for (std::int64_t d = 0; d < depth_; ++d) o[d] /= sum;
    outputs.lse.as<float>()[row * heads_ + head] = most + std::log(sum);
    back(row, head, first, logit, gate, place);
  }

  void back(std::int64_t row, std::int64_t head, std::int64_t first, const std::vector<float>& logit,
            const std::vector<float>& gate, const std::vector<float>& place) {
    const float *q = of_row(p_.q, row, head), *d_o = of_row(p_.d_o, row, head),
                lse = outputs.lse.as<float>()[row * heads_ + head], delta = dot(d_o, of_row(outputs.o, row, head));
    float gate_grad = 0;
    for (std::size_t j = 0; j < logit.size(); ++j) {
      const std::int64_t key = first + std::int64_t(j);
      const float weight = std::exp(logit[j] - lse);
      add(of_key(gradients.dv, key, head), bf16(weight), d_o);
      float d_score = weight * (dot(d_o, of_key(p_.v, key, head)) - delta);
      if (p_.table) {
        const float *table = of_row(p_.table, row, head), low = std::floor(place[j]), part = place[j] - low;
        float* d_table = of_row(gradients.dtable, row, head);
        const int below = int(low), above = int(std::ceil(place[j]));
        d_table[below] += (1 - part) * d_score;
        d_table[above] += part * d_score;
        gate_grad += d_score * (table[above] - table[below]);
        d_score += gate[j] * (1 - gate[j]) * gate_grad;
      }
      add(of_row(gradients.dq, row, head), scale_ * bf16(d_score), of_key(p_.k, key, head));
      add(of_key(gradients.dk, key, head), scale_ * bf16(d_score), q);
    }
  }

  AttentionProblem p_;
  std::int64_t tokens_, heads_, groups_, depth_;
  float scale_;
};

/// DESIGN §4: at most twice the naive error, both against f64 on the same bf16 inputs.
void compare_with_naive(const AttentionShape& shape) {
  AttentionProblem problem = rounded_to_bf16(random_attention(shape, std::uint64_t(shape.tokens + shape.depth)));
  if (problem.table) problem.table = gentle_table(problem.table);
  const DenseOutputs exact = dense_attention(problem.inputs());
  const DenseGradients exact_back = dense_attention_backward(problem.inputs(), problem.d_o);
  const Naive naive(problem);
  for (std::int64_t tile : {16, 64}) {
    SCOPED_TRACE(fmt::format("T {} H {} G {} D {} npos {} tile {}", shape.tokens, shape.heads, shape.groups,
                             shape.depth, shape.npos, tile));
    const TileRun run = run_on_tiles(problem, tile);
    const auto look = [](const char* name, const Tensor& got, const Tensor& single, const Tensor& expected) {
      EXPECT_LE(relative_error(got, expected), f32_bound(single, expected)) << name;
    };
    look("o", run.o, naive.outputs.o, exact.o);
    look("lse", run.lse, naive.outputs.lse, exact.lse);
    look("dq", run.dq, naive.gradients.dq, exact_back.dq);
    look("dk", run.dk, naive.gradients.dk, exact_back.dk);
    look("dv", run.dv, naive.gradients.dv, exact_back.dv);
    if (run.dtable) look("dtable", run.dtable, naive.gradients.dtable, exact_back.dtable);
  }
}

TEST(AttentionTileUnit, AtMostTwiceTheNaiveError) {
  for (std::int64_t depth : {8, 40, 64, 128})
    for (std::int64_t npos : {0, 64}) {
      compare_with_naive({.tokens = 150, .heads = 2, .depth = depth, .npos = npos});
      compare_with_naive({.tokens = 77, .heads = 4, .groups = 2, .depth = depth, .npos = npos, .documents = {20, 5}});
    }
}

/// Scores are exact products summed in f32, so that whatever depends on them alone is what f32 makes of the same inputs.
TEST(AttentionTileUnit, AllTermsAgreeWithF32) {
  for (const NamedShape& named : shapes_without_z()) {
    SCOPED_TRACE(named.name);
    AttentionShape shape = named.shape;
    shape.groups = 1;
    const AttentionProblem problem = rounded_to_bf16(random_attention(shape, 41)), single = problem.cast(DType::f32);
    const TileRun run = run_on_tiles(problem, 64);
    EXPECT_LE(relative_error(run.lse, dense_attention(problem.inputs()).lse),
              f32_bound(dense_attention(single.inputs()).lse, dense_attention(problem.inputs()).lse));
    const TileRun f32 = run_tiles(problem, DType::f32, Device::cpu, settings_for(problem, 64));
    EXPECT_EQ(run.stats.tiles, f32.stats.tiles);
    EXPECT_EQ(run.stats.gates, f32.stats.gates);
    for (const Tensor& left : run.carry_left) EXPECT_TRUE(!left || same_bits(left, zeros_like(left)));
  }
}

TEST(AttentionTileUnit, RowsDoNotDependOnOtherRowsNorOnPieces) {
  for (const NamedShape& named : shapes_without_z()) {
    SCOPED_TRACE(named.name);
    const AttentionProblem problem = random_attention(named.shape, 42);
    const TileRun all = run_on_tiles(problem, 64), pieces = run_on_tiles(problem, 64, {{64, 128}});
    EXPECT_TRUE(same_bits(all.o, pieces.o));
    EXPECT_TRUE(same_bits(all.lse, pieces.lse));
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{64, 80}, {100, 101}, {129, 130}}) {
      const TileRun some = run_on_tiles(problem, 64, {{}, begin, end});
      EXPECT_TRUE(same_bits(all.o.view().rows(begin, end), some.o));
      EXPECT_TRUE(same_bits(all.lse.view().rows(begin, end), some.lse));
      EXPECT_TRUE(same_bits(all.dq.view().rows(begin, end), some.dq));
    }
    if (HasFailure()) return;
  }
}

TEST(AttentionTileUnit, EarlierCallsLeaveNothingBehind) {
  const testing::WithoutTraps nan_is_the_subject;
  const AttentionProblem problem = random_attention({.tokens = 130, .heads = 2, .depth = 40, .npos = 9}, 43);
  const TileRun fresh = run_on_tiles(problem, 64);
  AttentionProblem bad = random_attention({.tokens = 130, .depth = 128}, 44);
  for (Tensor* x : {&bad.q, &bad.k, &bad.v})
    std::fill_n(x->as<double>(), x->view().elements(), std::numeric_limits<double>::quiet_NaN());
  run_on_tiles(bad, 64);
  expect_same_run(run_on_tiles(problem, 64), fresh);
}

/// The unit itself, where there is one.
TEST(AttentionTileUnit, HardwareEqualsTheEmulation) {
  if (!kernels::has_amx()) GTEST_SKIP() << "this machine has no tile unit (AMX)";
  for (const NamedShape& named : shapes_without_z()) {
    const AttentionProblem problem = random_attention(named.shape, 45);
    const TileRun hardware = run_tiles(problem, DType::bf16, Device::cpu, settings_for(problem, 64)),
                  emulation = run_on_tiles(problem, 64);
    // The unit may round a sum of two products once, and exponentials are made with or without fused operations: sums over at
    // most 130 keys, 2^-23 each; a weight that this moves over an edge falls on the neighbouring bf16, 2^-8 away.
    EXPECT_LE(relative_error(hardware.o, emulation.o), 0x1p-8) << named.name;
    EXPECT_LE(relative_error(hardware.lse, emulation.lse), 130 * 0x1p-23) << named.name;
  }
}

}  // namespace
}  // namespace capstan::tests
