// Kernels on tensors of more than 2^32 elements (large_tensors.h). All rows but the last 8,192 are the same memory over
// and over, so that a kernel that works in place leaves there what as many calls would, one per visit; the last rows
// are visited once. Not here, because sines of 2^32 angles take minutes: rotary_phases and rotary_decay.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/ops.h"
#include "tests/support/large_tensors.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Into;
using kernels::Tensor;
using kernels::View;

constexpr std::int64_t width = 128, few = 256, period = 8192, count = (std::int64_t(1) << 32) / (width * period) + 1;
constexpr std::int64_t all_rows = count * period;

/// A huge tensor made of the same few rows.
class Huge {
 public:
  explicit Huge(const View& rows) : few_(zeros_like(rows)), all_(whole_period(rows), count) {
    few_.view().copy_from(rows);
  }
  const View& all() const { return all_; }
  const View& few_rows() const { return few_; }

  /// The huge rows are what the few have become, after `visits` calls (few_rows() as they are now) and after one.
  void expect(const View& after_one, const View& after_visits) const {
    const std::int64_t n = few_.shape()[0];
    for (std::int64_t begin = 0; begin < period / few * n; begin += n) {
      ASSERT_TRUE(same_bits(all_.repeated().rows(begin, begin + n), after_visits)) << "repeated rows from " << begin;
      ASSERT_TRUE(same_bits(all_.last().rows(begin, begin + n), after_one)) << "last rows from " << begin;
    }
  }

 private:
  static Tensor whole_period(const View& rows) {
    std::vector<std::int64_t> extents{period / few * rows.dim(0)};
    for (int axis = 1; axis < rows.shape().rank(); ++axis) extents.push_back(rows.dim(axis));
    Tensor out{kernels::Shape(extents), rows.type(), rows.device()};
    for (std::int64_t begin = 0; begin < extents[0]; begin += rows.dim(0))
      out.view().rows(begin, begin + rows.dim(0)).copy_from(rows);
    return out;
  }

  Tensor few_;
  RepeatedTensor all_;
};

/// Calls op on the huge tensors once, on the few rows as often as the huge ones visit theirs.
template <std::size_t N, class Op> void check(const std::array<Huge, N>& x, const Op& op) {
  std::array<View, N> views, small;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < N; ++i) {
    views[i] = x[i].all();
    small[i] = x[i].few_rows();
    most = std::max(most, views[i].elements());
  }
  EXPECT_GT(most, std::int64_t(1) << 32);
  op(views);
  std::array<Tensor, N> once;
  for (std::int64_t n = 0; n + 1 < count; ++n) {
    op(small);
    for (std::size_t i = 0; n == 0 && i < N; ++i) (once[i] = zeros_like(small[i])).view().copy_from(small[i]);
  }
  for (std::size_t i = 0; i < N; ++i) {
    SCOPED_TRACE(i);
    x[i].expect(once[i], small[i]);
  }
}

class LargeKernelsMatrix : public testing::TestWithParam<Device> {
 protected:
  Tensor random(kernels::Shape shape, std::uint64_t seed) const {
    return random_tensor(shape, DType::f32, GetParam(), seed);
  }
  Huge rows(std::uint64_t seed) const { return Huge(random({few, width}, seed)); }
  Huge heads(std::int64_t n, std::uint64_t seed) const { return Huge(random({few, n, width / 2}, seed)); }
  Huge zeros() const { return Huge(Tensor({few, width}, DType::f32, GetParam())); }
  Huge column(DType type, double value) const {
    return Huge(tensor_of({few}, type, GetParam(), std::vector<double>(few, value)));
  }
};

/// On `cpu` alone: `ref` takes many minutes.
class LargeSlowKernelsMatrix : public LargeKernelsMatrix {};

TEST_P(LargeKernelsMatrix, AddAndScale) {
  check(std::array{rows(1), rows(2)}, [](const auto& x) { kernels::add(x[0], x[1]); });
  check(std::array{rows(1)}, [](const auto& x) { kernels::scale(x[0], -1.001); });
}

TEST_P(LargeKernelsMatrix, Columns) {
  check(std::array{heads(1, 1), heads(2, 2)}, [](const auto& x) {
    kernels::take_columns(x[0].reshape({x[0].dim(0), width / 2}), x[1].reshape({x[1].dim(0), width}), width / 2);
  });
  check(std::array{rows(1), Huge(random({few, width / 2}, 2))},
        [](const auto& x) { kernels::put_columns(x[0], x[1], width / 2); });
}

