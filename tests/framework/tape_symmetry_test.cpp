// TAPE's symmetries over ranks (notes/tape.md §1.6), each with what must not be one. States as 2 x R blocks, with
// reflections: tape_tensor_test.cpp.

#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "framework/rotary_frequencies.h"
#include "tests/framework/runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;
using kernels::View;
using Complex = std::complex<double>;

constexpr double rounding = 1e-12;  ///< of three layers' sums of f64
constexpr std::int64_t tokens = 37, width = 12, heads = 4, groups = 2, depth = 6, frequencies = depth / 2;

/// Each state times factor(g, f).
template <class F> Numbers turned(const Numbers& z, std::int64_t head_size, F&& factor) {
  Numbers out(z.size());
  const auto pairs = std::size_t(head_size / 2);
  for (std::size_t head = 0; head < z.size() / (2 * pairs); ++head)
    for (std::size_t f = 0; f < pairs; ++f) {
      const std::size_t at = head * 2 * pairs + f;
      const Complex number = Complex(z[at], z[at + pairs]) * factor(std::int64_t(head) % groups, std::int64_t(f));
      out[at] = number.real();
      out[at + pairs] = number.imag();
    }
  return out;
}

Complex phase(double angle) { return std::polar(1.0, angle); }

Numbers random_numbers(std::int64_t count, std::uint64_t seed) {
  Numbers x;
  for (std::int64_t n = 0; n < count; ++n) x.push_back(normal(seed, std::uint64_t(n)));
  return x;
}

/// Layers 1 to 3 of four, whose states come from outside and so may be any: those of layer 0 follow from the positions.
/// Loss: random weights on x.
struct Stack {
  Numbers x = random_numbers(tokens * width, 1), z = random_numbers(tokens * groups * depth, 2);
  std::function<void(const View& z)> between = [](const View&) {
  };  ///< changes the states after the first of the layers
  struct Result {
    Numbers x, dx, dz;
    std::vector<Numbers> z;  ///< after the first layer and after the second
  };
  Result run(parallel::Communicator& comm) const;
};

/// The layers with random parameters.
struct Layers {
  framework::Parameters parameters;
  std::unique_ptr<framework::Encoding> encoding;
  std::vector<framework::Block> blocks;

  Layers() {
    framework::ModelConfig config;
    config.hidden_size = width;
    config.mlp_size = 10;
    config.layers = 4;
    config.heads = heads;
    config.kv_heads = groups;
    config.head_size = depth;
    framework::PositionConfig position;
    position.kind = "tape";
    encoding = framework::make_encoding(position, {4, width, heads, groups, depth, 64, 64});
    for (int layer = 1; layer < 4; ++layer) blocks.emplace_back(config, layer, *encoding, parameters);
    encoding->declare(parameters);
    parameters.allocate(Device::ref, DType::f64, true, [](const std::string&) { return true; });
    std::uint64_t seed = 10;
    for (const framework::Parameter& p : parameters.all())
      p.value.copy_from(random_tensor(p.shape, DType::f64, Device::ref, ++seed, 0.4));
  }
};

/// The rows of the rank's tokens.
Tensor shard(const Numbers& whole, const std::vector<std::int64_t>& index, kernels::Shape shape) {
  Tensor out(shape, DType::f64, Device::ref);
  const std::ptrdiff_t columns = std::ssize(whole) / tokens;
  double* to = out.as<double>();
  for (const std::int64_t t : index) to = std::copy_n(whole.begin() + t * columns, columns, to);
  return out;
}

