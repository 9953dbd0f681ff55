// Rows into lanes and back, entry by entry.

#include "kernels/attention_rows_cpu.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/isa.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Into;
using kernels::Isa;
using kernels::Tensor;

constexpr std::int64_t heads = 3, head = 1, begin = 2;

struct Case {
  std::int64_t rows, columns;
  int lanes;
};

/// Shapes that break registers of 4, 8 and 16, in every instruction set of this machine.
template <class Body> void for_each_case(const Body& body) {
  for (Isa isa = Isa::portable; isa >= kernels::best_isa(); isa = Isa(int(isa) - 1)) {
    const kernels::ForcedIsa forced(isa);
    for (const std::int64_t columns : {1, 5, 8, 16, 23, 40, 64, 65})
      for (const Case& c :
           {Case{1, columns, 16}, {3, columns, 16}, {16, columns, 16}, {63, columns, 64}, {64, columns, 64}}) {
        SCOPED_TRACE(name_of(isa) + ": " + std::to_string(c.rows) + " rows of " + std::to_string(columns));
        body(c);
      }
    if (isa == Isa::avx512) break;
  }
}

TEST(AttentionRows, AreGatheredWithZerosBeyond) {
  for (const DType type : {DType::f32, DType::bf16})
    for_each_case([&](const Case& c) {
      const Tensor x = random_tensor({begin + c.rows + 1, heads, c.columns}, type, Device::cpu, 7);
      const Tensor wide = converted(x, DType::f32, Device::cpu);
      const std::int64_t padded = c.columns + 5, stride = kernels::cpu::row_stride(padded);
      std::vector<float> x_t(std::size_t(padded * c.lanes), -1), also(std::size_t(stride * c.lanes), -1);
      kernels::cpu::gather_rows(x_t.data(), also.data(), x, begin, c.rows, head, padded, c.lanes, 0.75f);
      for (std::int64_t lane = 0; lane < c.lanes; ++lane)
        for (std::int64_t n = 0; n < padded; ++n) {
          const bool inside = lane < c.rows && n < c.columns;
          const float expected =
              inside ? 0.75f * wide.as<float>()[((begin + lane) * heads + head) * c.columns + n] : 0.0f;
          ASSERT_EQ(x_t[std::size_t(n * c.lanes + lane)], expected) << lane << ", " << n;
          ASSERT_EQ(also[std::size_t(lane * stride + n)], expected) << lane << ", " << n;
        }
    });
}

TEST(AttentionRows, AreScatteredAndNothingElseIsTouched) {
  for (const Into into : {Into::overwrite, Into::add})
    for_each_case([&](const Case& c) {
      const Tensor x_t = random_tensor({c.columns, c.lanes}, DType::f32, Device::cpu, 8);
      const Tensor before = random_tensor({begin + c.rows + 1, heads, c.columns}, DType::f32, Device::cpu, 9);
      const Tensor after = before.clone();
      kernels::cpu::scatter_rows(after, x_t.as<float>(), begin, c.rows, head, c.lanes, 0.5f, into);
      for (std::int64_t row = 0; row < before.shape()[0]; ++row)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t n = 0; n < c.columns; ++n) {
            const std::int64_t at = (row * heads + h) * c.columns + n, lane = row - begin;
            float expected = before.as<float>()[at];
            if (h == head && lane >= 0 && lane < c.rows)
              expected = (into == Into::add ? expected : 0.0f) + 0.5f * x_t.as<float>()[n * c.lanes + lane];
            ASSERT_EQ(after.as<float>()[at], expected) << row << ", " << h << ", " << n;
          }
    });
}

}  // namespace
}  // namespace capstan::tests
