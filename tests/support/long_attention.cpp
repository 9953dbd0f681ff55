#include "tests/support/long_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>

#include "framework/metrics_log.h"
#include "kernels/memory.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::AttentionStats;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;
using parallel::Communicator;
using parallel::Reduce;

namespace {

constexpr std::int64_t depth = LongProblem::depth, positions = LongProblem::positions, block = LongProblem::block;
constexpr std::int64_t sampled_rows = 256, sampled_columns = 64;

// ---- oracles --------------------------------------------------------------------------------------------------------

/// All results of one row, in this order in `values`: o, lse, dq, d_table 0, d_table 1.
constexpr std::int64_t row_width = 2 * depth + 1 + 2 * positions;

template <class Real> Real softmax_of(const LongRow<Real>& row, std::vector<Real>& weight) {
  weight.resize(std::size_t(row.i + 1));
  Real highest = -std::numeric_limits<Real>::infinity(), total = 0;
  for (std::int64_t j = 0; j <= row.i; ++j) highest = std::max(highest, weight[j] = row.logit(j));
  for (Real& w : weight) total += w = std::exp(w - highest);
  for (Real& w : weight) w /= total;
  return highest + std::log(total);
}

/// d of the gate's logit: σ' times the sum over all positions that the gate is a term of.
template <class Real, class K> void add_gate_gradient(Real* dq, Real gate, Real x, const K* key) {
  const Real du = gate * (1 - gate) * x * LongRow<Real>::scale();
  for (std::int64_t d = 0; d < depth; ++d) dq[d] += du * Real(key[d]);
}

/// values [row_width] overwrites.
template <class Real> void row_results(double* values, const LongRow<Real>& row, const float* d_o) {
  std::array<Real, row_width> out = {};
  Real *o = out.data(), &lse = out[depth], *dq = &out[depth + 1], x[2] = {};
  Real* d_table[] = {&out[2 * depth + 1], &out[2 * depth + 1 + positions]};
  std::vector<Real> weight;
  lse = softmax_of(row, weight);
  for (std::int64_t j = 0; j <= row.i; ++j)
    for (std::int64_t d = 0; d < depth; ++d) o[d] += weight[j] * Real(row.value(j)[d]);
  const Real delta = long_dot<Real>(d_o, o);
  for (std::int64_t j = 0; j <= row.i; ++j) {  // far → near
    const Real dl = weight[j] * (long_dot<Real>(d_o, row.value(j)) - delta);
    for (std::int64_t d = 0; d < depth; ++d) dq[d] += dl * LongRow<Real>::scale() * Real(row.key(j)[d]);
    for (int which = 0; which < row.sums(); ++which) {
      const LongPlace<Real> place(row.position(which, j));
      place.add_to(d_table[which], dl);
      x[which] += dl * place.slope(row.table[which]);
      const std::int64_t n = row.entry(which, j);
      if (!row.has_gate(which, n) || (which == 1 && (j + 1) % block != 0)) continue;
      if (which == 0) add_gate_gradient(dq, row.gate[0][n], x[0], row.key(j));
      else add_gate_gradient(dq, row.gate[1][n], x[1], row.block_key(j / block));
    }
  }
  std::copy(out.begin(), out.end(), values);
}

/// What all rows give to some keys, and to the pooled gate keys of some blocks.
template <class Real> class Columns {
 public:
  Columns(const std::vector<std::int64_t>& columns, const std::vector<std::int64_t>& blocks)
      : columns_(columns), blocks_(blocks), dk_(columns.size() * depth), dv_(dk_.size()),
        pooled_(blocks.size() * depth) {}

  void add(const LongRow<Real>& row, const float* d_o, Real lse, Real delta) {
    const Pairs pairs{row, d_o, lse, delta};
    for (std::size_t c = 0; c < columns_.size() && columns_[c] <= row.i; ++c) {
      const std::int64_t j = columns_[c];
      const Real a = pairs.weight(j);
      Real d = pairs.d_logit(j, a);
      if (row.has_gate(0, row.entry(0, j))) {
        Running x{row.first_unsaturated(0)};
        d += gate_slope(row.gate[0][row.entry(0, j)]) * x.advance(pairs, 0, j);
      }
      for (std::int64_t e = 0; e < depth; ++e) {
        dk_[c * depth + e] += d * LongRow<Real>::scale() * Real(row.q[e]);
        dv_[c * depth + e] += a * Real(d_o[e]);
      }
    }
    if (row.sums() > 1) add_blocks(pairs);
  }

  const std::vector<Real>& dk() const { return dk_; }
  const std::vector<Real>& dv() const { return dv_; }
  const std::vector<Real>& pooled() const { return pooled_; }

 private:
  struct Pairs {
    const LongRow<Real>& row;
    const float* d_o;
    Real lse, delta;
    Real weight(std::int64_t j) const { return std::exp(row.logit(j) - lse); }
    Real d_logit(std::int64_t j, Real a) const { return a * (long_dot<Real>(d_o, row.value(j)) - delta); }
  };
  /// X: the sum of d position over keys up to and with `last`, far → near.
  struct Running {
    std::int64_t next;
    Real sum = 0;
    Real advance(const Pairs& pairs, int which, std::int64_t last) {
      for (; next <= last; ++next)
        sum += pairs.d_logit(next, pairs.weight(next)) *
               LongPlace<Real>(pairs.row.position(which, next)).slope(pairs.row.table[which]);
      return sum;
    }
  };
  static Real gate_slope(Real gate) { return gate * (1 - gate); }

  void add_blocks(const Pairs& pairs) {
    const LongRow<Real>& row = pairs.row;
    Running x{row.first_unsaturated(1)};
    for (std::size_t c = 0; c < blocks_.size(); ++c) {
      const std::int64_t end = (blocks_[c] + 1) * block - 1, n = row.entry(1, end);
      if (!row.has_gate(1, n)) continue;
      const Real d = gate_slope(row.gate[1][n]) * x.advance(pairs, 1, end) * LongRow<Real>::scale();
      for (std::int64_t e = 0; e < depth; ++e) pooled_[c * depth + e] += d * Real(row.q[e]);
    }
  }

  std::vector<std::int64_t> columns_, blocks_;
  std::vector<Real> dk_, dv_, pooled_;
};

// ---- samples --------------------------------------------------------------------------------------------------------

/// One token out of each of `count` equal parts; some at the parts' ends, where chunks end too.
std::vector<std::int64_t> sample_tokens(std::int64_t tokens, std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> out;
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t begin = std::max<std::int64_t>(1, s * tokens / count), end = (s + 1) * tokens / count;
    const std::int64_t inside = begin + std::int64_t(uniform(seed, std::uint64_t(s)) * double(end - begin));
    out.push_back(s % 8 == 0 ? begin : s % 8 == 7 ? end - 1 : inside);
  }
  return out;
}