Stack::Result Stack::run(parallel::Communicator& comm) const {
  const Layers layers;
  parallel::RingPlan plan = parallel::plan_ring({"auto", comm.size(), 0, int(groups), tokens, 4});
  const parallel::Ring ring{comm, std::move(plan.layout), std::move(plan.schedule)};
  const std::vector<std::int64_t> index = ring.layout.local_index(comm.rank());
  const std::int64_t local = std::ssize(index);
  const Tensor place({1, local}, DType::i64, Device::ref), document = zeros_like(place);
  std::copy(index.begin(), index.end(), place.as<std::int64_t>());
  const framework::Attend attend = [&ring](int, const parallel::RingInputs& in, const kernels::AttentionSettings& s,
                                           kernels::AttentionStats* stats) {
    return ring_attention_forward(ring, in, s, stats);
  };
  const framework::SequenceContext context{1, local, {place, place, document}, attend, &ring, 4};

  Result result;
  framework::BlockOutput now{shard(x, index, {local, width}), shard(z, index, {local, groups, depth})};
  std::vector<framework::BlockSaved> saved(layers.blocks.size());
  for (std::size_t layer = 0; layer < saved.size(); ++layer) {
    const framework::Block& block = layers.blocks[layer];
    now = block.forward(context, std::move(now.x), std::move(now.z), framework::Keep::ring, saved[layer], nullptr);
    if (now.z) result.z.push_back(gathered(ring, now.z, 1, groups * depth));
    if (layer == 0) between(now.z);
  }
  result.x = gathered(ring, now.x, 1, width);
  Tensor dx = shard(random_numbers(tokens * width, 3), index, {local, width}), dz;
  for (std::size_t layer = saved.size(); layer-- > 0;) layers.blocks[layer].backward(context, dx, dz, saved[layer]);
  result.dx = gathered(ring, dx, 1, width);
  result.dz = gathered(ring, dz, 1, groups * depth);
  return result;
}

Stack::Result run_stack(int ranks, const Stack& stack) {
  Stack::Result result;
  parallel::run_on_threads(ranks, [&](parallel::Communicator& comm) {
    Stack::Result mine = stack.run(comm);
    if (comm.rank() == 0) result = std::move(mine);
  });
  return result;
}

constexpr double angles[frequencies] = {0.7, -2.1, 1.3};

TEST(TapeSymmetry, APhasePerFrequencyTurnsTheStatesAndNothingElse) {
  const auto factor = [](std::int64_t, std::int64_t f) { return phase(angles[f]); };
  for (const int ranks : {1, 2, 3}) {
    Stack stack;
    const Stack::Result plain = run_stack(ranks, stack);
    stack.z = turned(stack.z, depth, factor);
    const Stack::Result other = run_stack(ranks, stack);
    EXPECT_LE(relative_difference(other.x, plain.x), rounding);
    EXPECT_LE(relative_difference(other.dx, plain.dx), rounding);
    ASSERT_EQ(plain.z.size(), 2u);
    for (std::size_t layer = 0; layer < 2; ++layer)
      EXPECT_LE(relative_difference(other.z[layer], turned(plain.z[layer], depth, factor)), rounding) << layer;
    EXPECT_LE(relative_difference(other.dz, turned(plain.dz, depth, factor)), rounding);
  }
}

/// One number per state keeps its block's rotations, not its reflections.
TEST(TapeSymmetry, ConjugatedStatesAreOthers) {
  Stack stack;
  const Stack::Result plain = run_stack(2, stack);
  for (std::size_t at = 0; at < stack.z.size(); ++at)
    if (at % depth >= std::size_t(frequencies)) stack.z[at] = -stack.z[at];
  EXPECT_GT(relative_difference(run_stack(2, stack).x, plain.x), 1e-2);
}

TEST(TapeSymmetry, APhasePerHeadChangesTheOutput) {
  Stack stack;
  const Stack::Result plain = run_stack(2, stack);
  stack.z = turned(stack.z, depth, [](std::int64_t g, std::int64_t f) { return phase(angles[f] + double(g)); });
  const Stack::Result other = run_stack(2, stack);
  EXPECT_GT(relative_difference(other.x, plain.x), 1e-2);
}

/// If frequencies were mixed, one phase for all would still be none, but a shift, a phase for each, would show.
TEST(TapeSymmetry, MixingFrequenciesWouldLoseTheShift) {
  Stack stack;
  stack.between = [](const View& z) {
    for (std::int64_t row = 0; row < z.dim(0) * groups * 2; ++row) {  // re, then im
      double* x = z.as<double>() + row * frequencies;
      const double first = x[0];
      for (std::int64_t f = 0; f < frequencies; ++f) x[f] += 0.5 * (f + 1 < frequencies ? x[f + 1] : first);
    }
  };
  const Stack::Result plain = run_stack(2, stack);
  const Numbers z = stack.z;
  stack.z = turned(z, depth, [](std::int64_t, std::int64_t) { return phase(0.7); });
  EXPECT_LE(relative_difference(run_stack(2, stack).x, plain.x), rounding);
  stack.z = turned(z, depth, [](std::int64_t, std::int64_t f) { return phase(angles[f]); });
  EXPECT_GT(relative_difference(run_stack(2, stack).x, plain.x), 1e-2);
}

