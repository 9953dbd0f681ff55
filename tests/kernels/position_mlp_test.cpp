#include "kernels/position_mlp.h"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

struct Inputs {
  Tensor z, p, gate, alpha, w_up, w_down, dz_next;
};

Inputs inputs(DType type, Device device, std::int64_t T, std::int64_t G, std::int64_t D, std::int64_t I) {
  const auto make = [&](Shape shape, std::uint64_t seed, double scale) {
    return random_tensor(shape, type, device, seed, scale);
  };
  return {make({T, G, D}, 1, 1), make({T, G, D}, 2, 1), make({T, I}, 3, 1),   make({G, G}, 4, 0.5),
          make({I, G}, 5, 0.5),  make({G, I}, 6, 0.5),  make({T, G, D}, 7, 1)};
}

struct Results {
  Tensor z_next, dz, dp, dgate, dalpha, dw_up, dw_down;
  PositionMlpGradients gradients() const { return {dz, dp, dgate, dalpha, dw_up, dw_down}; }
};

Results room(const Inputs& in) {
  return {zeros_like(in.z),     zeros_like(in.z),    zeros_like(in.z),     zeros_like(in.gate),
          zeros_like(in.alpha), zeros_like(in.w_up), zeros_like(in.w_down)};
}

Results run(const Inputs& in) {
  Results out = room(in);
  position_mlp_forward(out.z_next, in.z, in.p, in.gate, in.alpha, in.w_up, in.w_down);
  position_mlp_backward(out.gradients(), in.dz_next, in.z, in.p, in.gate, in.alpha, in.w_up, in.w_down);
  return out;
}

TEST(PositionMlp, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    // G = 1, I = 1: zc = z + 2 p = (5, 8); a = 3 zc; z' = zc + 0.5 · 4 a = 7 zc
    const auto make = [&](Shape shape, const std::vector<double>& values) {
      return tensor_of(shape, DType::f32, device, values);
    };
    Inputs in{make({1, 1, 2}, {1, 2}), make({1, 1, 2}, {2, 3}), make({1, 1}, {4}),      make({1, 1}, {2}),
              make({1, 1}, {3}),       make({1, 1}, {0.5}),     make({1, 1, 2}, {1, 1})};
    const Results out = run(in);
    EXPECT_EQ(values_of(out.z_next), (std::vector<double>{35, 56}));
    EXPECT_EQ(values_of(out.dz), (std::vector<double>{7, 7}));
    EXPECT_EQ(values_of(out.dp), (std::vector<double>{14, 14}));
    EXPECT_EQ(values_of(out.dgate), (std::vector<double>{0.5 * 3 * 13}));
    EXPECT_EQ(values_of(out.dalpha), (std::vector<double>{7 * 5}));
    EXPECT_EQ(values_of(out.dw_up), (std::vector<double>{2 * 13}));
    EXPECT_EQ(values_of(out.dw_down), (std::vector<double>{4 * 3 * 13}));
  }
}

TEST(PositionMlp, GradientsMatchDifferences) {
  const Inputs in = inputs(DType::f64, Device::ref, 3, 2, 4, 8);
  const Results out = run(in);
  check_gradient({{"z", in.z, out.dz},
                  {"p", in.p, out.dp},
                  {"gate", in.gate, out.dgate},
                  {"alpha", in.alpha, out.dalpha},
                  {"w_up", in.w_up, out.dw_up},
                  {"w_down", in.w_down, out.dw_down}},
                 [&] {
                   position_mlp_forward(out.z_next, in.z, in.p, in.gate, in.alpha, in.w_up, in.w_down);
                   return weighted_sum(out.z_next, in.dz_next);
                 });
}

TEST(PositionMlp, CpuAccuracy) {
  for (const auto& [T, G, D, I] : {std::tuple<int, int, int, int>{7, 3, 22, 12}, {130, 4, 64, 16}, {5, 1, 2, 4}}) {
    const Results exact = run(inputs(DType::f64, Device::ref, T, G, D, I)),
                  f32 = run(inputs(DType::f32, Device::ref, T, G, D, I));
    const Results cpu = run(inputs(DType::f32, Device::cpu, T, G, D, I));
    for (const auto tensor : {&Results::z_next, &Results::dz, &Results::dp, &Results::dgate, &Results::dalpha,
                              &Results::dw_up, &Results::dw_down})
      EXPECT_LE(relative_error(cpu.*tensor, exact.*tensor), f32_bound(f32.*tensor, exact.*tensor)) << T << " " << D;
  }
}

TEST(PositionMlp, AddsOverwritesAndLeavesOut) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Inputs in = inputs(DType::f32, device, 5, 2, 6, 8);
    const Results once = run(in), twice = run(in), frozen = room(in);
    position_mlp_backward(twice.gradients(), in.dz_next, in.z, in.p, in.gate, in.alpha, in.w_up, in.w_down);
    EXPECT_TRUE(same_bits(once.dp, twice.dp));
    EXPECT_TRUE(same_bits(once.dgate, twice.dgate));
    const std::vector<double> one = values_of(once.dz), two = values_of(twice.dz);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(two[i], 2 * one[i]);
    EXPECT_NEAR(twice.dw_down.as<float>()[0], 2 * once.dw_down.as<float>()[0], 1e-4);
    position_mlp_backward({frozen.dz, frozen.dp, frozen.dgate, {}, {}, {}}, in.dz_next, in.z, in.p, in.gate, in.alpha,
                          in.w_up, in.w_down);
    EXPECT_TRUE(same_bits(frozen.dz, once.dz));
    EXPECT_TRUE(same_bits(frozen.dp, once.dp));
  }
}

TEST(PositionMlp, RowsDoNotDependOnOtherRows) {
  const Inputs in = inputs(DType::f32, Device::cpu, 9, 3, 22, 12);
  const Results all = run(in), one = room(in);
  for (std::int64_t t = 0; t < 9; ++t) {
    const auto row = [&](const Tensor& tensor) { return tensor.view().rows(t, t + 1); };
    position_mlp_forward(row(one.z_next), row(in.z), row(in.p), row(in.gate), in.alpha, in.w_up, in.w_down);
    position_mlp_backward({row(one.dz), row(one.dp), row(one.dgate), {}, {}, {}}, row(in.dz_next), row(in.z), row(in.p),
                          row(in.gate), in.alpha, in.w_up, in.w_down);
  }
  for (const auto tensor : {&Results::z_next, &Results::dz, &Results::dp, &Results::dgate})
    EXPECT_TRUE(same_bits(all.*tensor, one.*tensor));
}

TEST(PositionMlp, ComplexMagnitude) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const MagnitudeSum of = complex_magnitude(tensor_of({1, 1, 4}, DType::f32, device, {3, 0, 4, 1}));  // 3 + 4i, i
    EXPECT_EQ(of.sum, 6);
    EXPECT_EQ(of.max, 5);
    EXPECT_EQ(of.count, 2);
  }
}

}  // namespace
}  // namespace capstan::tests
