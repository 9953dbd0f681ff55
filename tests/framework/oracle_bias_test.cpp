// The oracle's biases, above all CoPE in all its forms, against a literal transcript of the formulas: in a model of one
// layer of which one row counts, the bias that the transcript gives to each key can stand in T5's table instead.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <functional>
#include <random>

#include "tests/support/oracle_model.h"

namespace capstan::tests {
namespace {

using Numbers = std::vector<double>;
constexpr std::int64_t C = 8, H = 4, G = 2, D = 4;

/// Random numbers in (-1, 1) for everything; scales of norms around 1.
OracleParameters random_parameters(const OracleModel& model, const OraclePosition& position) {
  std::mt19937_64 engine(9);
  OracleParameters parameters;
  for (const auto& [name, extents] : oracle_shapes(model, position)) {
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    for (std::int64_t n = 0; n < size; ++n)
      parameters[name].push_back(std::ldexp(double(engine() >> 11), -52) - (name.ends_with("norm.weight") ? 0 : 1));
  }
  return parameters;
}

/// Documents of 4 and 10 tokens; only the last row counts. The second document begins within a block of 3 or 5 tokens.
OracleSequence one_row() {
  OracleSequence s;
  for (int t = 0; t < 14; ++t) {
    s.tokens.push_back(t * 5 % 7);
    s.targets.push_back(t == 13 ? 2 : -1);
    s.position.push_back(t < 4 ? t : t - 4);
    s.document.push_back(t < 4 ? 0 : 1);
  }
  return s;
}

double sigma(double x) { return 1 / (1 + std::exp(-x)); }
double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

/// The formulas, word by word.
class Transcript {
 public:
  Transcript(const OraclePosition& position, const OracleParameters& parameters, const OracleSequence& sequence)
      : p_(position), parameters_(parameters), s_(sequence) {}

  double bias(std::int64_t i, std::int64_t j, std::int64_t h) const {
    double sum = 0;
    const std::int64_t d = s_.position[i] - s_.position[j];
    if (p_.has("relative")) sum += dot(query(i, h), rows("0.relative", std::min(d, p_.relative_distance), D));
    if (p_.has("forget"))
      for (std::int64_t l = j + 1; l <= i; ++l)
        sum += std::log(sigma(dot(rows("0.forget", h, C), normed(l)) + rows("0.forget_bias", h, 1)[0]));
    if (p_.has("fire")) sum += fire(d, s_.position[i], h);
    if (p_.has("cope") || p_.has("hierarchical_cope")) sum += cope(i, j, h);
    if (p_.has("hierarchical_cope")) sum += by_blocks(i, j, h);
    return sum;
  }

 private:
  std::int64_t block(std::int64_t t) const { return t / p_.block_size; }
  double lambda() const { return p_.cope_table_scaled ? 1 / std::sqrt(double(D)) : 1; }
  double floored(double gate) const { return p_.cope_gate_floor + (1 - p_.cope_gate_floor) * gate; }
  static double between(double p, const std::function<double(std::int64_t)>& z) {
    const double w = p - std::floor(p);
    return (1 - w) * z(std::int64_t(std::floor(p))) + w * z(std::int64_t(std::ceil(p)));
  }

