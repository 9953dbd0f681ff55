// Attention and parcels of tensors with more than 2^32 elements, of which only the last rows are there
// (large_tensors.h): the bits of the same rows in small tensors. large_kernels_test.cpp has the other kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/attention_tile.h"
#include "parallel/parcel.h"
#include "tests/support/large_tensors.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Gates;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

constexpr std::int64_t depth = 128, block = 256, rows = 512;
constexpr std::int64_t all_rows =
    (std::int64_t(1) << 32) / depth + 2 * rows;  // the last ones begin beyond 2^32 elements

/// A few rows, and a huge tensor that ends with them.
class Ending {
 public:
  Ending(Tensor few, std::int64_t all)
      : few_(std::move(few)), all_(
                                  [&] {
                                    std::vector<std::int64_t> extents{all};
                                    for (int axis = 1; axis < few_.shape().rank(); ++axis)
                                      extents.push_back(few_.shape()[axis]);
                                    return Shape(extents);
                                  }(),
                                  few_.view().type(), few_.view().device()) {
    end().copy_from(few_);
  }
  const View& of(bool huge) const { return huge ? all_.view() : few_.view(); }
  View end() const { return all_.view().rows(all_.view().dim(0) - few_.shape()[0], all_.view().dim(0)); }
  View few(bool huge) const { return huge ? end() : few_.view(); }

 private:
  Tensor few_;
  SparseTensor all_;
};

Tensor last_index(Device device) {
  Tensor index({rows}, DType::i64, device);
  std::iota(index.as<std::int64_t>(), index.as<std::int64_t>() + rows, all_rows - rows);
  return index;
}

/// Document 1: the zeros before are another one, and stay out of sight.
Tensor last_document(Device device) {
  Tensor document({rows}, DType::i64, device);
  std::fill_n(document.as<std::int64_t>(), rows, 1);
  return document;
}

/// CoPE in both sums, hierarchical in the second.
struct Attention {
  Device device;
  kernels::AttentionSettings settings;
  Ending q, d_o, table0, table1, query_index, query_document;
  Ending o, m, l, carry0, carry1, horizon0, horizon1;
  Ending delta, dq, d_table0, d_table1, back_carry0, back_carry1, x0, x1;
  Ending k, v, key_index, key_document, gate_k, dk, dv, d_gate_k;

  Ending random(Shape shape, std::int64_t all, std::uint64_t seed) const {
    return {random_tensor(shape, DType::f32, device, seed), all};
  }
  Ending zeros(Shape shape, std::int64_t all, DType type = DType::f32) const {
    return {Tensor(shape, type, device), all};
  }

  explicit Attention(Device device_in)
      : device(device_in), q(random({rows, 1, depth}, all_rows, 1)), d_o(random({rows, 1, depth}, all_rows, 2)),
        table0(random({rows, 1, depth}, all_rows, 3)), table1(random({rows, 1, depth}, all_rows, 4)),
        query_index(last_index(device), all_rows), query_document(last_document(device), all_rows),
        o(zeros({rows, 1, depth}, all_rows)), m(zeros({rows, 1}, all_rows)), l(zeros({rows, 1}, all_rows)),
        carry0(zeros({rows, 1}, all_rows, DType::i64)), carry1(zeros({rows, 1}, all_rows, DType::i64)),
        horizon0(zeros({rows / 64, 1}, all_rows / 64, DType::i64)),
        horizon1(zeros({rows / 64, 1}, all_rows / 64, DType::i64)), delta(zeros({rows, 1}, all_rows)),
        dq(zeros({rows, 1, depth}, all_rows)), d_table0(zeros({rows, 1, depth}, all_rows)),
        d_table1(zeros({rows, 1, depth}, all_rows)), back_carry0(zeros({rows, 1}, all_rows, DType::i64)),
        back_carry1(zeros({rows, 1}, all_rows, DType::i64)), x0(zeros({rows, 1}, all_rows)),
        x1(zeros({rows, 1}, all_rows)), k(random({rows, 1, depth}, all_rows, 5)),
        v(random({rows, 1, depth}, all_rows, 6)), key_index(last_index(device), all_rows),
        key_document(last_document(device), all_rows), gate_k(random({rows / block, 1, depth}, all_rows / block, 7)),
        dk(zeros({rows, 1, depth}, all_rows)), dv(zeros({rows, 1, depth}, all_rows)),
        d_gate_k(zeros({rows / block, 1, depth}, all_rows / block)) {
    settings.gates[0].gates = Gates::tokens;
    settings.gates[1] = {Gates::block_ends, 0, block, 1};
  }

  kernels::QueryChunk queries(bool huge) const {
    kernels::QueryChunk out{q.of(huge), query_index.of(huge), {}, query_document.of(huge)};
    out.terms.table = {table0.of(huge), table1.of(huge)};
    return out;
  }
  kernels::KeyChunk keys(bool huge) const {
    kernels::KeyChunk out{k.of(huge), v.of(huge), {}, key_index.of(huge), {}, key_document.of(huge)};
    out.terms.gate_k[1] = gate_k.of(huge);
    return out;
  }
  template <class F> kernels::AttentionState state(const F& f) const {
    return {f(o), f(m), f(l), {f(carry0), f(carry1)}, {f(horizon0), f(horizon1)}};
  }
  template <class F> kernels::AttentionSaved saved(const F& f) const {
    return {f(m), f(delta), {f(carry0), f(carry1)}, {f(horizon0), f(horizon1)}};
  }
  template <class F> kernels::AttentionBackwardState back(const F& f) const {
    return {{f(back_carry0), f(back_carry1)}, {f(x0), f(x1)}};
  }
  kernels::AttentionGradients gradients(bool huge_queries, bool huge_keys) const {
    kernels::AttentionGradients out;
    out.dq = dq.of(huge_queries);
    out.rows.table = {d_table0.of(huge_queries), d_table1.of(huge_queries)};
    out.dk = dk.of(huge_keys);
    out.dv = dv.of(huge_keys);
    out.keys.gate_k[1] = d_gate_k.of(huge_keys);
    return out;
  }