TEST_P(LargeKernelsMatrix, Optimizers) {
  const kernels::AdamW settings{1e-3, 0.9, 0.99, 1e-8, 0.1, 3};
  check(std::array{rows(1), rows(2)}, [](const auto& x) { kernels::sgd_step(x[0], x[1], 1e-3); });
  if (GetParam() == Device::ref) return;  // adamw_step: many minutes
  Tensor squares = random({few, width}, 3);
  for (float* at = squares.as<float>(); at != squares.as<float>() + few * width; ++at) *at *= *at;
  check(std::array{rows(1), rows(2), Huge(squares), rows(4)},
        [&](const auto& x) { kernels::adamw_step(x[0], x[1], x[2], x[3], settings); });
}

TEST_P(LargeKernelsMatrix, Embedding) {
  const SparseTensor table({all_rows, width}, DType::f32, GetParam());
  const Tensor word = random({2, width}, 1), out({2, width}, DType::f32, GetParam());
  table.view().rows(all_rows - 2, all_rows).copy_from(word);
  const Tensor ids = tensor_of({2}, DType::i32, GetParam(), {double(all_rows - 2), double(all_rows - 1)});
  kernels::embedding_forward(out, ids, table);
  EXPECT_TRUE(same_bits(out, word));
  kernels::embedding_backward(table, ids, word);
  kernels::add(word, word);
  EXPECT_TRUE(same_bits(table.view().rows(all_rows - 2, all_rows), word));

  const Tensor small = random({7, width}, 2);
  Tensor some_ids = random_ids({few}, GetParam(), 3, 0, 7);
  check(std::array{rows(1), Huge(some_ids)}, [&](const auto& x) { kernels::embedding_forward(x[0], x[1], small); });
}

TEST_P(LargeKernelsMatrix, EmbeddingGradientOfTheLastRow) {
  const SparseTensor dy({all_rows, width}, DType::f32, GetParam()), ids({all_rows}, DType::i32, GetParam());
  const Tensor last = random({1, width}, 1), dw({2, width}, DType::f32, GetParam());
  dy.view().rows(all_rows - 1, all_rows).copy_from(last);
  ids.view().as<std::int32_t>()[all_rows - 1] = 1;
  kernels::embedding_backward(dw, ids, dy);
  EXPECT_TRUE(same_bits(dw.view().rows(1, 2), last));
}

TEST_P(LargeKernelsMatrix, Sums) {
  const SparseTensor x({all_rows, width}, DType::f32, GetParam());
  float* last = x.view().as<float>() + all_rows * width - 1;
  *last = 3;
  EXPECT_EQ(kernels::sum_of_squares(x), 9);
  EXPECT_TRUE(kernels::all_finite(x));
  const auto [sum, largest, elements] = kernels::complex_magnitude(x.view().reshape({all_rows, 1, width}));
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(largest, 3);
  EXPECT_EQ(elements, all_rows * width / 2);
  *last = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(kernels::all_finite(x));
}

TEST_P(LargeKernelsMatrix, Linear) {
  const Tensor w = random({1, width}, 1);
  check(std::array{Huge(random({few, 1}, 2)), rows(3)}, [&](const auto& x) { kernels::linear_forward(x[0], x[1], w); });
  check(std::array{rows(2), Huge(random({few, 1}, 3))},
        [&](const auto& x) { kernels::linear_backward_input(x[0], x[1], w); });
}

TEST_P(LargeKernelsMatrix, WeightGradientOfTheLastRow) {
  const SparseTensor x({all_rows, width}, DType::f32, GetParam()), dy({all_rows, 1}, DType::f32, GetParam());
  const Tensor last = random({1, width}, 1), dw({1, width}, DType::f32, GetParam());
  x.view().rows(all_rows - 1, all_rows).copy_from(last);
  dy.view().as<float>()[all_rows - 1] = 2;
  kernels::linear_backward_weight(dw, dy, x);
  kernels::scale(last, 2);
  EXPECT_TRUE(same_bits(dw, last));
}

TEST_P(LargeKernelsMatrix, RmsNorm) {
  const Tensor w = random({width}, 1);
  check(std::array{zeros(), rows(2)}, [&](const auto& x) { kernels::rmsnorm_forward(x[0], x[1], w, 1e-5); });
  check(std::array{rows(1), rows(2), rows(3)},
        [&](const auto& x) { kernels::rmsnorm_backward(x[0], {}, x[1], x[2], w, 1e-5, Into::add); });
}