// ---- the whole model ------------------------------------------------------------------------------------------------

ModelRun tape_run(int layers = 3) {
  ModelRun run;
  run.shape.kind = "tape";
  run.shape.layers = layers;
  return run;
}

void expect_equal(const ModelResult& got, const ModelResult& expected, double bound) {
  EXPECT_LE(relative_difference(got.nll, expected.nll), bound);
  EXPECT_LE(relative_difference(got.input_gradient, expected.input_gradient), bound);
  const NamedDifference worst = worst_difference(got.gradients, expected.gradients);
  EXPECT_LE(worst.difference, bound) << worst.name;
}

/// The phases of positions of 10^3 are rounded to 1e-13.
TEST(TapeSymmetry, AShiftOfPositionsTurnsTheStates) {
  constexpr std::int64_t shift = 1000;
  ModelRun run = tape_run();
  run.documents = {11, 5};
  const framework::RotaryFrequencies own =
      framework::rotary_frequencies(run.shape.position, run.shape.head_size, 64, run.length);
  const ModelResult plain = run_model(3, run);
  run.set_batch = [](framework::Batch& batch) {
    for (std::int64_t t = 0; t < batch.position.view().elements(); ++t) batch.position.as<std::int64_t>()[t] += shift;
  };
  const ModelResult other = run_model(3, run);
  expect_equal(other, plain, 1e-11);
  ASSERT_EQ(plain.states.size(), 3u);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const auto factor = [&](std::int64_t, std::int64_t f) {
      return phase(double(shift) * own.frequency[std::size_t(f)]);
    };
    EXPECT_LE(relative_difference(other.states[layer], turned(plain.states[layer], run.shape.head_size, factor)),
              1e-11);
    EXPECT_GT(relative_difference(other.states[layer], plain.states[layer]), 0.1);
  }
}

TEST(TapeSymmetry, PackedDocumentsMayRestartTheirPositionsOrNot) {
  ModelRun run = tape_run();
  run.documents = {11, 5, 13};
  for (const int ranks : {1, 3}) {
    run.set_batch = [](framework::Batch&) {};
    const ModelResult restarted = run_model(ranks, run);
    run.set_batch = [](framework::Batch& batch) { batch.position.view().copy_from(batch.index); };
    const ModelResult running = run_model(ranks, run);
    EXPECT_NE(running.states, restarted.states);
    expect_equal(running, restarted, rounding);
  }
}

/// Tokens, states and mask change places together: the documents of a pack in another order.
TEST(TapeSymmetry, DocumentsInAnotherOrderGiveTheSame) {
  const std::vector<std::int64_t> lengths{7, 12, 9, 17}, begins{0, 7, 19, 28}, order{2, 0, 3, 1};
  ModelRun run = tape_run();
  run.documents = lengths;
  std::vector<std::int64_t> from;  // place → what stood there in the first order
  std::vector<std::int64_t> document;
  for (const std::int64_t d : order)
    for (std::int64_t t = 0; t < lengths[std::size_t(d)]; ++t) {
      from.push_back(begins[std::size_t(d)] + t);
      document.push_back(d);
    }
  const framework::Batch first =
      tiny_batch(parallel::SequenceLayout::contiguous(run.length, 1, 1), 0, run.shape, 1, lengths);
  ModelRun permuted = run;
  permuted.set_batch = [&](framework::Batch& batch) {
    for (std::int64_t row = 0; row < batch.index.view().elements(); ++row) {
      const std::int64_t place = batch.index.as<std::int64_t>()[row], at = from[std::size_t(place)];
      batch.tokens.as<std::int32_t>()[row] = first.tokens.as<std::int32_t>()[at];
      batch.targets.as<std::int32_t>()[row] = first.targets.as<std::int32_t>()[at];
      batch.position.as<std::int64_t>()[row] = first.position.as<std::int64_t>()[at];
      batch.document.as<std::int64_t>()[row] = document[std::size_t(place)];
    }
  };
  const auto in_order = [&](const Numbers& x) {
    const std::size_t columns = x.size() / from.size();
    Numbers out;
    for (const std::int64_t at : from)
      out.insert(out.end(), x.begin() + at * std::ssize(x) / std::ssize(from),
                 x.begin() + (at + 1) * std::ssize(x) / std::ssize(from));
    CAPSTAN_CHECK(out.size() == columns * from.size(), "a permutation");
    return out;
  };
  for (const int ranks : {1, 3}) {
    ModelResult expected = run_model(ranks, run);
    const ModelResult got = run_model(ranks, permuted);
    EXPECT_GT(relative_difference(got.nll, expected.nll), 0.1);
    expected.nll = in_order(expected.nll);
    expected.input_gradient = in_order(expected.input_gradient);
    expect_equal(got, expected, rounding);
    for (std::size_t layer = 0; layer < 3; ++layer)
      EXPECT_LE(relative_difference(got.states[layer], in_order(expected.states[layer])), rounding);
  }
}

