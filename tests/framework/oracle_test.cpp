// The oracle itself: its gradients against difference quotients of its loss, and encodings that must agree with one
// another where their formulas coincide.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/support/oracle_model.h"

namespace capstan::tests {
namespace {

/// Uniform in (-1, 1), the same on every platform.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : engine_(seed) {}
  double operator()() { return std::ldexp(double(engine_() >> 11) + 0.5, -52) - 1; }
  std::int64_t below(std::int64_t end) { return std::int64_t(engine_() % std::uint64_t(end)); }

 private:
  std::mt19937_64 engine_;
};

bool ends(const std::string& name, const std::string& suffix) { return name.ends_with(suffix); }

/// All alive: gates in their slopes, tables of order 1, also what training would begin at zero.
OracleParameters random_parameters(const OracleModel& model, const OraclePosition& position, std::uint64_t seed) {
  Noise noise(seed);
  OracleParameters parameters;
  for (const auto& [name, extents] : oracle_shapes(model, position)) {
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    const bool matrix = extents.size() == 2 && (ends(name, "_proj.weight") || ends(name, "gate"));
    const double scale = matrix ? std::sqrt(3.0 / double(extents[1])) : ends(name, "norm.weight") ? 0.3 : 0.8;
    const double centre = ends(name, "norm.weight") ? 1 : ends(name, "fire_in") ? 1.2 : 0;
    std::vector<double>& values = parameters[name];
    for (std::int64_t n = 0; n < size; ++n) values.push_back(centre + scale * noise());
    if (ends(name, "fire_scale")) values = {0.4 + 0.2 * noise(), -6 + noise()};
    if (ends(name, "fire_in_bias"))  // the bends lie in (0, 1)
      for (double& each : values) each = -0.4 + 0.3 * noise();
  }
  return parameters;
}

/// Random tokens; documents of these lengths with positions that begin again in each, with steps of 1 to `step`.
OracleSequence random_sequence(const std::vector<std::int64_t>& documents, std::int64_t vocabulary, std::uint64_t seed,
                               std::int64_t step = 1) {
  Noise noise(seed);
  OracleSequence sequence;
  for (std::size_t document = 0; document < documents.size(); ++document)
    for (std::int64_t n = 0, at = 0; n < documents[document]; ++n, at += 1 + noise.below(step)) {
      sequence.tokens.push_back(int(noise.below(vocabulary)));
      sequence.targets.push_back(sequence.tokens.size() % 6 == 0 ? -1 : int(noise.below(vocabulary)));
      sequence.position.push_back(at);
      sequence.document.push_back(std::int64_t(document));
    }
  return sequence;
}

OracleModel small_model(bool grouped = true) {
  OracleModel model;
  model.hidden_size = 8;
  model.mlp_size = 6;
  model.kv_heads = grouped ? 2 : 4;
  model.vocabulary = 7;
  return model;
}

/// Small tables, so that distances reach their ends.
OraclePosition encoding(const std::vector<std::string>& parts) {
  OraclePosition p;
  p.parts = parts;
  p.theta = 100;
  p.xpos_scale = 16;
  p.centre = 10.5;
  p.learned_length = 40;
  p.relative_distance = 5;
  p.t5_buckets = 8;
  p.t5_max_distance = 16;
  p.fire_width = 5;
  p.cope_positions = 4;
  p.block_size = 3;
  p.block_positions = 3;
  p.tape_width = 3;
  return p;
}

OraclePosition with(OraclePosition position, const std::function<void(OraclePosition&)>& change) {
  change(position);
  return position;
}

struct Case {
  std::string name;
  OraclePosition position;
  std::string norm = "pre", bias = "false", mlp = "swiglu";
};
void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

std::vector<Case> cope_cases() {
  const OraclePosition cope = encoding({"cope"}), both = encoding({"rope", "cope"});
  const OraclePosition blocks = encoding({"hierarchical_cope"});
  return {
      {"cope", cope},
      {"cope_scaled_floor", with(cope, [](auto& p) { p.cope_table_scaled = true, p.cope_gate_floor = 0.25; })},
      {"cope_values", with(cope, [](auto& p) { p.cope_gate = "values"; })},
      {"cope_separate", with(cope, [](auto& p) { p.cope_gate = "separate"; })},
      {"cope_alibi", with(cope, [](auto& p) { p.cope_table = "alibi"; })},
      {"cope_shared", with(cope, [](auto& p) { p.cope_table_shared = true; })},
      {"cope_every_2", with(both, [](auto& p) { p.cope_every = 2; })},
      {"rope_cope", both},
      {"rope_cope_rotated", with(both, [](auto& p) { p.cope_gate_rotated = true; })},
      {"xpos_cope_separate_rotated",
       with(encoding({"xpos", "cope"}), [](auto& p) { p.cope_gate_rotated = true, p.cope_gate = "separate"; })},
      {"blocks_keys", with(blocks, [](auto& p) { p.cope_gate_floor = 0.125; })},
      {"blocks_tokens", with(blocks, [](auto& p) { p.block_gate = "tokens", p.cope_table_scaled = true; })},
      {"blocks_window_2", with(blocks, [](auto& p) { p.block_window = 2, p.block_size = 2; })},
      {"rope_blocks_separate", with(blocks, [](auto& p) { p.parts.push_back("rope"), p.cope_gate = "separate"; })},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = {{"none", encoding({})}};
  for (const char* part :
       {"sinusoidal", "learned", "rope", "xpos", "relative", "alibi", "t5", "fire", "forget", "tape"})
    all.push_back({part, encoding({part})});
  const OraclePosition tape = encoding({"tape"});
  all.push_back({"rope_scaled", with(encoding({"rope"}), [](auto& p) {
                   p.frequency = {0.5, 0.03}, p.amplitude = 1.2;
                 })});
  all.push_back({"relative_shared", with(encoding({"relative"}), [](auto& p) { p.relative_shared = true; })});
  all.push_back({"tape_amplitude", with(tape, [](auto& p) { p.frequency = {0.5, 0.03}, p.amplitude = 1.1; })});
  all.push_back({"tape_scalars", with(tape, [](auto& p) { p.tape_scalars = true; })});
  all.push_back({"tape_attention", with(tape, [](auto& p) { p.tape_mlp = false; })});
  all.push_back({"tape_mlp", with(tape, [](auto& p) { p.tape_attention = false; })});
  all.push_back({"learned_rope_forget_relative", encoding({"learned", "rope", "forget", "relative"})});
  for (const Case& each : cope_cases()) all.push_back(each);
  all.push_back({"rope_post_bias_gelu", encoding({"rope"}), "post", "true", "gelu"});
  all.push_back({"tape_post_mlp_bias_geglu", tape, "post", "mlp", "geglu"});
  all.push_back({"xpos_attention_bias_gelu", encoding({"xpos"}), "pre", "attention", "gelu"});
  return all;
}

// --- gradients ---

class OracleGradient : public ::testing::TestWithParam<std::tuple<Case, bool>> {};

/// ‖gradient - difference quotient‖ of one parameter, estimated by one direction v of random signs:
/// E (error·v)² = ‖error‖².
double gradient_error(const OracleModel& model, const OraclePosition& position, OracleParameters parameters,
                      const std::vector<OracleSequence>& sequences, const std::string& name,
                      const std::vector<double>& gradient, Noise& noise) {
  constexpr double h = 1e-7;
  std::vector<double> up = parameters[name], down = up;
  long double expected = 0;
  for (std::size_t c = 0; c < up.size(); ++c) {
    const double step = noise() < 0 ? -h : h;
    up[c] += step, down[c] -= step;
    expected += (long double)gradient[c] * ((long double)up[c] - down[c]);  // what rounding has left of the step
  }
  parameters[name] = up;
  const long double above = oracle_loss(model, position, parameters, sequences);
  parameters[name] = down;
  const long double below = oracle_loss(model, position, parameters, sequences);
  return double(std::abs(above - below - expected)) / (2 * h);
}

double norm(const std::vector<double>& x) {
  double squares = 0;
  for (double each : x) squares += each * each;
  return std::sqrt(squares);
}

TEST_P(OracleGradient, IsTheDifferenceQuotient) {
  const auto& [each, grouped] = GetParam();
  OracleModel model = small_model(grouped);
  model.tied = grouped;
  model.norm = each.norm, model.bias = each.bias, model.mlp = each.mlp;
  const OracleParameters parameters = random_parameters(model, each.position, 3);
  std::vector<OracleSequence> sequences = {random_sequence({9, 5}, model.vocabulary, 4)};
  if (grouped) sequences.push_back(random_sequence({7}, model.vocabulary, 5, 3));
  const OracleResult result = oracle(model, each.position, parameters, sequences);
  EXPECT_NEAR(result.loss, double(oracle_loss(model, each.position, parameters, sequences)), 1e-12);
  ASSERT_EQ(result.gradients.size(), parameters.size());
  Noise noise(6);
  for (const auto& [name, gradient] : result.gradients) {
    // Rule: h = 1e-7 has a truncation error of h² / 6 of the third derivative, about 1e-13; in extended precision the
    // loss of about 50 is rounded at 3e-18, its quotient at 3e-11; 1e-7 of the gradient's norm leaves room for norms of
    // 1e-3. A step of 1e-6 would now and then cross a bend (of Z, a cap or a relu), where there is no derivative.
    if (ends(name, "fire_out_bias")) {  // adds the same to all logits of a row
      EXPECT_LE(norm(gradient), 1e-13) << name;
      continue;
    }
    const double error = gradient_error(model, each.position, parameters, sequences, name, gradient, noise);
    EXPECT_GT(norm(gradient), 1e-3) << name << " hardly matters: this test says little about it";
    EXPECT_LE(error, 1e-7 * norm(gradient)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OracleGradient, ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Bool()),
                         [](const auto& each) {
                           return std::get<0>(each.param).name + (std::get<1>(each.param) ? "_gqa" : "_mha");
                         });

// --- encodings that coincide ---

/// A model with parameters, on sequences.
struct Setting {
  OracleModel model = small_model();
  OraclePosition position;
  OracleParameters parameters;
  std::vector<OracleSequence> sequences = {random_sequence({9, 5}, 7, 4), random_sequence({7}, 7, 5)};

  explicit Setting(const OraclePosition& p) : position(p), parameters(random_parameters(model, p, 3)) {}
  OracleResult run() const { return oracle(model, position, parameters, sequences); }
  std::vector<double>& own(std::int64_t layer, const std::string& name) {
    return parameters.at("model.layers." + std::to_string(layer) + ".position." + name);
  }
  /// The same parameters, where both have them.
  Setting& take(const Setting& other) {
    for (auto& [name, values] : parameters)
      if (other.parameters.count(name)) values = other.parameters.at(name);
    return *this;
  }
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  const double tolerance = 1e-11 * std::max(norm(b), 1e-2);  // rounding of sums of a few hundred terms of order 1
  for (std::size_t n = 0; n < a.size(); ++n) EXPECT_NEAR(a[n], b[n], tolerance) << what << " " << n;
}

/// Losses, and gradients by what both models have outside of the encoding.
void expect_same(const OracleResult& a, const OracleResult& b) {
  expect_near(a.nll, b.nll, "nll");
  expect_near(a.input_gradient, b.input_gradient, "input");
  for (const auto& [name, gradient] : a.gradients)
    if (name.find(".position.") == std::string::npos) expect_near(gradient, b.gradients.at(name), name);
}

/// All bias -m_h d, as a table over distances 0..last.
std::vector<double> alibi_table(std::int64_t rows, std::int64_t heads) {
  std::vector<double> table;
  for (std::int64_t d = 0; d < rows; ++d)
    for (double slope : oracle_alibi_slopes(heads)) table.push_back(-slope * double(d));
  return table;
}

TEST(Oracle, AlibiSlopesAreThoseOfTheReference) {
  EXPECT_EQ(oracle_alibi_slopes(4), (std::vector<double>{1. / 4, 1. / 16, 1. / 64, 1. / 256}));
  const std::vector<double> six = oracle_alibi_slopes(6);
  EXPECT_EQ(six, (std::vector<double>{1. / 4, 1. / 16, 1. / 64, 1. / 256, 1. / 2, 1. / 8}));
}

TEST(Oracle, T5BucketsAreThoseOfTheReference) {
  const auto buckets = [](std::vector<std::int64_t> distances, std::int64_t count, std::int64_t max_distance) {
    for (std::int64_t& d : distances) d = oracle_t5_bucket(d, count, max_distance);
    return distances;
  };
  EXPECT_EQ(buckets({0, 15, 16, 18, 19, 112, 113, 127, 128, 5000}, 32, 128),
            (std::vector<std::int64_t>{0, 15, 16, 16, 17, 30, 31, 31, 31, 31}));
  EXPECT_EQ(buckets({3, 4, 5, 6, 7, 8, 11, 12, 16}, 8, 16), (std::vector<std::int64_t>{3, 4, 4, 5, 5, 6, 6, 7, 7}));
}

TEST(Oracle, T5AndForgetCanBeAlibi) {
  const Setting alibi(encoding({"alibi"}));
  Setting t5(with(encoding({"t5"}), [](auto& p) { p.t5_buckets = 40, p.t5_max_distance = 100; }));
  t5.take(alibi).parameters["model.position.buckets"] = alibi_table(40, t5.model.heads);
  expect_same(t5.run(), alibi.run());

  Setting forget(encoding({"forget"}));
  forget.take(alibi);
  for (std::int64_t layer = 0; layer < forget.model.layers; ++layer) {
    for (double& each : forget.own(layer, "forget")) each = 0;
    forget.own(layer, "forget_bias").clear();  // ln σ(b) = -m
    for (double m : oracle_alibi_slopes(4)) forget.own(layer, "forget_bias").push_back(-std::log(std::expm1(m)));
  }
  expect_same(forget.run(), alibi.run());
}

TEST(Oracle, CopeWithOpenGatesIsRelative) {
  const auto open = [](auto& p) { p.cope_gate_floor = 1, p.cope_positions = 20; };  // p_ij = i - j + 1
  const Setting alibi(encoding({"alibi"}));
  Setting counted(with(with(encoding({"cope"}), open), [](auto& p) { p.cope_table = "alibi"; }));
  expect_same(counted.take(alibi).run(), alibi.run());

  const Setting cope(with(with(encoding({"cope"}), open), [](auto& p) { p.cope_table_scaled = true; }));
  Setting relative(with(encoding({"relative"}), [](auto& p) { p.relative_distance = 18; }));
  relative.take(cope);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const std::vector<double>& table = cope.parameters.at("model.layers." + std::to_string(layer) + ".position.table");
    for (std::size_t n = 4; n < table.size(); ++n) relative.own(layer, "relative")[n - 4] = table[n] / 2;  // λ = 1/√4
  }
  expect_same(cope.run(), relative.run());
}

TEST(Oracle, OneBlockIsCope) {
  for (const char* gate : {"keys", "tokens"}) {
    const Setting cope(encoding({"rope", "cope"}));
    Setting blocks(
        with(encoding({"rope", "hierarchical_cope"}), [&](auto& p) { p.block_size = 99, p.block_gate = gate; }));
    expect_same(blocks.take(cope).run(), cope.run());
  }
}

/// With blocks of one token all distances but that of the token itself, the same for the whole row, are in blocks. With
/// a table that grows evenly that shift of all positions does not matter.
TEST(Oracle, BlocksOfOneTokenAreCopeWithKeysOfItsOwn) {
  Setting cope(with(encoding({"cope"}), [](auto& p) { p.cope_gate = "separate", p.cope_positions = 20; }));
  Setting blocks(with(encoding({"hierarchical_cope"}),
                      [](auto& p) { p.block_size = 1, p.block_positions = 20, p.cope_positions = 20; }));
  for (std::int64_t layer = 0; layer < 2; ++layer)
    for (std::size_t n = 20; n-- > 0;)  // row n is n times what row 0 was
      for (std::size_t d = 0; d < 4; ++d) cope.own(layer, "table")[n * 4 + d] = double(n) * cope.own(layer, "table")[d];
  blocks.take(cope);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    blocks.own(layer, "block_table") = cope.own(layer, "table");
    blocks.own(layer, "block_keys") = cope.own(layer, "gate_keys");
  }
  const OracleResult a = blocks.run(), b = cope.run();
  expect_same(a, b);
  expect_near(a.gradients.at("model.layers.0.position.block_keys"), b.gradients.at("model.layers.0.position.gate_keys"),
              "gate keys");
}

TEST(Oracle, XposDependsOnDistanceAlone) {
  Setting rope(encoding({"rope"})), xpos(encoding({"xpos"}));
  const OracleResult decayed = xpos.run();
  xpos.position.centre = 3;
  expect_same(xpos.run(), decayed);
  EXPECT_GT(std::abs(rope.run().loss - decayed.loss), 1e-3);
  xpos.position.xpos_scale = 1e18;
  expect_same(xpos.run(), rope.run());
}

TEST(Oracle, TapeBeginsAsRope) {
  const auto phases = [](auto& p) { p.frequency = {0.5, 0.03}, p.amplitude = 1.1; };
  Setting rope(with(encoding({"rope"}), phases));
  Setting tape(with(encoding({"tape"}), phases)), scalars(with(encoding({"tape"}), [&](auto&p) {
    phases(p);
    p.tape_scalars = true;
  }));
  scalars.own(0, "alpha") = {0.3, -0.2};
  tape.take(scalars).own(0, "alpha") = {0.3, 0, 0, -0.2};
  rope.take(tape);
  const OracleResult moved = tape.run();
  expect_same(scalars.run(), moved);
  EXPECT_GT(std::abs(rope.run().loss - moved.loss), 1e-3);
  for (const char* name : {"alpha", "down"})
    for (double& each : tape.own(0, name)) each = 0;
  const OracleResult still = tape.run();
  expect_same(still, rope.run());
  expect_near(still.states.at(0), still.states.at(1), "state");
  ASSERT_EQ(still.states[0].size(), 21u * 2 * 4);
  const std::int64_t t = 3, position = tape.sequences[0].position[t];
  for (std::int64_t g = 0; g < 2; ++g)
    for (std::int64_t f = 0; f < 2; ++f) {
      const double angle = double(position) * tape.position.frequency[f];
      EXPECT_NEAR(still.states[0][(t * 2 + g) * 4 + f], 1.1 * std::cos(angle), 1e-15);
      EXPECT_NEAR(still.states[0][(t * 2 + g) * 4 + f + 2], 1.1 * std::sin(angle), 1e-15);
    }
}

TEST(Oracle, LearnedRowsGetTheInputGradient) {
  Setting waves(encoding({"sinusoidal"})), learned(encoding({"learned"}));
  learned.take(waves);
  std::vector<double>& rows = learned.parameters["model.position.embedding"];
  for (std::int64_t position = 0; position < 40; ++position)
    for (std::int64_t c = 0; c < 8; ++c) {
      const double angle = double(position) / std::pow(100, double(c - c % 2) / 8);
      rows[position * 8 + c] = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  const OracleResult a = waves.run(), b = learned.run();
  expect_same(a, b);
  std::vector<double> expected(rows.size(), 0);
  std::size_t row = 0;
  for (const OracleSequence& sequence : learned.sequences)
    for (std::int64_t position : sequence.position) {
      for (std::int64_t c = 0; c < 8; ++c) expected[position * 8 + c] += b.input_gradient[row * 8 + c];
      ++row;
    }
  expect_near(b.gradients.at("model.position.embedding"), expected, "rows");
}

// --- documents, groups, errors ---

class OracleEncoding : public ::testing::TestWithParam<Case> {};

TEST_P(OracleEncoding, DocumentsAreSeparate) {
  Setting packed(GetParam().position), apart(GetParam().position);
  const OracleResult before = packed.run();
  for (int n = 0; n < 9; ++n) packed.sequences[0].tokens[n] = 6 - packed.sequences[0].tokens[n];
  const OracleResult after = packed.run();
  EXPECT_NE(before.nll[3], after.nll[3]);
  EXPECT_EQ(std::vector(before.nll.begin() + 9, before.nll.end()), std::vector(after.nll.begin() + 9, after.nll.end()));

  packed.sequences[0] = random_sequence({6, 8}, 7, 8);  // both documents begin with a block
  apart.sequences.clear();
  for (const OracleSequence& each : packed.sequences)
    for (std::size_t t = 0; t < each.tokens.size(); ++t) {
      if (t == 0 || each.document[t] != each.document[t - 1]) apart.sequences.emplace_back();
      OracleSequence& sequence = apart.sequences.back();
      sequence.tokens.push_back(each.tokens[t]);
      sequence.targets.push_back(each.targets[t]);
      sequence.position.push_back(each.position[t]);
      sequence.document.push_back(0);
    }
  const OracleResult a = packed.run(), b = apart.run();
  expect_same(a, b);
  for (const auto& [name, gradient] : a.gradients) expect_near(gradient, b.gradients.at(name), name);
}

/// Rows of width `width` of G heads, each repeated for the heads of its group.
std::vector<double> repeated(const std::vector<double>& x, std::int64_t width, double factor = 1) {
  std::vector<double> y;
  for (std::size_t head = 0; head < x.size() / width; ++head)
    for (int copy = 0; copy < 2; ++copy)
      for (std::int64_t c = 0; c < width; ++c) y.push_back(factor * x[head * width + c]);
  return y;
}

TEST_P(OracleEncoding, GroupsShareKeyHeads) {
  Setting grouped(GetParam().position), single(GetParam().position);
  single.model.kv_heads = 4;
  single.position.tape_scalars = false;  // a mean over heads needs a matrix
  for (auto& [name, x] : single.parameters) {
    x = grouped.parameters.at(name);
    if (ends(name, "k_proj.weight") || ends(name, "v_proj.weight") || ends(name, "_keys")) x = repeated(x, 4 * 8);
    if (ends(name, "alpha") && x.size() == 2) x = {x[0], 0, 0, x[1]};
    if (ends(name, "alpha")) x = repeated(repeated(x, 1, 0.5), 4);  // a group's mean is half the sum of its heads
    if (ends(name, "position.up")) x = repeated(x, 1, 0.5);
    if (ends(name, "position.down")) x = repeated(x, 3);
  }
  const OracleResult a = grouped.run(), b = single.run();
  expect_near(a.nll, b.nll, "nll");
  expect_near(a.input_gradient, b.input_gradient, "input");
}

INSTANTIATE_TEST_SUITE_P(All, OracleEncoding, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(Oracle, RefusesOtherParameters) {
  Setting setting(encoding({"rope"}));
  setting.parameters["model.layers.0.position.table"] = {1};
  EXPECT_THROW(setting.run(), std::invalid_argument);
  setting.parameters.erase("model.layers.0.position.table");
  setting.parameters["model.norm.weight"].pop_back();
  EXPECT_THROW(setting.run(), std::invalid_argument);
  setting.parameters.erase("model.norm.weight");
  EXPECT_THROW(setting.run(), std::invalid_argument);
}

}  // namespace
}  // namespace capstan::tests
