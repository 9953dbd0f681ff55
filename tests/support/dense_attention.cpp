#include "tests/support/dense_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/dropout.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::gated_sums;
using kernels::GateRule;
using kernels::Gates;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

std::vector<std::pair<const char*, const Tensor*>> TermTensors::all() const {
  return {{"table_1", &table_1},
          {"gate_q_0", &gate_q[0]},
          {"gate_q_1", &gate_q[1]},
          {"gate_k_0", &gate_k[0]},
          {"gate_k_1", &gate_k[1]},
          {"row_offset", &row_offset},
          {"key_offset", &key_offset},
          {"offset_table", &offset_table},
          {"relative", &relative},
          {"slope", &slope},
          {"distance_table", &distance_table},
          {"fire_in", &fire_in},
          {"fire_in_bias", &fire_in_bias},
          {"fire_out", &fire_out},
          {"fire_out_bias", &fire_out_bias},
          {"fire_scale", &fire_scale}};
}

namespace {

/// interp(table, x), and what its derivatives need.
template <class Real> struct Place {
  std::int64_t below, above;
  Real w;
  explicit Place(Real x)
      : below(std::int64_t(std::floor(x))), above(std::int64_t(std::ceil(x))), w(x - std::floor(x)) {}
  Real value(const Real* table) const { return (1 - w) * table[below] + w * table[above]; }
  Real slope(const Real* table) const { return table[above] - table[below]; }
  void add_to(Real* d_table, Real d) const {
    d_table[below] += (1 - w) * d;
    d_table[above] += w * d;
  }
};

/// One query row of one head against all tokens. Entries that the row may not see stay 0.
template <class Real> class Row {
 public:
  std::vector<Real> logit, weight, kept;                           ///< kept: m_ij
  std::array<std::vector<Real>, gated_sums> sigma, sum, position;  ///< σ(u) where there is a gate; p_ij; min(P, p_ij)
  Real lse = 0;

  Row(const DenseInputs& in, std::int64_t i, std::int64_t head)
      : in_(in), i_(i), heads_(in.q.dim(1)), groups_(in.k.dim(1)), depth_(in.q.dim(2)), head_(head) {
    for (std::vector<Real>* x : {&logit, &weight, &kept}) x->assign(std::size_t(i + 1), 0);
    for (std::int64_t j = 0; j <= i; ++j)
      if (sees(j)) logit[j] = dot(in.q, in.k, j);
    for (int w = 0; w < gated_sums; ++w)
      if (in.gates[w].gates != Gates::none) add_gated(w);
    for (std::int64_t j = 0; j <= i; ++j) {
      if (!sees(j)) continue;
      logit[j] += offset_bias(j) + distance_bias(j) + fire_bias(j);
      kept[j] = keep(j);
    }
    Real highest = logit[i], total = 0;
    for (std::int64_t j = 0; j <= i; ++j)
      if (sees(j)) highest = std::max(highest, logit[j]);
    for (std::int64_t j = 0; j <= i; ++j) total += weight[j] = sees(j) ? std::exp(logit[j] - highest) : Real(0);
    for (Real& w : weight) w /= total;
    lse = highest + std::log(total);
  }

  bool sees(std::int64_t j) const { return in_.document[j] == in_.document[i_]; }
  std::int64_t depth() const { return depth_; }
  std::int64_t columns() const { return in_.z ? 2 * depth_ : depth_; }
  std::int64_t at() const { return i_ * heads_ + head_; }
  std::int64_t key_at(std::int64_t j) const { return j * heads_ + head_; }
  /// Row i of a tensor [T, H, N].
  Real* row(const View& x) const { return x.as<Real>() + at() * x.dim(2); }
  /// Row j of the head's group of a tensor [.., G, D].
  Real* key(const View& x, std::int64_t j) const {
    return x.as<Real>() + (j * groups_ + head_ * groups_ / heads_) * depth_;
  }
  Real value(std::int64_t j, std::int64_t e) const { return e < depth_ ? key(in_.v, j)[e] : key(in_.z, j)[e - depth_]; }

  const View& table(int w) const { return w == 0 ? in_.table : in_.terms.table_1.view(); }
  const View& gate_q(int w) const { return in_.terms.gate_q[w] ? in_.terms.gate_q[w].view() : in_.q; }
  const View& gate_k(int w) const { return in_.terms.gate_k[w] ? in_.terms.gate_k[w].view() : in_.k; }
  bool has_gate(int w, std::int64_t j) const {
    const GateRule& rule = in_.gates[w];
    if (!sees(j)) return false;
    if (rule.gates == Gates::tokens) return rule.window == 0 || j / rule.block > i_ / rule.block - rule.window;
    return (j + 1) % rule.block == 0 && j / rule.block <= i_ / rule.block - rule.window;
  }
  /// Row of gate_k for the gate at token j.
  std::int64_t gate_row(int w, std::int64_t j) const {
    return in_.gates[w].gates == Gates::block_ends ? j / in_.gates[w].block : j;
  }

  bool has_offset() const { return bool(in_.terms.row_offset); }
  Real offset(std::int64_t j) const {
    return in_.terms.row_offset.template as<Real>()[at()] - in_.terms.key_offset.template as<Real>()[key_at(j)];
  }
  Place<Real> offset_place(std::int64_t j) const {
    return Place<Real>(std::clamp(offset(j), Real(0), Real(in_.terms.offset_table.shape()[2] - 1)));
  }
  std::int64_t distance(std::int64_t j) const { return in_.position[i_] - in_.position[j]; }
  /// Entry of a table of n that a distance falls on.
  std::int64_t entry(std::int64_t j, std::int64_t n) const { return std::min(distance(j), n - 1); }
  std::int64_t head() const { return head_; }

  Real curvature() const { return std::abs(in_.terms.fire_scale.template as<Real>()[0]); }
  Real reach() const { return std::max(Real(in_.position[i_]), std::abs(in_.terms.fire_scale.template as<Real>()[1])); }
  Real fire_bottom() const { return std::log(1 + curvature() * reach()) + Real(1e-6); }
  Real fire_x(std::int64_t j) const { return std::log(1 + curvature() * Real(distance(j))) / fire_bottom(); }
  Real fire_hidden(std::int64_t r, std::int64_t j) const {
    return in_.terms.fire_in.template as<Real>()[r] * fire_x(j) + in_.terms.fire_in_bias.template as<Real>()[r];
  }

  double distance_to_kinks() const {
    double closest = 1;
    const auto look = [&](Real x) { closest = std::min(closest, double(std::abs(x))); };
    for (std::int64_t j = 0; j <= i_; ++j) {
      if (!sees(j)) continue;
      for (int w = 0; w < gated_sums; ++w)
        if (in_.gates[w].gates != Gates::none && sum[w][j] > 0 && sum[w][j] < Real(table(w).dim(2)))
          look(sum[w][j] - std::round(sum[w][j]));
      if (in_.terms.offset_table) look(offset(j) - std::round(offset(j)));
      for (std::int64_t r = 0; in_.terms.fire_in && r < in_.terms.fire_in.shape()[0]; ++r) look(fire_hidden(r, j));
    }
    return closest;
  }

 private:
  Real dot(const View& a, const View& b, std::int64_t j) const {
    return std::inner_product(row(a), row(a) + depth_, key(b, j), Real(0)) / std::sqrt(Real(depth_));
  }

  void add_gated(int w) {
    sigma[w].assign(logit.size(), 0);
    position[w].assign(logit.size(), 0);
    sum[w].assign(logit.size(), 0);
    const Real floor = Real(in_.gates[w].floor);
    Real so_far = 0;
    for (std::int64_t j = i_; j >= 0 && sees(j); --j) {  // a document is a run of tokens
      if (has_gate(w, j)) {
        sigma[w][j] = 1 / (1 + std::exp(-dot(gate_q(w), gate_k(w), gate_row(w, j))));
        so_far += floor + (1 - floor) * sigma[w][j];
      }
      sum[w][j] = so_far;
      position[w][j] = std::min(so_far, Real(table(w).dim(2) - 1));
      logit[j] += Place<Real>(position[w][j]).value(row(table(w)));
    }
  }

  Real offset_bias(std::int64_t j) const {
    if (!has_offset()) return 0;
    return in_.terms.offset_table ? offset_place(j).value(row(in_.terms.offset_table)) : offset(j);
  }

  Real distance_bias(std::int64_t j) const {
    const TermTensors& t = in_.terms;
    Real bias = 0;
    if (t.relative) bias += row(t.relative)[entry(j, t.relative.shape()[2])];
    if (t.slope) bias += t.slope.template as<Real>()[head_] * Real(distance(j));
    if (t.distance_table) {
      const std::int64_t n = t.distance_table.shape()[1];
      bias += t.distance_table.template as<Real>()[head_ * n + entry(j, n)];
    }
    return bias;
  }

  Real fire_bias(std::int64_t j) const {
    const TermTensors& t = in_.terms;
    if (!t.fire_in) return 0;
    const std::int64_t width = t.fire_in.shape()[0];
    Real bias = t.fire_out_bias.template as<Real>()[head_];
    for (std::int64_t r = 0; r < width; ++r)
      bias += t.fire_out.template as<Real>()[head_ * width + r] * std::max(Real(0), fire_hidden(r, j));
    return bias;
  }

  Real keep(std::int64_t j) const {
    const kernels::WeightDropout& d = in_.dropout;
    const std::uint32_t masks = kernels::dropout_row(d.seed, std::uint64_t(d.first_head + head_), std::uint64_t(i_));
    if (kernels::is_dropped(masks, std::uint32_t(j), kernels::dropout_threshold(d.rate))) return 0;
    return Real(1 / (1 - d.rate));
  }

  const DenseInputs& in_;
  std::int64_t i_, heads_, groups_, depth_, head_;
};

template <class Real> DenseOutputs forward(const DenseInputs& in) {
  const std::int64_t tokens = in.q.dim(0), heads = in.q.dim(1), columns = in.q.dim(2) * (in.z ? 2 : 1);
  DenseOutputs out{Tensor({tokens, heads, columns}, in.q.type(), Device::ref),
                   Tensor({tokens, heads}, in.q.type(), Device::ref)};
  for (std::int64_t i = 0; i < tokens; ++i)
    for (std::int64_t head = 0; head < heads; ++head) {
      const Row<Real> row(in, i, head);
      out.lse.template as<Real>()[row.at()] = row.lse;
      Real* o = out.o.template as<Real>() + row.at() * columns;
      for (std::int64_t j = 0; j <= i; ++j)
        for (std::int64_t e = 0; e < columns; ++e) o[e] += row.weight[j] * row.kept[j] * row.value(j, e);
    }
  return out;
}

/// d_logit_j of one row, given dO·o = delta; adds m A dO to dv and dz.
template <class Real>
std::vector<Real> backward_of_values(const Row<Real>& row, std::int64_t i, const Real* d_o, Real delta,
                                     DenseGradients& out) {
  std::vector<Real> d_logit(std::size_t(i + 1));
  for (std::int64_t j = 0; j <= i; ++j) {
    if (!row.sees(j)) continue;
    Real product = 0;
    for (std::int64_t e = 0; e < row.columns(); ++e) {
      product += d_o[e] * row.value(j, e);
      const bool in_v = e < row.depth();
      row.key(in_v ? out.dv : out.dz, j)[in_v ? e : e - row.depth()] += row.weight[j] * row.kept[j] * d_o[e];
    }
    d_logit[j] = row.weight[j] * (row.kept[j] * product - delta);
  }
  return d_logit;
}

/// Of u = a_i·b_j / √D.
template <class Real>
void backward_of_dot(const Row<Real>& row, const View& d_a, const View& d_b, const View& a, const View& b,
                     std::int64_t j, Real d_u) {
  const Real d = d_u / std::sqrt(Real(row.depth()));
  for (std::int64_t e = 0; e < row.depth(); ++e) {
    row.row(d_a)[e] += d * row.key(b, j)[e];
    row.key(d_b, j)[e] += d * row.row(a)[e];
  }
}

/// The table's gradient, and d_u = (1 - e) σ'(u) Σ over the positions that the gate is a term of.
template <class Real>
void backward_of_gated(const Row<Real>& row, const DenseInputs& in, int w, const std::vector<Real>& d_logit,
                       DenseGradients& out) {
  const View &d_table = w == 0 ? out.dtable.view() : out.terms.table_1.view(),
             &dq = in.terms.gate_q[w] ? out.terms.gate_q[w].view() : out.dq.view(),
             &dk = in.terms.gate_k[w] ? out.terms.gate_k[w].view() : out.dk.view();
  const Real* table = row.row(row.table(w));
  Real d_gate = 0;  // p_ij contains g_ik for all k >= j
  for (std::int64_t j = 0; j < std::ssize(d_logit); ++j) {
    if (!row.sees(j)) continue;
    const Place<Real> place(row.position[w][j]);
    place.add_to(row.row(d_table), d_logit[j]);
    d_gate += d_logit[j] * place.slope(table);
    if (!row.has_gate(w, j)) continue;
    const Real sigma = row.sigma[w][j], rise = 1 - Real(in.gates[w].floor);
    backward_of_dot(row, dq, dk, row.gate_q(w), row.gate_k(w), row.gate_row(w, j), rise * sigma * (1 - sigma) * d_gate);
  }
}

template <class Real>
void backward_of_offset(const Row<Real>& row, const DenseInputs& in, std::int64_t j, Real d, TermTensors& out) {
  if (in.terms.offset_table) {
    const Place<Real> place = row.offset_place(j);
    place.add_to(row.row(out.offset_table), d);
    d *= place.slope(row.row(in.terms.offset_table));
  }
  out.row_offset.template as<Real>()[row.at()] += d;
  out.key_offset.template as<Real>()[row.key_at(j)] -= d;
}

template <class Real>
void backward_of_fire(const Row<Real>& row, const DenseInputs& in, std::int64_t j, Real d, TermTensors& out) {
  const auto at = [&](const Tensor& x, std::int64_t n) -> Real& { return x.template as<Real>()[n]; };
  const TermTensors& t = in.terms;
  const std::int64_t width = t.fire_in.shape()[0], first = row.head() * width;
  const Real x = row.fire_x(j);
  Real dx = 0;
  at(out.fire_out_bias, row.head()) += d;
  for (std::int64_t r = 0; r < width; ++r) {
    const Real hidden = row.fire_hidden(r, j);
    if (hidden <= 0) continue;
    at(out.fire_out, first + r) += d * hidden;
    at(out.fire_in, r) += d * at(t.fire_out, first + r) * x;
    at(out.fire_in_bias, r) += d * at(t.fire_out, first + r);
    dx += d * at(t.fire_out, first + r) * at(t.fire_in, r);
  }
  // x = A / B
  const Real c = at(t.fire_scale, 0), length = at(t.fire_scale, 1), a = std::abs(c), m = row.reach(),
             bottom = row.fire_bottom(), distance = Real(row.distance(j));
  const Real by_c = distance / (1 + a * distance) / bottom - x / bottom * m / (1 + a * m);
  at(out.fire_scale, 0) += dx * by_c * (c < 0 ? -1 : 1);
  if (m > Real(in.position[row.at() / in.q.dim(1)]))
    at(out.fire_scale, 1) += -dx * x / bottom * a / (1 + a * m) * (length < 0 ? -1 : 1);
}

/// Terms that need no order.
template <class Real>
void backward_of_pairs(const Row<Real>& row, const DenseInputs& in, const std::vector<Real>& d_logit,
                       TermTensors& out) {
  for (std::int64_t j = 0; j < std::ssize(d_logit); ++j) {
    if (!row.sees(j)) continue;
    const Real d = d_logit[j];
    if (row.has_offset()) backward_of_offset(row, in, j, d, out);
    if (out.relative) row.row(out.relative)[row.entry(j, out.relative.shape()[2])] += d;
    if (out.distance_table) {
      const std::int64_t n = out.distance_table.shape()[1];
      out.distance_table.template as<Real>()[row.head() * n + row.entry(j, n)] += d;
    }
    if (in.terms.fire_in) backward_of_fire(row, in, j, d, out);
  }
}

template <class Real> DenseGradients backward(const DenseInputs& in, const View& d_o) {
  DenseGradients out{zeros_like(in.q),
                     zeros_like(in.k),
                     zeros_like(in.v),
                     in.z ? zeros_like(in.z) : Tensor(),
                     in.table ? zeros_like(in.table) : Tensor(),
                     in.terms.map([](const Tensor& x) { return zeros_like(x); })};
  out.terms.slope = Tensor();
  for (std::int64_t i = 0; i < in.q.dim(0); ++i)
    for (std::int64_t head = 0; head < in.q.dim(1); ++head) {
      const Row<Real> row(in, i, head);
      const Real* d_out = d_o.as<Real>() + row.at() * row.columns();
      Real delta = 0;
      for (std::int64_t j = 0; j <= i; ++j)
        for (std::int64_t e = 0; e < row.columns(); ++e)
          delta += row.weight[j] * row.kept[j] * row.value(j, e) * d_out[e];
      const std::vector<Real> d_logit = backward_of_values(row, i, d_out, delta, out);
      for (int w = 0; w < gated_sums; ++w)
        if (in.gates[w].gates != Gates::none) backward_of_gated(row, in, w, d_logit, out);
      backward_of_pairs(row, in, d_logit, out.terms);
      for (std::int64_t j = 0; j <= i; ++j)
        if (row.sees(j)) backward_of_dot(row, out.dq, out.dk, in.q, in.k, j, d_logit[j]);
    }
  return out;
}

}  // namespace