// ---- the start ------------------------------------------------------------------------------------------------------

/// With what is zero at first the model is RoPE's, bit for bit, and its first gradients move what they can.
TEST(TapeSymmetry, ZeroUpdatesAreRope) {
  for (const char* zero : {"down", "up"})
    for (const char* mix : {"full", "per_head"})
      for (const Device device : {Device::ref, Device::cpu})
        for (const int ranks : {1, 2, 3})
          for (const framework::GridConfig& grid : ordered_grids(ranks)) {
            SCOPED_TRACE(fmt::format("{} {} {} {} over {} ranks", zero, mix, name_of(device), grid.schedule, ranks));
            ModelRun run = tape_run();
            run.documents = {11, 5};
            run.grid = grid;
            run.shape.device = device;
            run.shape.type = device == Device::ref ? DType::f64 : DType::f32;
            run.shape.position.tape_zero = zero;
            run.shape.position.tape_mix = mix;
            ModelRun rope = run;
            rope.shape.kind = "rope";
            run.set_model = [&](framework::Model& model) {
              copy_shared(model, *tiny_model(rope.shape));
              for (const framework::Parameter& p : model.parameters().all())
                if (p.init == framework::Init::zero) p.value.fill_zero();
            };
            const ModelResult expected = run_model(ranks, rope), got = run_model(ranks, run);
            EXPECT_EQ(got.nll, expected.nll);
            EXPECT_EQ(got.input_gradient, expected.input_gradient);
            EXPECT_EQ(unequal_names(got.gradients, expected.gradients), std::vector<std::string>{});
            for (int layer = 0; layer < 2; ++layer)
              for (const char* name : {"alpha", "up", "down", "gate"}) {
                const Numbers& gradient = got.gradients.at(fmt::format("model.layers.{}.position.{}", layer, name));
                const bool moves = name == std::string("alpha") || name == std::string(zero);
                EXPECT_EQ(gradient != Numbers(gradient.size()), moves) << name << " of layer " << layer;
              }
          }
}

TEST(TapeSymmetry, TheLastLayersStateBelongsToNobody) {
  const ModelResult result = run_model(2, tape_run());
  for (const auto& [name, gradient] : result.gradients) {
    EXPECT_FALSE(name.starts_with("model.layers.2.position")) << name;
    EXPECT_NE(gradient, Numbers(gradient.size())) << name;
  }
}

TEST(TapeSymmetry, AFactorPerHeadIsADiagonalMatrix) {
  ModelRun factors = tape_run();
  factors.shape.position.tape_mix = "per_head";
  ModelRun matrix = tape_run();
  matrix.set_model = [&](framework::Model& model) {
    const auto other = tiny_model(factors.shape);
    for (const framework::Parameter& p : model.parameters().all()) {
      const View from = other->parameters().find(p.name)->value;
      if (!p.name.ends_with("alpha")) {
        p.value.copy_from(from);
        continue;
      }
      p.value.fill_zero();
      for (std::int64_t g = 0; g < groups; ++g) p.value.as<double>()[g * groups + g] = from.as<double>()[g];
    }
  };
  ModelResult expected = run_model(3, factors), got = run_model(3, matrix);
  EXPECT_EQ(got.nll, expected.nll);
  for (auto& [name, gradient] : got.gradients)
    if (name.ends_with("alpha")) gradient = {gradient[0], gradient[3]};
  EXPECT_EQ(unequal_names(got.gradients, expected.gradients), std::vector<std::string>{});
}