  /// Everything that forward and backward leave in the last rows, as copies.
  std::vector<Tensor> run(bool huge_queries, bool huge_keys) const {
    const auto all = [&](const Ending& x) { return x.of(huge_queries); };
    const auto few = [&](const Ending& x) { return x.few(huge_queries); };
    for (const Ending* x : {&dq, &d_table0, &d_table1}) x->few(huge_queries).fill_zero();
    for (const Ending* x : {&dk, &dv, &d_gate_k}) x->few(huge_keys).fill_zero();
    attention_begin(state(few));
    attention_forward(state(all), queries(huge_queries), keys(huge_keys), settings, nullptr);
    attention_finish(state(few));
    kernels::attention_delta(delta.few(huge_queries), d_o.few(huge_queries), o.few(huge_queries));
    attention_backward_begin(back(few), saved(few));
    attention_backward(gradients(huge_queries, huge_keys), back(all), queries(huge_queries), keys(huge_keys),
                       d_o.of(huge_queries), saved(all), settings);
    std::vector<Tensor> out;
    const auto copy = [&](const View& x) { out.emplace_back(zeros_like(x)).view().copy_from(x); };
    for (const Ending* x : {&o, &m, &carry0, &carry1, &horizon0, &horizon1, &dq, &d_table0, &d_table1, &x0, &x1})
      copy(x->few(huge_queries));
    for (const Ending* x : {&dk, &dv, &d_gate_k}) copy(x->few(huge_keys));
    return out;
  }
};

class LargeTensorsHeavy : public testing::TestWithParam<Device> {};

TEST_P(LargeTensorsHeavy, AttentionOfTheLastRowsHasTheBitsOfSmallTensors) {
  const Attention attention(GetParam());
  EXPECT_GT(attention.q.of(true).elements(), std::int64_t(1) << 32);
  const std::vector<Tensor> few = attention.run(false, false);
  for (const Tensor& x : few) {
    const std::vector<double> values = values_of(x);
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](double value) { return value != 0; }))
        << "result " << &x - few.data();
  }
  for (const auto& [queries, keys] : {std::pair{true, false}, {false, true}}) {
    const std::vector<Tensor> huge = attention.run(queries, keys);
    for (std::size_t i = 0; i < few.size(); ++i)
      EXPECT_TRUE(same_bits(few[i], huge[i])) << "result " << i << (queries ? ", huge queries" : ", huge keys");
  }
}

TEST_P(LargeTensorsHeavy, GateSumsOfTheLastRowsHaveTheBitsOfSmallTensors) {
  const Attention attention(GetParam());
  for (int which = 0; which < kernels::gated_sums; ++which) {
    const Tensor few({rows, 1}, DType::i64, GetParam()), huge = zeros_like(few);
    attention_gate_sum(few, which, attention.queries(false), attention.keys(false), attention.settings);
    attention_gate_sum(huge, which, attention.queries(false), attention.keys(true), attention.settings);
    EXPECT_TRUE(same_bits(few, huge)) << which;
  }
}

std::string name_of_device(const testing::TestParamInfo<Device>& info) { return kernels::name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(On, LargeTensorsHeavy, testing::Values(Device::ref, Device::cpu), name_of_device);

/// A head group's share of a chunk at the end of a long shard, out of it and back.
TEST(LargeParcelsHeavy, HeadsOfTheLastRowsArePackedAndPutBack) {
  const std::int64_t most = all_rows - rows;
  const parallel::SequenceLayout layout =
      parallel::SequenceLayout::of_chunks({{0, most, 0}, {most, all_rows, 0}}, 1, 1);
  const Tensor few = random_tensor({rows, 2, depth / 2}, DType::f32, Device::cpu, 1);
  const Ending ending(few.clone(), all_rows);
  const View whole = ending.of(true).reshape({1, all_rows, 2, depth / 2});
  const parallel::Fields fields{{whole}};
  for (const int group : {0, 1}) {
    const parallel::Part part{1, group, 2};
    const parallel::Parcel parcel = parallel::Parcel::packed(fields, layout, {}, part);
    EXPECT_EQ(parallel::Parcel::bytes(fields, layout, {}, part), rows * depth / 2 * 4);
    parcel.copy_from(fields, layout, {}, part);
    for (std::int64_t t = 0; t < rows; ++t)
      EXPECT_TRUE(same_bits(parcel.at(0, 0, t, t + 1), few.view()[t].rows(group, group + 1))) << t;
    ending.end().fill_zero();
    parcel.copy_to(fields, layout, {}, part);
    for (std::int64_t t = 0; t < rows; ++t) {
      EXPECT_TRUE(same_bits(ending.end()[t].rows(group, group + 1), few.view()[t].rows(group, group + 1))) << t;
      EXPECT_TRUE(same_bits(ending.end()[t].rows(1 - group, 2 - group), zeros_like(few.view()[t].rows(0, 1)))) << t;
    }
    ending.end().copy_from(few);
  }
}

}  // namespace
}  // namespace capstan::tests