/// The first ones, which all rows of 130 blocks reach, and the last but one, whose far sum is the longest.
std::vector<std::int64_t> sample_blocks(const LongProblem& problem) {
  if (problem.sums() == 1) return {};
  return {0, 1, (problem.tokens + block - 1) / block - 2};
}

/// Samples of one result as three kinds: exact, naive, got. A rank fills in what is its own; the rest adds up.
class Samples {
 public:
  Samples(std::string name, std::int64_t count, std::int64_t width)
      : name_(std::move(name)), count_(count), width_(width), values_({3, count, width}, DType::f64, Device::ref) {}

  enum Kind { exact, naive, got };
  template <class From> void set(Kind kind, std::int64_t sample, const From* from) const {
    std::copy_n(from, width_, at(kind, sample));
  }
  LongError error(Communicator& comm) const {
    comm.all_reduce(values_);
    const auto [naive_error, used] = distance(naive);
    return {name_, distance(got).first, 2 * std::max(naive_error, f32_floor), used};
  }

 private:
  double* at(Kind kind, std::int64_t sample) const { return values_.as<double>() + (kind * count_ + sample) * width_; }
  /// And the samples that count: those that are not zero (rows with d_o = 0), where got must be zero, too.
  std::pair<double, std::int64_t> distance(Kind kind) const {
    double sum = 0;
    std::int64_t used = 0;
    for (std::int64_t s = 0; s < count_; ++s) {
      double difference = 0, norm = 0;
      for (std::int64_t e = 0; e < width_; ++e) {
        difference += std::pow(at(kind, s)[e] - at(exact, s)[e], 2);
        norm += std::pow(at(exact, s)[e], 2);
      }
      used += norm > 0;
      if (norm > 0) sum += difference / norm;
      else if (difference > 0) sum = std::numeric_limits<double>::infinity();
    }
    return {std::sqrt(sum / double(std::max<std::int64_t>(1, used))), used};
  }

