#include "tests/support/dense_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

namespace {

/// One query row of one head against all tokens. Entries that the row may not see stay 0.
template <class Real> class Row {
 public:
  std::vector<Real> u, gate, position, weight;
  Real lse = 0;

  Row(const DenseInputs& in, std::int64_t i, std::int64_t head)
      : in_(in), i_(i), heads_(in.q.dim(1)), groups_(in.k.dim(1)), depth_(in.q.dim(2)), head_(head),
        seen_(in.document.size()) {
    for (std::int64_t j = 0; j <= i; ++j) seen_[j] = in.document[j] == in.document[i];
    for (std::vector<Real>* x : {&u, &gate, &position, &weight}) x->assign(seen_.size(), 0);
    for (std::int64_t j = 0; j <= i; ++j)
      if (seen_[j]) u[j] = std::inner_product(q(), q() + depth(), key(in.k, j), Real(0)) / std::sqrt(Real(depth()));
    std::vector<Real> logit = u;
    if (in.table) add_bias(logit);
    Real highest = logit[i], sum = 0;
    for (std::int64_t j = 0; j <= i; ++j)
      if (seen_[j]) highest = std::max(highest, logit[j]);
    for (std::int64_t j = 0; j <= i; ++j) sum += weight[j] = seen_[j] ? std::exp(logit[j] - highest) : Real(0);
    for (Real& w : weight) w /= sum;
    lse = highest + std::log(sum);
  }

  bool sees(std::int64_t j) const { return seen_[j]; }
  std::int64_t depth() const { return depth_; }
  std::int64_t columns() const { return in_.z ? 2 * depth_ : depth_; }
  std::int64_t last() const { return in_.table.dim(2) - 1; }
  std::int64_t at() const { return i_ * heads_ + head_; }
  const Real* q() const { return in_.q.as<Real>() + at() * depth(); }
  const Real* table() const { return in_.table.as<Real>() + at() * (last() + 1); }
  /// Row of the head's group of a tensor [T, G, D].
  Real* key(const View& x, std::int64_t j) const {
    return x.as<Real>() + (j * groups_ + head_ * groups_ / heads_) * depth_;
  }
  Real value(std::int64_t j, std::int64_t e) const { return e < depth_ ? key(in_.v, j)[e] : key(in_.z, j)[e - depth_]; }

 private:
  void add_bias(std::vector<Real>& logit) {
    Real sum = 0;
    for (std::int64_t j = i_; j >= 0 && seen_[j]; --j) {  // a document is a run of tokens
      gate[j] = 1 / (1 + std::exp(-u[j]));
      sum += gate[j];
      position[j] = std::min(sum, Real(last()));
      const Real below = std::floor(position[j]), w = position[j] - below;
      logit[j] += (1 - w) * table()[std::int64_t(below)] + w * table()[std::int64_t(std::ceil(position[j]))];
    }
  }

  const DenseInputs& in_;
  std::int64_t i_, heads_, groups_, depth_, head_;
  std::vector<bool> seen_;
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
        for (std::int64_t e = 0; e < columns; ++e) o[e] += row.weight[j] * row.value(j, e);
    }
  return out;
}

/// d_logit_j of one row, given dO·o = delta; adds A dO to dv and dz.
template <class Real>
std::vector<Real> backward_of_values(const Row<Real>& row, std::int64_t i, const Real* d_o, Real delta,
                                     DenseGradients& out) {
  std::vector<Real> d_logit(i + 1);
  for (std::int64_t j = 0; j <= i; ++j) {
    if (!row.sees(j)) continue;
    Real product = 0;
    for (std::int64_t e = 0; e < row.columns(); ++e) {
      product += d_o[e] * row.value(j, e);
      const bool in_v = e < row.depth();
      row.key(in_v ? out.dv : out.dz, j)[in_v ? e : e - row.depth()] += row.weight[j] * d_o[e];
    }
    d_logit[j] = row.weight[j] * (product - delta);
  }
  return d_logit;
}

/// The table's gradient, and d_u = d_logit + σ'(u) Σ over the positions that the gate is a term of.
template <class Real>
std::vector<Real> backward_of_bias(const Row<Real>& row, const std::vector<Real>& d_logit, Real* d_table) {
  std::vector<Real> d_u = d_logit;
  Real d_gate = 0;  // p_ij contains g_ik for all k >= j
  for (std::size_t j = 0; j < d_u.size(); ++j) {
    if (!row.sees(std::int64_t(j))) continue;
    const Real p = row.position[j], below = std::floor(p), above = std::ceil(p);
    d_table[std::int64_t(below)] += (1 - (p - below)) * d_logit[j];
    d_table[std::int64_t(above)] += (p - below) * d_logit[j];
    d_gate += d_logit[j] * (row.table()[std::int64_t(above)] - row.table()[std::int64_t(below)]);
    d_u[j] += row.gate[j] * (1 - row.gate[j]) * d_gate;
  }
  return d_u;
}

template <class Real> DenseGradients backward(const DenseInputs& in, const View& d_o) {
  DenseGradients out{zeros_like(in.q), zeros_like(in.k), zeros_like(in.v), in.z ? zeros_like(in.z) : Tensor(),
                     in.table ? zeros_like(in.table) : Tensor()};
  const DenseOutputs result = forward<Real>(in);
  for (std::int64_t i = 0; i < in.q.dim(0); ++i)
    for (std::int64_t head = 0; head < in.q.dim(1); ++head) {
      const Row<Real> row(in, i, head);
      const Real* d_out = d_o.as<Real>() + row.at() * row.columns();
      const Real delta = std::inner_product(d_out, d_out + row.columns(),
                                            result.o.template as<Real>() + row.at() * row.columns(), Real(0));
      std::vector<Real> d_u = backward_of_values(row, i, d_out, delta, out);
      if (in.table) d_u = backward_of_bias(row, d_u, out.dtable.template as<Real>() + row.at() * (row.last() + 1));
      Real* dq = out.dq.template as<Real>() + row.at() * row.depth();
      for (std::int64_t j = 0; j <= i; ++j)
        for (std::int64_t e = 0; e < row.depth(); ++e) {
          const Real d = d_u[j] / std::sqrt(Real(row.depth()));
          dq[e] += d * row.key(in.k, j)[e];
          row.key(out.dk, j)[e] += d * row.q()[e];
        }
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

AttentionProblem random_attention(const AttentionShape& shape, std::uint64_t seed) {
  const auto make = [&](Shape extents, std::uint64_t stream) {
    return random_tensor(extents, DType::f64, Device::ref, 16 * seed + stream);
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