DenseOutputs dense_attention(const DenseInputs& in) {
  return in.q.type() == DType::f64 ? forward<double>(in) : forward<float>(in);
}

DenseGradients dense_attention_backward(const DenseInputs& in, const View& d_o) {
  return in.q.type() == DType::f64 ? backward<double>(in, d_o) : backward<float>(in, d_o);
}

double distance_to_kinks(const DenseInputs& in) {
  double closest = 1;
  for (std::int64_t i = 0; i < in.q.dim(0); ++i)
    for (std::int64_t head = 0; head < in.q.dim(1); ++head)
      closest = std::min(closest, Row<double>(in, i, head).distance_to_kinks());
  return closest;
}

AttentionProblem AttentionProblem::cast(DType type) const {
  const auto to = [&](const Tensor& x) { return x ? converted(x, type, Device::ref) : Tensor(); };
  return {to(q), to(k), to(v), to(z), to(table), to(d_o), document, terms.map(to), gates, position, dropout};
}

// ---- random problems ------------------------------------------------------------------------------------------------

namespace {

using Make = std::function<Tensor(Shape, std::uint64_t)>;

/// Row and key offsets that rise by up to 0.6 per token (with a table: per 4 tokens, as for blocks), or fall as
/// forgetting does. Multiples of 2^-16, so that differences are exact in every type.
void add_offsets(TermTensors& t, const AttentionShape& shape, const Make& make) {
  t.row_offset = make({shape.tokens, shape.heads}, 20);
  t.key_offset = zeros_like(t.row_offset);
  double *row = t.row_offset.as<double>(), *key = t.key_offset.as<double>();
  const auto rounded = [](double x) { return std::round(x * 0x1p16) * 0x1p-16; };
  const std::int64_t every = shape.offset_npos > 0 ? 4 : 1;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    double sum = 0;
    for (std::int64_t t_at = 0; t_at < shape.tokens; ++t_at) {
      const std::int64_t at = t_at * shape.heads + head;
      const double step = rounded(0.3 * std::min(2.0, std::abs(row[at])));
      if (t_at % every == 0) sum += shape.offset_npos > 0 ? step : -step;
      row[at] = sum;
      key[at] = sum;
    }
  }
  if (shape.offset_npos > 0) t.offset_table = make({shape.tokens, shape.heads, shape.offset_npos}, 21);
}