  std::string name_;
  std::int64_t count_, width_;
  Tensor values_;
};

// ---- one rank -------------------------------------------------------------------------------------------------------

struct Gradients {
  Tensor dq, dk, dv, gate_k;
  std::array<Tensor, 2> table;
  explicit Gradients(const LongShard& shard)
      : dq(zeros_like(shard.q)), dk(zeros_like(shard.k)), dv(zeros_like(shard.v)) {
    if (shard.gate_k) gate_k = zeros_like(shard.gate_k);
    for (int which = 0; which < 2; ++which)
      if (shard.table[which]) table[which] = zeros_like(shard.table[which]);
  }
  parallel::RingGradients views() const {
    parallel::RingGradients out;
    out.dq = dq;
    out.dk = dk;
    out.dv = dv;
    if (gate_k) out.terms.gate_k[1] = gate_k;
    for (int which = 0; which < 2; ++which)
      if (table[which]) out.terms.table[which] = table[which];
    return out;
  }
};

/// A rank's results and what its checks need.
struct Shard {
  const LongProblem& problem;
  const LongShard& in;
  const parallel::RingSaved& saved;
  const Gradients& gradients;

  std::int64_t index(std::int64_t t) const { return in.index.as<std::int64_t>()[t]; }
  /// Its local row, or -1: another rank's.
  std::int64_t local(std::int64_t token) const {
    const std::int64_t *begin = in.index.as<std::int64_t>(), *end = begin + in.tokens();
    const std::int64_t* at = std::lower_bound(begin, end, token);
    return at != end && *at == token ? at - begin : -1;
  }
  const float* row(const Tensor& x, std::int64_t t) const { return x.as<float>() + t * x.shape()[-1]; }
  template <class Real> LongRow<Real> oracle(const LongKeys& keys, std::int64_t t) const {
    LongRow<Real> out(problem, keys, index(t), row(in.q, t));
    for (int which = 0; which < problem.sums(); ++which) out.table[which] = row(in.table[which], t);
    return out;
  }
};