  /// Row of a parameter: "table" is the model's, "0.table" the layer's encoding's, others the layer's.
  Numbers rows(const std::string& name, std::int64_t row, std::int64_t width) const {
    std::string full = "model.layers.0.self_attn." + name;
    if (name == "table") full = "model.position.table";
    if (name[0] == '0') full = "model.layers.0.position." + name.substr(2);
    const Numbers& x = parameters_.at(full);
    return Numbers(x.begin() + row * width, x.begin() + (row + 1) * width);
  }
  Numbers normed(std::int64_t t) const {
    const Numbers& e = parameters_.at("model.embed_tokens.weight");
    const Numbers& weight = parameters_.at("model.layers.0.input_layernorm.weight");
    Numbers x(e.begin() + s_.tokens[t] * C, e.begin() + (s_.tokens[t] + 1) * C);
    const double r = 1 / std::sqrt(dot(x, x) / C + 1e-5);
    for (std::int64_t c = 0; c < C; ++c) x[c] *= r * weight[c];
    return x;
  }
  /// Head `head` of W xn.
  Numbers head(const std::string& matrix, std::int64_t t, std::int64_t head_index) const {
    Numbers y;
    for (std::int64_t d = 0; d < D; ++d) y.push_back(dot(rows(matrix, head_index * D + d, C), normed(t)));
    return y;
  }
  Numbers query(std::int64_t t, std::int64_t h) const { return head("q_proj.weight", t, h); }
  Numbers rotated(Numbers x, std::int64_t t, int side) const {
    for (std::int64_t f = 0; f < D / 2; ++f) {
      const double position = double(s_.position[t]), zeta = (2. * double(f) / D + 0.4) / 1.4;
      const double size = p_.has("xpos") ? std::pow(zeta, side * (position - p_.centre) / p_.xpos_scale) : 1;
      const std::complex<double> turned = std::complex<double>(x[f], x[f + D / 2]) *
                                          std::polar(size, position * std::pow(p_.theta, -2. * double(f) / D));
      x[f] = turned.real();
      x[f + D / 2] = turned.imag();
    }
    return x;
  }
  double gate_logit(std::int64_t i, std::int64_t k, std::int64_t h) const {
    std::string matrix = p_.cope_gate == "keys" ? "k_proj.weight" : "v_proj.weight";
    if (p_.cope_gate == "separate") matrix = "0.gate_keys";
    Numbers q = query(i, h), key = head(matrix, k, h / (H / G));
    if (p_.cope_gate_rotated) q = rotated(q, i, 1), key = rotated(key, k, -1);
    return dot(q, key) / std::sqrt(double(D));
  }
  double fire(std::int64_t d, std::int64_t position, std::int64_t h) const {
    const Numbers scale = rows("0.fire_scale", 0, 2);
    const double c = std::abs(scale[0]), range = std::max(double(position), std::abs(scale[1]));
    const double x = std::log(1 + c * double(d)) / (std::log(1 + c * range) + 1e-6);
    double sum = rows("0.fire_out_bias", h, 1)[0];
    for (std::int64_t r = 0; r < p_.fire_width; ++r) {
      const double feature = rows("0.fire_in", r, 1)[0] * x + rows("0.fire_in_bias", r, 1)[0];
      sum += rows("0.fire_out", h, p_.fire_width)[r] * std::max(0., feature);
    }
    return sum;
  }
  double cope(std::int64_t i, std::int64_t j, std::int64_t h) const {
    double sum = 0;
    for (std::int64_t k = j; k <= i; ++k)
      if (p_.has("cope") || block(k) > block(i) - p_.block_window) sum += floored(sigma(gate_logit(i, k, h)));
    return between(std::min(sum, double(p_.cope_positions - 1)), [&](std::int64_t n) {
      if (p_.cope_table == "alibi") return -oracle_alibi_slopes(H)[h] * double(n);
      return lambda() * dot(query(i, h), rows(p_.cope_table_shared ? "table" : "0.table", n, D));
    });
  }
  double by_blocks(std::int64_t i, std::int64_t j, std::int64_t h) const {
    double sum = 0;
    for (std::int64_t b = block(j); b <= block(i) - p_.block_window; ++b) sum += block_gate(i, b, h);
    return between(std::min(sum, double(p_.block_positions - 1)),
                   [&](std::int64_t n) { return lambda() * dot(query(i, h), rows("0.block_table", n, D)); });
  }
  double block_gate(std::int64_t i, std::int64_t b, std::int64_t h) const {
    const std::int64_t last = (b + 1) * p_.block_size - 1;
    if (last > i || s_.document[last] != s_.document[i]) return 0;
    double logit = 0, members = 0;
    for (std::int64_t j = b * p_.block_size; j <= last; ++j) {
      if (s_.document[j] != s_.document[last]) continue;
      ++members;
      logit += p_.block_gate == "tokens"
                   ? dot(rows("0.block_gate", h, C), normed(j))
                   : dot(query(i, h), head("0.block_keys", j, h / (H / G))) / std::sqrt(double(D));
    }
    if (p_.block_gate == "tokens") return sigma(logit / members + rows("0.block_gate_bias", h, 1)[0]);
    return floored(sigma(logit / members));
  }