TermTensors random_terms(const AttentionShape& shape, const std::array<GateRule, gated_sums>& gates, const Make& make) {
  const std::int64_t T = shape.tokens, H = shape.heads, G = shape.groups, D = shape.depth;
  TermTensors t;
  if (shape.npos_1 > 0) t.table_1 = make({T, H, shape.npos_1}, 6);
  for (int w = 0; w < gated_sums; ++w) {
    const bool ends = gates[w].gates == Gates::block_ends;
    if (shape.gate_q[w]) t.gate_q[w] = make({T, H, D}, std::uint64_t(7 + w));
    if (shape.gate_k[w] || ends)
      t.gate_k[w] = make({ends ? (T + gates[w].block - 1) / gates[w].block : T, G, D}, std::uint64_t(9 + w));
  }
  if (shape.offset) add_offsets(t, shape, make);
  if (shape.relative > 0) t.relative = make({T, H, shape.relative}, 11);
  if (shape.slope) t.slope = make({H}, 12);
  if (shape.slope)
    for (std::int64_t h = 0; h < H; ++h) t.slope.as<double>()[h] = -0.05 * double(h + 1);
  if (shape.distances > 0) t.distance_table = make({H, shape.distances}, 13);
  if (shape.fire == 0) return t;
  t.fire_in = make({shape.fire}, 14);
  t.fire_in_bias = make({shape.fire}, 15);
  t.fire_out = make({H, shape.fire}, 16);
  t.fire_out_bias = make({H}, 17);
  t.fire_scale = make({2}, 18);
  t.fire_scale.as<double>()[0] = -0.375;  // |c| counts
  t.fire_scale.as<double>()[1] = 10.5;
  return t;
}

