#pragma once
// The naive implementation that the rule for errors compares bf16 attention with: attention with or without plain CoPE and TAPE's z,
// row by row in f32 from the formulas of attention_tile.h. Weights and gradients of scores are rounded to bf16 where they are
// multiplied with values, dO, k and q, and so is z.

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/dense_attention.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

class NaiveBf16 {
 public:
  DenseOutputs outputs;
  DenseGradients gradients;

  explicit NaiveBf16(const AttentionProblem& problem) : p_(problem.cast(kernels::DType::f32)) {
    using kernels::Tensor;
    tokens_ = p_.q.shape()[0];
    heads_ = p_.q.shape()[1];
    groups_ = p_.k.shape()[1];
    depth_ = p_.q.shape()[2];
    columns_ = p_.z ? 2 * depth_ : depth_;
    scale_ = float(1 / std::sqrt(double(depth_)));
    outputs.o = Tensor({tokens_, heads_, columns_}, kernels::DType::f32, kernels::Device::ref);
    outputs.lse = Tensor({tokens_, heads_}, kernels::DType::f32, kernels::Device::ref);
    gradients.dq = zeros_like(p_.q);
    gradients.dk = zeros_like(p_.k);
    gradients.dv = zeros_like(p_.v);
    if (p_.z) gradients.dz = zeros_like(p_.z);
    if (p_.table) gradients.dtable = zeros_like(p_.table);
    for (std::int64_t head = 0; head < heads_; ++head)
      for (std::int64_t row = 0; row < tokens_; ++row) attend(row, head);
  }

 private:
  static float bf16(float x) { return to_float(kernels::to_bfloat16(x)); }

  float* of_row(const kernels::Tensor& x, std::int64_t row, std::int64_t head) const {
    return x.as<float>() + (row * heads_ + head) * x.shape()[2];
  }
  float* of_key(const kernels::Tensor& x, std::int64_t key, std::int64_t head) const {
    return x.as<float>() + (key * groups_ + head / (heads_ / groups_)) * depth_;
  }
  float dot(const float* a, const float* b, std::int64_t n) const {
    float sum = 0;
    for (std::int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
  }
  void add(float* to, float factor, const float* x) const {
    for (std::int64_t d = 0; d < depth_; ++d) to[d] += factor * x[d];
  }
  /// Entry d of z as it enters products.
  std::vector<float> rounded_z(std::int64_t key, std::int64_t head) const {
    std::vector<float> z(of_key(p_.z, key, head), of_key(p_.z, key, head) + depth_);
    for (float& x : z) x = bf16(x);
    return z;
  }

  void attend(std::int64_t row, std::int64_t head) {
    std::int64_t first = row;
    while (first > 0 && p_.document[first - 1] == p_.document[row]) --first;
    const std::int64_t keys = row + 1 - first;
    const float* q = of_row(p_.q, row, head);
    std::vector<float> score(keys), logit(keys), gate(keys), place(keys, 0.0f);
    for (std::int64_t j = 0; j < keys; ++j)
      logit[j] = score[j] = scale_ * dot(q, of_key(p_.k, first + j, head), depth_);
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
      if (p_.z) add(o + depth_, bf16(weight), rounded_z(first + j, head).data());
    }
    for (std::int64_t e = 0; e < columns_; ++e) o[e] /= sum;
    outputs.lse.as<float>()[row * heads_ + head] = most + std::log(sum);
    back(row, head, first, logit, gate, place);
  }

  void back(std::int64_t row, std::int64_t head, std::int64_t first, const std::vector<float>& logit,
            const std::vector<float>& gate, const std::vector<float>& place) {
    const float *q = of_row(p_.q, row, head), *d_o = of_row(p_.d_o, row, head),
                lse = outputs.lse.as<float>()[row * heads_ + head],
                delta = dot(d_o, of_row(outputs.o, row, head), columns_);
    float gate_grad = 0;
    for (std::size_t j = 0; j < logit.size(); ++j) {
      const std::int64_t key = first + std::int64_t(j);
      const float weight = std::exp(logit[j] - lse);
      add(of_key(gradients.dv, key, head), bf16(weight), d_o);
      float product = dot(d_o, of_key(p_.v, key, head), depth_);
      if (p_.z) {
        add(of_key(gradients.dz, key, head), bf16(weight), d_o + depth_);
        product += dot(d_o + depth_, rounded_z(key, head).data(), depth_);
      }
      float d_score = weight * (product - delta);
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
  std::int64_t tokens_, heads_, groups_, depth_, columns_;
  float scale_;
};

}  // namespace capstan::tests