  const OraclePosition& p_;
  const OracleParameters& parameters_;
  const OracleSequence& s_;
};

/// Loss by the encoding, and by a table of the transcript's biases in its place. fire_length: |L|.
void expect_formula(const std::string& what, OraclePosition position, double fire_length = 4) {
  OracleModel model{1, C, 6, H, G, D, 7};
  position.theta = 30;
  position.t5_buckets = 40;
  position.t5_max_distance = 100;
  OraclePosition table = position;
  std::erase_if(table.parts, [](const std::string& part) { return part != "rope" && part != "xpos"; });
  table.parts.push_back("t5");
  OracleParameters parameters = random_parameters(model, position);
  if (position.has("fire")) parameters["model.layers.0.position.fire_scale"] = {-0.7, -fire_length};
  OracleParameters others = random_parameters(model, table);
  for (auto& [name, values] : others)
    if (parameters.count(name)) values = parameters.at(name);
  const OracleSequence sequence = one_row();
  const Transcript transcript(position, parameters, sequence);
  Numbers& buckets = others["model.position.buckets"];
  std::fill(buckets.begin(), buckets.end(), 0);
  for (std::int64_t j = 4; j < 14; ++j)
    for (std::int64_t h = 0; h < H; ++h) buckets[(13 - j) * H + h] = transcript.bias(13, j, h);
  const OracleResult a = oracle(model, position, parameters, {sequence}), b = oracle(model, table, others, {sequence});
  EXPECT_NEAR(a.loss, b.loss, 1e-13) << what;
  std::fill(buckets.begin(), buckets.end(), 0);
  EXPECT_GT(std::abs(a.loss - oracle(model, table, others, {sequence}).loss), 1e-5) << what << " hardly matters";
}

OraclePosition parts(const std::vector<std::string>& names) {
  OraclePosition p;
  p.parts = names;
  p.xpos_scale = 16;
  p.centre = 6.5;
  p.cope_positions = 4;
  p.block_positions = 3;
  return p;
}

TEST(OracleBias, SumsAndDistancesAreTheirFormulas) {
  OraclePosition p = parts({"rope"});
  p.relative_distance = 5;
  p.fire_width = 6;
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"relative"}, {"fire"}, {"forget"}, {"relative", "fire", "forget", "cope", "xpos"}}) {
    p.parts = names;
    for (double fire_length : {4., 60.}) expect_formula(names.back(), p, fire_length);  // below and above pos_i = 9
  }
}

TEST(OracleBias, CopeIsItsFormula) {
  for (const char* gate : {"keys", "separate", "values"})
    for (const char* table : {"learned", "alibi"})
      for (bool scaled : {false, true}) {
        OraclePosition p = parts({"rope", "cope"});
        p.cope_gate = gate;
        p.cope_table = table;
        p.cope_table_scaled = scaled;
        p.cope_table_shared = scaled;
        p.cope_gate_floor = scaled ? 0.25 : 0;
        expect_formula(std::string(gate) + " " + table + (scaled ? " scaled, shared, floor" : ""), p);
      }
}

TEST(OracleBias, GatesOfRotatedKeysAreTheirFormula) {
  for (const char* rotation : {"rope", "xpos"})
    for (const char* gate : {"keys", "separate"}) {
      OraclePosition p = parts({rotation, "cope"});
      p.cope_gate = gate;
      p.cope_gate_rotated = true;
      expect_formula(std::string(rotation) + " " + gate, p);
    }
}

TEST(OracleBias, BlocksAreTheirFormula) {
  for (const char* block_gate : {"keys", "tokens"})
    for (std::int64_t size : {1, 2, 3, 5})
      for (std::int64_t window : {0, 1, 2, 3}) {
        OraclePosition p = parts({"rope", "hierarchical_cope"});
        p.block_gate = block_gate;
        p.block_size = size;
        p.block_window = window;
        p.cope_gate_floor = size == 3 ? 0.125 : 0;
        p.cope_table_scaled = size == 2;
        p.cope_gate = size == 5 ? "values" : "keys";
        expect_formula(block_gate + std::string(" ") + std::to_string(size) + " " + std::to_string(window), p);
      }
}

}  // namespace
}  // namespace capstan::tests