/// Within the document; far: in jumps of up to 2^36, all below 2^43.
std::vector<std::int64_t> positions_of(const std::vector<std::int64_t>& document, bool far) {
  std::vector<std::int64_t> position(document.size(), 0);
  for (std::size_t t = 1; t < document.size(); ++t) {
    const bool small = t % 3 != 0;
    const std::int64_t jump = far ? std::int64_t(random_bits(5, t) >> (small ? 62 : 28)) + 1 : 1;
    position[t] = document[t] == document[t - 1] ? position[t - 1] + jump : 0;
  }
  return position;
}

}  // namespace

AttentionProblem random_attention(const AttentionShape& shape, std::uint64_t seed) {
  const Make make = [&](Shape extents, std::uint64_t stream) {
    return random_tensor(extents, DType::f64, Device::ref, 16 * seed + stream + (stream >= 6 ? 1u << 20 : 0));
  };
  const std::int64_t columns = shape.depth * (shape.z ? 2 : 1);
  AttentionProblem p;
  p.q = make({shape.tokens, shape.heads, shape.depth}, 0);
  p.k = make({shape.tokens, shape.groups, shape.depth}, 1);
  p.v = make({shape.tokens, shape.groups, shape.depth}, 2);
  if (shape.z) p.z = make({shape.tokens, shape.groups, shape.depth}, 3);
  if (shape.npos > 0) p.table = make({shape.tokens, shape.heads, shape.npos}, 4);
  p.d_o = make({shape.tokens, shape.heads, columns}, 5);
  if (shape.gate_mean != 0) {  // column 0 of q·k becomes the mean
    double *q = p.q.as<double>(), *k = p.k.as<double>();
    for (std::int64_t at = 0; at < p.q.view().elements(); at += shape.depth)
      q[at] = float(shape.gate_mean * std::sqrt(double(shape.depth)));
    for (std::int64_t at = 0; at < p.k.view().elements(); at += shape.depth) k[at] = 1;
  }
  std::int64_t number = 0;
  for (std::int64_t length : shape.documents) p.document.insert(p.document.end(), std::size_t(length), number++);
  p.document.resize(std::size_t(shape.tokens), number);
  p.gates = shape.gates;
  if (shape.npos > 0 && p.gates[0].gates == Gates::none) p.gates[0].gates = Gates::tokens;
  p.terms = random_terms(shape, p.gates, make);
  p.position = positions_of(p.document, shape.far_positions);
  p.dropout = {shape.dropout, seed, 3};
  return p;
}

Tensor index_rows(std::int64_t begin, std::int64_t end, Device device) {
  Tensor index({end - begin}, DType::i64, device);
  std::iota(index.as<std::int64_t>(), index.as<std::int64_t>() + (end - begin), begin);
  return index;
}

Tensor document_rows(const std::vector<std::int64_t>& document, std::int64_t begin, std::int64_t end, Device device) {
  Tensor rows({end - begin}, DType::i64, device);
  std::copy(document.begin() + begin, document.begin() + end, rows.as<std::int64_t>());
  return rows;
}

}  // namespace capstan::tests
