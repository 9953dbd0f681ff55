// Operations on single elements and on columns, on the emulated GPU: the cpu's bits.

#include "kernels/elementwise.h"

#include <limits>

#include "tests/simt/device_calls.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using Views = std::vector<View>;

class SimtElementwise : public OnGpu {};

const std::vector<std::int64_t> sizes{0, 1, 3, 8, 40, 43, 64, 1000, 2051};

/// y += x and y = x between all types.
Call both(std::int64_t n, Stored y, Stored x) {
  return {{out({n}, y), out({n}, y), in({n}, 1, x)}, [](const Views& v) {
            add(v[0], v[2]);
            convert(v[1], v[2]);
          }};
}

TEST_F(SimtElementwise, AddConvertScale) {
  for (const std::int64_t n : sizes) {
    for (const Stored y : {Stored::value, Stored::wide})
      for (const Stored x : {Stored::value, Stored::wide}) {
        expect_as_on_cpu(both(n, y, x), "add, convert " + std::to_string(n));
        expect_accurate(both(n, y, x), "add, convert " + std::to_string(n));
      }
    const Call scaled{{out({n})}, [](const Views& v) { scale(v[0], 1 / 3.0); }};
    expect_as_on_cpu(scaled, "scale");
    expect_accurate(scaled, "scale");
  }
}

// Rows that begin anywhere are not read in packs.
TEST_F(SimtElementwise, AwayFromThe16Bytes) {
  const Call shifted{{out({5, 7}), in({5, 7})}, [](const Views& v) {
                       add(v[0].rows(1, 4), v[1].rows(2, 5));
                       scale(v[0].rows(3, 5), 0.5);
                     }};
  expect_as_on_cpu(shifted, "shifted");
}

// More elements than one pass of the grid takes.
TEST_F(SimtElementwise, ManyElements) {
  const std::int64_t n = 8192 * 256 * 8 + 3;
  const Tensor y(Shape{n}, DType::u8, Device::cuda, Fill::none), x(Shape{n}, DType::u8, Device::cuda);
  take_columns(y.view().reshape({1, n}), x.view().reshape({1, n}), 0);
  EXPECT_EQ(host_values<std::uint8_t>(y), std::vector<std::uint8_t>(std::size_t(n)));
}

Call groups(std::int64_t T, std::int64_t H, std::int64_t G, std::int64_t D) {
  return {{out({T, G, D}), in({T, H, D}), out({T, H, D}), in({T, G, D})}, [](const Views& v) {
            group_sum(v[0], v[1], 0.3);
            group_spread(v[2], v[3], 0.3);
          }};
}

TEST_F(SimtElementwise, Groups) {
  for (const std::int64_t D : {1, 3, 8, 40, 43, 64}) {
    for (const auto& [T, H, G] : {std::array{0, 4, 2}, {1, 1, 1}, {3, 6, 2}, {5, 8, 8}, {2, 12, 3}}) {
      expect_as_on_cpu(groups(T, H, G, D), "groups");
      expect_accurate(groups(T, H, G, D), "groups");
    }
  }
  expect_same_bits(groups(3, 6, 2, 40));
}

TEST_F(SimtElementwise, Columns) {
  struct Case {
    std::int64_t width, whole, begin;
  };
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const auto& [width, whole, begin] : {Case{0, 3, 1}, {1, 1, 0}, {3, 8, 5}, {8, 40, 16}, {43, 1000, 64}})
      for (const std::int64_t rows : {0, 1, 5}) {
        const auto at = [&](std::int64_t columns, std::int64_t shift) {
          std::vector<double> values;
          for (std::int64_t i = 0; i < rows * columns; ++i) values.push_back(double((i + shift) % 117));
          return tensor_of({rows, columns}, type, Device::cpu, values);
        };
        const Tensor part = at(width, 3), all = at(whole, 50), gpu_part = on_device(part, Device::cuda),
                     gpu_all = on_device(all, Device::cuda);
        put_columns(all, part, begin);
        put_columns(gpu_all, gpu_part, begin);
        EXPECT_TRUE(same_bits(on_device(gpu_all, Device::cpu), all)) << name_of(type) << " " << width;
        gpu_part.view().fill_zero();
        take_columns(gpu_part, gpu_all, begin);
        EXPECT_TRUE(same_bits(on_device(gpu_part, Device::cpu), part)) << name_of(type) << " " << width;
      }
}

TEST_F(SimtElementwise, AllFinite) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : sizes) {
      const Tensor x = random_tensor({n}, type, Device::cpu, 1);
      EXPECT_TRUE(all_finite(on_device(x, Device::cuda)));
      if (n == 0) continue;
      for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()})
        for (const std::int64_t at : {std::int64_t(0), n / 2, n - 1}) {
          const Tensor spoiled = x.clone();
          spoiled.view().rows(at, at + 1).copy_from(tensor_of({1}, type, Device::cpu, {bad}));
          EXPECT_FALSE(all_finite(on_device(spoiled, Device::cuda))) << n << " " << at;
        }
    }
}

}  // namespace
}  // namespace capstan::tests
