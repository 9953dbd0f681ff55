#include "kernels/simd_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/flush_denormals.h"
#include "kernels/isa.h"
#include "kernels/terms/fire_lanes.h"

namespace capstan::tests {
namespace {

using namespace kernels;

/// The instruction sets of this machine.
std::vector<Isa> usable() {
  std::vector<Isa> sets;
  for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::portable})
    if (isa >= best_isa()) sets.push_back(isa);
  return sets;
}

/// f of evenly spaced arguments, in a loop that the compiler vectorises.
template <class F> std::vector<float> evaluated(Isa isa, const std::vector<float>& x, F f) {
  std::vector<float> y(x.size());
  const float* const X = x.data();
  float* const Y = y.data();
  const std::size_t n = x.size();
  on_isa(
      isa, [=]() __attribute__((always_inline)) {
        for (std::size_t i = 0; i < n; ++i) Y[i] = f(X[i]);
      });
  return y;
}

std::vector<float> spaced(float low, float high) {
  constexpr int count = 100003;
  std::vector<float> x;
  for (int i = 0; i < count; ++i) x.push_back(low + (high - low) * static_cast<float>(i) / (count - 1));
  return x;
}

TEST(SimdMath, ExpWithinTwoUlp) {
  const std::vector<float> x = spaced(-87, 88);
  for (const Isa isa : usable()) {
    const std::vector<float> y = evaluated(
        isa, x, [](float v) __attribute__((always_inline)) { return fast_exp(v); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      ASSERT_LE(std::abs(y[i] - exact), 2 * ulp) << x[i] << " on " << name_of(isa);
    }
  }
}

TEST(SimdMath, ExpAtTheEnds) {
  const float infinity = INFINITY;
  EXPECT_EQ(fast_exp(0.0f), 1);
  EXPECT_GT(fast_exp(-87.33f), 1.17549435e-38f);
  for (const float x : {-87.34f, -88.0f, -100.0f, -1e30f, -infinity}) EXPECT_EQ(fast_exp(x), 0) << x;
  EXPECT_EQ(fast_exp(infinity), infinity);
}

TEST(SimdMath, SigmoidKeepsRelativeAccuracy) {
  const std::vector<float> x = spaced(-87, 87);
  for (const Isa isa : usable()) {
    const std::vector<float> y = evaluated(
        isa, x, [](float v) __attribute__((always_inline)) { return fast_sigmoid(v); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = 1 / (1 + std::exp(-static_cast<double>(x[i])));
      ASSERT_LE(std::abs(y[i] - exact), exact * (std::abs(x[i]) + 4) * 0x1p-23) << x[i] << " on " << name_of(isa);
    }
  }
  EXPECT_EQ(fast_sigmoid(-INFINITY), 0);
  EXPECT_EQ(fast_sigmoid(INFINITY), 1);
}

TEST(SimdMath, NormalKeepsRelativeAccuracy) {
  const std::vector<float> x = spaced(-13, 13);
  for (const Isa isa : usable()) {
    const std::vector<float> y = evaluated(
        isa, x, [](float v) __attribute__((always_inline)) { return fast_normal(v, fast_bell(v)); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double at = x[i], exact = 0.5 * std::erfc(-at / std::sqrt(2.0));
      ASSERT_LE(std::abs(y[i] - exact), exact * (at * at / 2 + 6) * 0x1p-23) << x[i] << " on " << name_of(isa);
    }
  }
  EXPECT_EQ(fast_normal(-INFINITY, fast_bell(-INFINITY)), 0);
  EXPECT_EQ(fast_normal(INFINITY, fast_bell(INFINITY)), 1);
}

TEST(SimdMath, LogWithinTwoUlp) {
  std::vector<float> x = spaced(1, 3);
  for (const float v : spaced(0, 63)) x.push_back(std::exp2(v));  // distances reach 2^63
  for (const Isa isa : usable()) {
    const std::vector<float> y = evaluated(
        isa, x, [](float v) __attribute__((always_inline)) { return cpu::fast_log(v); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::log(static_cast<double>(x[i]));
      const double ulp = exact > 0 ? std::ldexp(1.0, std::ilogb(exact) - 23) : 0;
      ASSERT_LE(std::abs(y[i] - exact), 2 * ulp) << x[i] << " on " << name_of(isa);
    }
  }
}

TEST(SimdMath, LanesSumAndMaximum) {
  for (std::int64_t n = 0; n < 70; ++n) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>((i * 37) % 71) - 50);
    double sum = 0;
    float most = -INFINITY;
    for (const float value : x) {
      sum += value;
      most = std::max(most, value);
    }
    const float* const X = x.data();
    for (const Isa isa : usable()) {
      on_isa(
          isa, [&]() __attribute__((always_inline)) {
            EXPECT_EQ(lane_sum(
                          n, [=](std::int64_t i) __attribute__((always_inline)) { return X[i]; }),
                      sum)
                << n;  // integers: exact
            EXPECT_EQ(lane_max(X, n), most) << n;
          });
    }
  }
}

TEST(Isa, HasANameAndIsUsable) {
  EXPECT_FALSE(usable().empty());
  EXPECT_EQ(name_of(Isa::avx2), "avx2");
}

TEST(FlushDenormals, OfTheCallingThread) {
  const unsigned before = __builtin_ia32_stmxcsr();
  volatile float smallest = 1.17549435e-38f;
  EXPECT_NE(smallest / 2, 0);
  flush_denormals();
  EXPECT_EQ(smallest / 2, 0);
  __builtin_ia32_ldmxcsr(before);
}

}  // namespace
}  // namespace capstan::tests