std::vector<LongError> check_rows(Communicator& comm, const Shard& shard, const LongKeys& keys) {
  const std::vector<std::int64_t> tokens = sample_tokens(shard.problem.tokens, sampled_rows, 31);
  const std::int64_t tables = shard.problem.sums() * positions;
  const Samples all[] = {{"o", sampled_rows, depth},
                         {"lse", sampled_rows, 1},
                         {"dq", sampled_rows, depth},
                         {"d_table", sampled_rows, tables}};  // both: in one of them all may cancel
  const std::int64_t from[] = {0, depth, depth + 1, 2 * depth + 1};
  for (std::int64_t s = 0; s < sampled_rows; ++s) {
    const std::int64_t t = shard.local(tokens[s]);
    if (t < 0) continue;
    const float* d_o = shard.row(shard.in.d_o, t);
    double exact[row_width], naive[row_width];
    row_results(exact, shard.oracle<double>(keys, t), d_o);
    row_results(naive, shard.oracle<float>(keys, t), d_o);
    std::vector<float> d_table;
    for (int which = 0; which < shard.problem.sums(); ++which)
      d_table.insert(d_table.end(), shard.row(shard.gradients.table[which], t),
                     shard.row(shard.gradients.table[which], t + 1));
    const float* got[] = {shard.row(shard.saved.o, t), shard.saved.lse.as<float>() + t,
                          shard.row(shard.gradients.dq, t), d_table.data()};
    for (int x = 0; x < 4; ++x) {
      all[x].set(Samples::exact, s, exact + from[x]);
      all[x].set(Samples::naive, s, naive + from[x]);
      all[x].set(Samples::got, s, got[x]);
    }
  }
  std::vector<LongError> out;
  for (const Samples& x : all) out.push_back(x.error(comm));
  return out;
}

/// The ranks' parts are summed as a communicator sums.
template <class Real>
Columns<Real> sum_columns(const Shard& shard, const LongKeys& keys, const std::vector<std::int64_t>& tokens) {
  Columns<Real> sums(tokens, sample_blocks(shard.problem));
  for (std::int64_t t = 0; t < shard.in.tokens(); ++t) {
    const float *d_o = shard.row(shard.in.d_o, t), *o = shard.row(shard.saved.o, t);
    sums.add(shard.oracle<Real>(keys, t), d_o, Real(shard.saved.lse.as<float>()[t]), Real(long_dot<double>(d_o, o)));
  }
  return sums;
}

std::vector<LongError> check_columns(Communicator& comm, const Shard& shard, const LongKeys& keys) {
  const std::vector<std::int64_t> tokens = sample_tokens(shard.problem.tokens, sampled_columns, 32),
                                  blocks = sample_blocks(shard.problem);
  const Columns<double> exact = sum_columns<double>(shard, keys, tokens);
  const Columns<float> naive = sum_columns<float>(shard, keys, tokens);
  const Samples dk("dk", sampled_columns, depth), dv("dv", sampled_columns, depth),
      pooled("d_gate_k of blocks", std::ssize(blocks), depth);
  for (std::int64_t c = 0; c < sampled_columns; ++c) {
    dk.set(Samples::exact, c, &exact.dk()[c * depth]);
    dk.set(Samples::naive, c, &naive.dk()[c * depth]);
    dv.set(Samples::exact, c, &exact.dv()[c * depth]);
    dv.set(Samples::naive, c, &naive.dv()[c * depth]);
    const std::int64_t t = shard.local(tokens[c]);
    if (t < 0) continue;
    dk.set(Samples::got, c, shard.row(shard.gradients.dk, t));
    dv.set(Samples::got, c, shard.row(shard.gradients.dv, t));
  }
  for (std::int64_t c = 0; c < std::ssize(blocks); ++c) {
    pooled.set(Samples::exact, c, &exact.pooled()[c * depth]);
    pooled.set(Samples::naive, c, &naive.pooled()[c * depth]);
    const std::int64_t t =
        shard.local(blocks[c] * block);  // every token of the block has the same, one of its 256 shares
    if (t < 0) continue;
    double got[depth];
    for (std::int64_t d = 0; d < depth; ++d) got[d] = shard.row(shard.gradients.gate_k, t)[d] * double(block);
    pooled.set(Samples::got, c, got);
  }
  std::vector<LongError> out{dk.error(comm), dv.error(comm)};
  if (!blocks.empty()) out.push_back(pooled.error(comm));
  return out;
}

