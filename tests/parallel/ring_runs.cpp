#include "tests/parallel/ring_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensors.h"

namespace capstan::tests {

using kernels::AttentionSettings;
using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using parallel::Communicator;
using parallel::Ring;
using parallel::RingGradients;
using parallel::RingInputs;
using parallel::RingSaved;
using namespace ring_runs;

std::shared_ptr<const Problems> make_problems(std::int64_t tokens, bool z, std::int64_t npos) {
  AttentionShape shape{tokens, heads, groups, depth, z, npos};
  const auto seed = std::uint64_t(100 * tokens);
  AttentionProblem first = random_attention(shape, seed);
  if (tokens > 12) shape.documents = {7, 3, 1, tokens / 2 - 5};
  return std::make_shared<Problems>(Problems{std::move(first), random_attention(shape, seed + 1)});
}

std::string Case::text() const {
  return fmt::format("S {} tile {} z {} cope {} {} {}", tokens, tile, bool(problems->front().z), cope(), name_of(type),
                     name_of(device));
}

AttentionSettings Case::settings() const {
  AttentionSettings settings;
  settings.tile = tile;
  if (cope()) settings.gates[0].gates = kernels::Gates::tokens;
  return settings;
}

Tensor stacked(const Tensor& first, const Tensor& second, const std::vector<std::int64_t>& index, DType type,
               Device device) {
  if (!first) return {};
  if (device == Device::cuda) return on_device(stacked(first, second, index, type, Device::cpu), device);
  std::vector<std::int64_t> extents{batch, std::ssize(index)};
  for (int axis = 1; axis < first.shape().rank(); ++axis) extents.push_back(first.shape()[axis]);
  Tensor out(Shape(extents), type, device);
  for (std::int64_t b = 0; b < batch; ++b) {
    const Tensor whole = converted(b == 0 ? first : second, type, device);
    for (std::int64_t t = 0; t < std::ssize(index); ++t)
      out.view()[b].rows(t, t + 1).copy_from(whole.view().rows(index[std::size_t(t)], index[std::size_t(t)] + 1));
  }
  return out;
}

Ring make_ring(Communicator& comm, std::int64_t tokens, std::int64_t tile, const std::string& schedule,
               int head_ranks) {
  parallel::RingPlan plan = parallel::plan_ring({schedule, comm.size(), head_ranks, int(groups), tokens, tile});
  return {comm, std::move(plan.layout), std::move(plan.schedule)};
}

namespace {

/// A rank's part of both sequences. z, tables and gradients have what is wide beside the case's type.
struct LocalInputs {
  Tensor q, k, v, z, table, d_o, index, document;

  LocalInputs(const Case& c, const std::vector<std::int64_t>& own) {
    const auto& [first, second] = *c.problems;
    const auto local = [&](const Tensor AttentionProblem::*x, DType type) {
      return stacked(first.*x, second.*x, own, type, c.device);
    };
    q = local(&AttentionProblem::q, c.type);
    k = local(&AttentionProblem::k, c.type);
    v = local(&AttentionProblem::v, c.type);
    z = local(&AttentionProblem::z, wide(c.type));
    table = local(&AttentionProblem::table, wide(c.type));
    d_o = local(&AttentionProblem::d_o, wide(c.type));
    const Tensor all = index_rows(0, c.tokens, Device::cpu);
    index = stacked(all, all, own, DType::i64, c.device);
    document = stacked(document_rows(first.document, 0, c.tokens, Device::cpu),
                       document_rows(second.document, 0, c.tokens, Device::cpu), own, DType::i64, c.device);
  }
  RingInputs ring_inputs() const {
    RingInputs in;
    in.q = q;
    in.k = k;
    in.v = v;
    in.z = z;
    in.terms.table[0] = table;
    in.rows = {index, index, document};
    return in;
  }
};

/// Of x's shape, wide. What was there must not matter: where the host can write, it is no zero.
Tensor gradient_of(const Tensor& x, const Case& c) {
  if (!x) return {};
  Tensor gradient(x.shape(), wide(c.type), c.device);
  if (c.type == DType::f64 && gradient.view().elements() > 0) gradient.as<double>()[0] = 1e9;
  return gradient;
}

void bring_home(Shard& shard) {
  for (Tensor* x :
       {&shard.o, &shard.lse, &shard.horizon, &shard.carry, &shard.dq, &shard.dk, &shard.dv, &shard.dz, &shard.dtable})
    if (*x) *x = on_device(*x, Device::cpu);
}

}  // namespace

Shard run_shard(const Ring& ring, const Case& c) {
  const std::vector<std::int64_t> own = ring.layout.local_index(ring.comm.rank());
  const LocalInputs local(c, own);
  const RingInputs in = local.ring_inputs();
  RingSaved saved = ring_attention_forward(ring, in, c.settings(), nullptr);
  Shard shard;
  shard.index = own;
  shard.dq = gradient_of(local.q, c);
  shard.dk = gradient_of(local.k, c);
  shard.dv = gradient_of(local.v, c);
  if (local.z) shard.dz = zeros_like(local.z);
  if (local.table) shard.dtable = zeros_like(local.table);
  RingGradients out;
  out.dq = shard.dq;
  out.dk = shard.dk;
  out.dv = shard.dv;
  out.dz = shard.dz;
  out.terms.table[0] = shard.dtable;
  ring_attention_backward(ring, out, in, saved, local.d_o, c.settings());
  shard.o = std::move(saved.o);
  shard.lse = std::move(saved.lse);
  shard.horizon = std::move(saved.horizon[0]);
  shard.carry = std::move(saved.carry[0]);
  if (c.device == Device::cuda) bring_home(shard);
  return shard;
}

Shard run_alone(const Case& c) {
  const auto self = parallel::make_self_communicator();
  return run_shard(make_ring(*self, c.tokens, c.tile, "contiguous"), c);
}

namespace {

/// The rows of `part` out of the whole.
Tensor rows_of(const Shard& whole, const Shard& part, const Tensor Shard::*x, std::int64_t b) {
  Tensor out = zeros_like((part.*x).view()[b]);
  for (std::int64_t t = 0; t < std::ssize(part.index); ++t) {
    const std::int64_t at = part.index[std::size_t(t)];
    out.view().rows(t, t + 1).copy_from((whole.*x).view()[b].rows(at, at + 1));
  }
  return out;
}

void expect_same_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, const char* name) {
  if (!(whole.*x)) return;
  for (std::int64_t b = 0; b < batch; ++b)
    EXPECT_TRUE(same_bits(rows_of(whole, part, x, b), (part.*x).view()[b])) << name << " of sequence " << b;
}

void expect_same_output(const Shard& whole, const Shard& part) {
  expect_same_rows(whole, part, &Shard::o, "o");
  expect_same_rows(whole, part, &Shard::lse, "lse");
  expect_same_rows(whole, part, &Shard::carry, "carry");
}

}  // namespace

