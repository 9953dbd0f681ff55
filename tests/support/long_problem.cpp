#include "tests/support/long_problem.h"

#include <algorithm>

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::Tensor;

namespace {

constexpr std::int64_t depth = LongProblem::depth, positions = LongProblem::positions, block = LongProblem::block;

enum Stream : std::uint64_t { stream_q = 1, stream_k, stream_v, stream_d_o, stream_token, stream_block, stream_table };

void random_row(float* out, std::uint64_t stream, std::int64_t row, double scale = 1) {
  for (std::int64_t d = 0; d < depth; ++d) out[d] = float(scale * normal(stream, std::uint64_t(row * depth + d)));
}

/// A block's own part and less of every token, so that pooled keys differ as much as the others.
void gate_key_row(float* out, std::int64_t t) {
  float token[depth];
  random_row(out, stream_block, t / block);
  random_row(token, stream_token, t, 0.5);
  for (std::int64_t d = 0; d < depth; ++d) out[d] += token[d];
}

/// [P + 1, D]
std::vector<float> table_keys(int which) {
  std::vector<float> e(positions * depth);
  for (std::int64_t n = 0; n < positions; ++n)
    random_row(&e[n * depth], stream_table + std::uint64_t(which), n, 1 / std::sqrt(double(depth)));
  return e;
}

void pool(LongKeys& keys, std::int64_t tokens) {
  const std::int64_t blocks = (tokens + block - 1) / block;
  keys.pooled.resize(blocks * depth);
  keys.pooled_naively.resize(blocks * depth);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t begin = b * block, end = std::min(tokens, begin + block);
    double* exact = &keys.pooled[b * depth];
    float *naive = &keys.pooled_naively[b * depth], row[depth];
    for (std::int64_t t = begin; t < end; ++t) {
      gate_key_row(row, t);
      for (std::int64_t d = 0; d < depth; ++d) {
        exact[d] += row[d];
        naive[d] += row[d];
      }
    }
    for (std::int64_t d = 0; d < depth; ++d) {
      exact[d] /= double(end - begin);
      naive[d] /= float(end - begin);
    }
  }
}

}  // namespace

std::string name_of(LongEncoding encoding) { return encoding == LongEncoding::cope ? "cope" : "hierarchical_cope"; }

kernels::AttentionSettings LongProblem::settings() const {
  kernels::AttentionSettings settings;
  settings.gates[0].gates = Gates::tokens;
  if (encoding == LongEncoding::cope) return settings;
  settings.gates[0] = {Gates::tokens, 0, block, 1};
  settings.gates[1] = {Gates::block_ends, 0, block, 1};
  return settings;
}

LongKeys::LongKeys(const LongProblem& problem) : k(problem.tokens * depth), v(problem.tokens * depth) {
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    random_row(&k[t * depth], stream_k, t);
    random_row(&v[t * depth], stream_v, t);
  }
  if (problem.sums() > 1) pool(*this, problem.tokens);
}

LongShard::LongShard(const LongProblem& problem, const std::vector<std::int64_t>& own) {
  const std::int64_t local = std::ssize(own);
  for (Tensor* x : {&q, &k, &v, &d_o}) *x = Tensor({1, local, 1, depth}, DType::f32, Device::cpu);
  if (problem.sums() > 1) gate_k = Tensor({1, local, 1, depth}, DType::f32, Device::cpu);
  for (Tensor* x : {&index, &document}) *x = Tensor({1, local}, DType::i64, Device::cpu);
  std::copy(own.begin(), own.end(), index.as<std::int64_t>());
  for (int which = 0; which < problem.sums(); ++which)
    table[which] = Tensor({1, local, 1, positions}, DType::f32, Device::cpu);
  const std::vector<float> e[] = {table_keys(0), table_keys(1)};
  const LongKeys keys(problem);
  for (std::int64_t t = 0; t < local; ++t) {
    const std::int64_t i = own[std::size_t(t)];
    float* q_row = q.as<float>() + t * depth;
    random_row(q_row, stream_q, i);
    std::copy_n(&keys.k[i * depth], depth, k.as<float>() + t * depth);
    std::copy_n(&keys.v[i * depth], depth, v.as<float>() + t * depth);
    if (gate_k) gate_key_row(gate_k.as<float>() + t * depth, i);
    for (int which = 0; which < problem.sums(); ++which)
      for (std::int64_t n = 0; n < positions; ++n)
        table[which].as<float>()[t * positions + n] = float(long_dot<double>(q_row, &e[which][n * depth]));
    if (!LongRow<double>(problem, keys, i, q_row).near_kink()) random_row(d_o.as<float>() + t * depth, stream_d_o, i);
  }
}

parallel::RingInputs LongShard::inputs() const {
  parallel::RingInputs in;
  in.q = q;
  in.k = k;
  in.v = v;
  in.rows = {index, index, document};
  for (int which = 0; which < 2; ++which)
    if (table[which]) in.terms.table[which] = table[which];
  if (gate_k) in.terms.gate_k[1] = gate_k;
  return in;
}

}  // namespace capstan::tests
