#include "framework/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/files.h"
#include "framework/json.h"
#include "kernels/rotary.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

TEST(RotaryFrequencies, GoldenScalingsEqualThePublishedFormulas) {
  const auto cases = nlohmann::json::parse(framework::read_file(capstan::testing::golden("rotary/frequencies.json")));
  ASSERT_GE(cases.size(), 10u);
  for (const auto& c : cases) {
    framework::PositionConfig p;
    p.scaling = c["config"]["scaling"];
    p.theta = c["config"]["theta"];
    p.factor = c["config"]["factor"];
    const auto got =
        framework::rotary_frequencies(p, c["config"]["head_size"], c["config"]["original"], c["config"]["total"]);
    const auto expected = c["frequency"].get<std::vector<double>>();
    ASSERT_EQ(got.frequency.size(), expected.size());
    for (std::size_t f = 0; f < expected.size(); ++f)
      EXPECT_NEAR(got.frequency[f] / expected[f], 1, 1e-13) << c["config"] << " f " << f;
    EXPECT_NEAR(got.amplitude, c["amplitude"].get<double>(), 1e-15) << c["config"];
  }
}

TEST(RotaryFrequencies, NtkKeepsTheFirstAndStretchesTheLastByTheFactor) {
  framework::PositionConfig p, plain;
  p.scaling = "ntk";
  p.factor = 8;
  const auto a = framework::rotary_frequencies(p, 64, 4096, 32768),
             b = framework::rotary_frequencies(plain, 64, 4096, 32768);
  EXPECT_EQ(a.frequency.front(), b.frequency.front());
  EXPECT_NEAR(a.frequency.back() * 8 / b.frequency.back(), 1, 1e-13);
}

/// Phases at long range against long double; an f32 product would be off by 0.06 at a million.
TEST(RotaryFrequencies, PhasesAreExactAtAMillionTokens) {
  framework::PositionConfig p;
  const auto f = framework::rotary_frequencies(p, 16, 4096, 4096);
  const std::vector<std::int64_t> positions = {0, 255, 256, 257, 4095, 32767, 65535, 1000003};
  for (const kernels::Device device : {kernels::Device::ref, kernels::Device::cpu}) {
    kernels::Tensor position({8}, kernels::DType::i64, device), z({8, 1, 16}, kernels::DType::f32, device);
    std::copy(positions.begin(), positions.end(), position.as<std::int64_t>());
    kernels::rotary_phases(z, position, f.frequency, 1);
    for (int i = 0; i < 8; ++i)
      for (int k = 0; k < 8; ++k) {
        const long double angle = static_cast<long double>(positions[i]) * std::pow(10000.0L, -2.0L * k / 16.0L);
        EXPECT_NEAR(z.as<float>()[i * 16 + k], double(std::cos(angle)), 1e-6);
        EXPECT_NEAR(z.as<float>()[i * 16 + 8 + k], double(std::sin(angle)), 1e-6);
      }
  }
}

}  // namespace
}  // namespace capstan::tests