void expect_close_rows(const Shard& whole, const Shard& part, const Tensor Shard::*x, double tolerance,
                       const char* name) {
  if (!(whole.*x) || part.index.empty()) return;
  // Relative to the whole tensor: a shard by itself may hold only small numbers.
  for (std::int64_t b = 0; b < batch; ++b) {
    double difference = 0, norm = 0;
    for (double value : values_of((whole.*x).view()[b])) norm += value * value;
    const std::vector<double> got = values_of((part.*x).view()[b]), expected = values_of(rows_of(whole, part, x, b));
    for (std::size_t i = 0; i < got.size(); ++i) difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name << " of sequence " << b;
  }
}

void expect_close_gradients(const Shard& whole, const Shard& part, double tolerance) {
  expect_close_rows(whole, part, &Shard::dq, tolerance, "dq");
  expect_close_rows(whole, part, &Shard::dk, tolerance, "dk");
  expect_close_rows(whole, part, &Shard::dv, tolerance, "dv");
  expect_close_rows(whole, part, &Shard::dz, tolerance, "dz");
  expect_close_rows(whole, part, &Shard::dtable, tolerance, "dtable");
}

void expect_same_gradients(const Shard& a, const Shard& b) {
  for (const auto& [x, name] : {std::pair{&Shard::dq, "dq"},
                                {&Shard::dk, "dk"},
                                {&Shard::dv, "dv"},
                                {&Shard::dz, "dz"},
                                {&Shard::dtable, "dtable"}})
    EXPECT_TRUE(!(a.*x) || same_bits(a.*x, b.*x)) << name;
}

Oracle::Oracle(const Problems& problems) {
  for (const AttentionProblem& problem : problems) {
    outputs_.push_back(dense_attention(problem.inputs()));
    gradients_.push_back(dense_attention_backward(problem.inputs(), problem.d_o));
  }
}

void Oracle::expect(const Shard& whole, double tolerance) const {
  for (std::size_t b = 0; b < std::size_t(batch); ++b) {
    const auto look = [&](const Tensor& got, const Tensor& expected, const char* name) {
      if (!expected) return;
      EXPECT_LE(relative_error(got.view()[std::int64_t(b)], expected), tolerance) << name << " of sequence " << b;
    };
    look(whole.o, outputs_[b].o, "o");
    look(whole.lse, outputs_[b].lse, "lse");
    look(whole.dq, gradients_[b].dq, "dq");
    look(whole.dk, gradients_[b].dk, "dk");
    look(whole.dv, gradients_[b].dv, "dv");
    look(whole.dz, gradients_[b].dz, "dz");
    look(whole.dtable, gradients_[b].dtable, "dtable");
  }
}

std::vector<Case> cases_of(const std::vector<std::int64_t>& lengths, std::int64_t npos, DType type, Device device) {
  std::vector<Case> cases;
  for (std::int64_t tokens : lengths)
    for (bool z : {false, true}) {
      const auto problems = make_problems(tokens, z, npos);
      for (std::int64_t tile : {16, 64}) cases.push_back({tokens, tile, type, device, problems});
    }
  return cases;
}

std::vector<std::pair<std::string, int>> schedules_of(int ranks, bool ordered) {
  std::vector<std::pair<std::string, int>> out{{"contiguous", 0}, {"ordered_pull", 0}, {"allgather", 0}, {"pass_q", 0}};
  if (!ordered) out.push_back({"zigzag", 0});
  if (ranks == 2) out.push_back({"ulysses", 0});
  if (ranks == 4 || ranks == 8) out.push_back({"ulysses", 2});
  return out;
}

void compare_with_one_rank(Communicator& comm, const Case& c, const Shard& alone, const std::string& schedule,
                           int head_ranks, double tolerance) {
  SCOPED_TRACE(fmt::format("{} {} rank {} of {}", schedule, c.text(), comm.rank(), comm.size()));
  const Shard part = run_shard(make_ring(comm, c.tokens, c.tile, schedule, head_ranks), c);
  if (schedule == "zigzag") {
    expect_close_rows(alone, part, &Shard::o, tolerance, "o");
    expect_close_rows(alone, part, &Shard::lse, tolerance, "lse");
  } else {
    expect_same_output(alone, part);
  }
  expect_close_gradients(alone, part, tolerance);
}

}  // namespace capstan::tests