/// Seconds since the last call, on the slowest rank.
class Clock {
 public:
  explicit Clock(Communicator& comm) : comm_(comm) { lap(); }
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double mine = std::chrono::duration<double>(now - before_).count();
    const double most = comm_.all_reduce(mine, Reduce::max);
    before_ = std::chrono::steady_clock::now();
    return most;
  }

 private:
  Communicator& comm_;
  std::chrono::steady_clock::time_point before_;
};

bool one_process(const Communicator& comm) { return comm.backend() != "mpi"; }

double sum_over_processes(Communicator& comm, double mine) {
  return one_process(comm) ? comm.all_reduce(mine, Reduce::max) : comm.all_reduce(mine);
}

void count_memory(Communicator& comm, LongResult& result, std::int64_t peak_before) {
  const std::int64_t peak = kernels::memory_report().peak;
  result.tensor_bytes = comm.all_reduce(peak, Reduce::max) / (one_process(comm) ? comm.size() : 1);
  result.resident_bytes = comm.all_reduce(framework::peak_resident_memory(), Reduce::max);
  result.new_peak = comm.all_reduce(std::int64_t(peak > peak_before), Reduce::min) == 1;
}

void count_tiles(Communicator& comm, LongResult& result, const AttentionStats& stats) {
  const std::int64_t tiles = comm.all_reduce(stats.tiles), flat = comm.all_reduce(stats.saturated_tiles);
  result.flat_share = double(flat) / double(tiles);
}

std::string worst_of(const std::vector<LongError>& errors) {
  const LongError& worst = *std::max_element(errors.begin(), errors.end(), [](const LongError& a, const LongError& b) {
    return a.error * b.bound < b.error * a.bound;
  });
  return fmt::format("{:.1e} of {:.1e} ({})", worst.error, worst.bound, worst.name);
}

}  // namespace

LongResult run_long_attention(Communicator& comm, const LongProblem& problem) {
  const std::int64_t peak_before = kernels::memory_report().peak;
  comm.barrier();
  parallel::RingPlan plan = parallel::plan_ring({"auto", comm.size(), 0, 1, problem.tokens, block});
  const parallel::Ring ring{comm, std::move(plan.layout), std::move(plan.schedule)};
  LongResult result;
  result.ranks = comm.size();
  result.schedule = ring.schedule.name;
  const LongShard in(problem, ring.layout.local_index(comm.rank()));
  const kernels::AttentionSettings settings = problem.settings();
  AttentionStats stats;
  const std::clock_t cpu_before = std::clock();
  Clock clock(comm);
  const parallel::RingSaved saved = ring_attention_forward(ring, in.inputs(), settings, &stats);
  result.forward_seconds = clock.lap();
  const Gradients gradients(in);
  ring_attention_backward(ring, gradients.views(), in.inputs(), saved, in.d_o, settings);
  result.backward_seconds = clock.lap();
  result.cpu_seconds = sum_over_processes(comm, double(std::clock() - cpu_before) / CLOCKS_PER_SEC);
  count_memory(comm, result, peak_before);
  count_tiles(comm, result, stats);
  const LongKeys keys(problem);
  const Shard shard{problem, in, saved, gradients};
  result.rows = check_rows(comm, shard, keys);
  result.columns = check_columns(comm, shard, keys);
  return result;
}

std::string long_table_head() {
  return "| T | ranks | encoding | forward, s | backward, s | CPU of all ranks, s | peak per rank, MiB | bytes per "
         "token and "
         "rank | "
         "flat tiles | worst row result: error of bound | worst column result |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|\n";
}

std::string long_table_row(const LongProblem& problem, const LongResult& r) {
  return fmt::format("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.2f} % | {} | {} |\n",
                     problem.tokens, r.ranks, name_of(problem.encoding), r.forward_seconds, r.backward_seconds,
                     r.cpu_seconds, double(r.tensor_bytes) / (1 << 20), double(r.tensor_bytes) / double(problem.tokens),
                     100 * r.flat_share, worst_of(r.rows), worst_of(r.columns));
}

}  // namespace capstan::tests