// ---- the ring -------------------------------------------------------------------------------------------------------

/// Keys with their values and states may stand in any order, as far as a row that sees them all can tell.
TEST(TapeSymmetry, TheLastRowSeesKeysInNoOrder) {
  for (const int ranks : {1, 2, 3})
    for (const framework::GridConfig& grid : ordered_grids(ranks)) {
      RingRun run{.grid = grid};
      run.settings.tile = 4;
      add_random(run, DType::f64, Device::ref, true);
      const RingResult plain = run_ring(ranks, run);
      for (const char* name : {"k", "v", "z"}) {
        const Tensor before = run.x[name].clone();
        for (std::int64_t t = 0; t + 1 < run.tokens; ++t)  // 7 and 44 have no common factor
          run.x[name].view().rows(t, t + 1).copy_from(before.view().rows(t * 7 % 44, t * 7 % 44 + 1));
      }
      const RingResult other = run_ring(ranks, run);
      for (const char* name : {"o", "lse"}) {
        const Numbers &a = plain.rows.at(name), &b = other.rows.at(name);
        const std::ptrdiff_t row = std::ssize(a) / run.tokens;
        EXPECT_LE(relative_difference(Numbers(b.end() - row, b.end()), Numbers(a.end() - row, a.end())), rounding)
            << name;
        EXPECT_GT(relative_difference(b, a), 0.01) << name << ": earlier rows see others";
      }
    }
}

/// Columns [begin, end) of rows of `columns`.
Numbers columns_of(const Numbers& x, std::size_t columns, std::size_t begin, std::size_t end) {
  Numbers out;
  for (std::size_t row = 0; row < x.size(); row += columns)
    out.insert(out.end(), x.begin() + std::ptrdiff_t(row + begin), x.begin() + std::ptrdiff_t(row + end));
  return out;
}

/// Values and states in one call, or in two with the same q and k, whose gradients add up; the states' own share is
/// there.
TEST(TapeSymmetry, StatesAreFurtherValues) {
  for (const int ranks : {1, 2, 3})
    for (const framework::GridConfig& grid : ordered_grids(ranks)) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", grid.schedule, ranks));
      RingRun both{.documents = {17, 3}, .grid = grid};
      both.settings.tile = 4;
      add_random(both, DType::f64, Device::ref, true);
      const RingResult fused = run_ring(ranks, both);
      const Numbers d_o = values_of(both.x["d_o"]);
      RingResult part[2];
      for (int half = 0; half < 2; ++half) {
        RingRun one{.documents = both.documents, .grid = grid, .settings = both.settings};
        for (const char* name : {"q", "k"}) one.x[name] = both.x[name].clone();
        one.x["v"] = both.x[half == 0 ? "v" : "z"].clone();
        one.x["d_o"] = tensor_of(
            {one.tokens, ring_heads, ring_depth}, DType::f64, Device::ref,
            columns_of(d_o, 2 * ring_depth, std::size_t(half * ring_depth), std::size_t((half + 1) * ring_depth)));
        part[half] = run_ring(ranks, one);
        EXPECT_LE(relative_difference(columns_of(fused.rows.at("o"), 2 * ring_depth, std::size_t(half * ring_depth),
                                                 std::size_t((half + 1) * ring_depth)),
                                      part[half].rows.at("o")),
                  rounding);
        EXPECT_LE(relative_difference(fused.gradients.at(half == 0 ? "v" : "z"), part[half].gradients.at("v")),
                  rounding);
      }
      for (const char* name : {"q", "k"}) {
        Numbers sum = part[0].gradients.at(name);
        const Numbers& share = part[1].gradients.at(name);
        EXPECT_GT(relative_difference(share, Numbers(share.size())), 0.1) << name << " has no share of the states";
        for (std::size_t at = 0; at < sum.size(); ++at) sum[at] += share[at];
        EXPECT_LE(relative_difference(fused.gradients.at(name), sum), rounding) << name;
      }
    }
}

}  // namespace
}  // namespace capstan::tests