TEST_P(LargeSlowKernelsMatrix, Rotary) {
  check(std::array{heads(2, 1), heads(2, 2), heads(1, 3)},
        [](const auto& x) { kernels::rotary_forward(x[0], x[1], x[2]); });
  check(std::array{heads(2, 1), heads(1, 2), heads(2, 3), heads(2, 4), heads(1, 5)},
        [](const auto& x) { kernels::rotary_backward(x[0], x[1], x[2], x[3], x[4]); });
}

TEST_P(LargeSlowKernelsMatrix, Activation) {
  for (const kernels::Activation f : {kernels::Activation::silu, kernels::Activation::gelu}) {
    check(std::array{zeros(), rows(1), rows(2)}, [f](const auto& x) { kernels::gated_forward(x[0], x[1], x[2], f); });
    check(std::array{zeros(), zeros(), rows(1), rows(2), rows(3)},
          [f](const auto& x) { kernels::gated_backward(x[0], x[1], x[2], x[3], x[4], f); });
    check(std::array{zeros(), rows(1)}, [f](const auto& x) { kernels::activation_forward(x[0], x[1], f); });
    check(std::array{zeros(), rows(1), rows(2)},
          [f](const auto& x) { kernels::activation_backward(x[0], x[1], x[2], f); });
  }
}

TEST_P(LargeSlowKernelsMatrix, Bias) {
  const Tensor b = random({width}, 1);
  check(std::array{rows(2)}, [&](const auto& x) { kernels::bias_forward(x[0], b, Into::add); });
}

TEST_P(LargeKernelsMatrix, Groups) {
  check(std::array{heads(1, 1), heads(2, 2)}, [](const auto& x) { kernels::group_sum(x[0], x[1], 0.5); });
  check(std::array{heads(2, 1), heads(1, 2)}, [](const auto& x) { kernels::group_spread(x[0], x[1], 0.5); });
}

TEST_P(LargeSlowKernelsMatrix, CrossEntropy) {
  const Tensor w = random({3, width}, 1);
  const Tensor targets = random_ids({few}, GetParam(), 2, -1, 3);
  check(std::array{column(DType::f64, 0), column(DType::f64, 0), rows(3), Huge(targets)},
        [&](const auto& x) { kernels::cross_entropy_forward(x[0], x[1], x[2], w, x[3]); });
  check(std::array{zeros(), column(DType::f64, 1.5), rows(3), Huge(targets)},
        [&](const auto& x) { kernels::cross_entropy_backward(x[0], {}, x[1], x[2], w, x[3]); });
}

TEST_P(LargeKernelsMatrix, BlockPool) {
  constexpr std::int64_t block = 128, means = few / block;
  const Huge x = rows(1), document = column(DType::i64, 0);
  const SparseTensor mean({all_rows / block, width}, DType::f32,
                          GetParam());  // not twice the same: ref adds up in place
  const Tensor expected({means, width}, DType::f32, GetParam());
  kernels::block_mean(mean, x.all(), document.all(), block);
  kernels::block_mean(expected, x.few_rows(), document.few_rows(), block);
  std::int64_t wrong = 0;
  for (std::int64_t b = 0; b < all_rows / block; b += means)
    wrong += !same_bits(mean.view().rows(b, b + means), expected);
  EXPECT_EQ(wrong, 0);
  check(std::array{rows(1), Huge(random({means, width}, 2)), column(DType::i64, 0)},
        [](const auto& v) { kernels::block_mean_backward(v[0], v[1], v[2], block); });
}

TEST_P(LargeSlowKernelsMatrix, Dropout) {
  const Tensor index({few}, DType::i64, GetParam());
  for (std::int64_t t = 0; t < few; ++t) index.as<std::int64_t>()[t] = (std::int64_t(1) << 33) + t;
  check(std::array{rows(1), Huge(index)}, [](const auto& x) {
    kernels::apply_dropout(x[0], x[1].reshape({1, x[1].dim(0)}), 0.25, 9);
  });
}

TEST_P(LargeSlowKernelsMatrix, PositionMlp) {
  const Tensor alpha = random({2, 2}, 1), up = random({1, 2}, 2), down = random({2, 1}, 3);
  check(std::array{heads(2, 4), heads(2, 5), heads(2, 6), Huge(random({few, 1}, 7))},
        [&](const auto& x) { kernels::position_mlp_forward(x[0], x[1], x[2], x[3], alpha, up, down); });
}

std::string name_of_device(const testing::TestParamInfo<Device>& info) { return kernels::name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(On, LargeKernelsMatrix, testing::Values(Device::ref, Device::cpu), name_of_device);
INSTANTIATE_TEST_SUITE_P(On, LargeSlowKernelsMatrix, testing::Values(Device::cpu), name_of_device);

}  // namespace
}  // namespace capstan::tests
