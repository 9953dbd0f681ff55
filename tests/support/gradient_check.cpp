#include "tests/support/gradient_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/tensors.h"

namespace capstan::tests {

namespace {

/// (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h.
double difference_quotient(double& x, const std::function<double()>& loss) {
  const double kept = x;
  const double step = std::pow(std::numeric_limits<double>::epsilon(), 0.2) * std::max(1.0, std::abs(kept));
  const auto at = [&](double moved) {
    x = moved;
    return loss();
  };
  const double near = at(kept + step) - at(kept - step);
  const double far = at(kept + 2 * step) - at(kept - 2 * step);
  x = kept;
  return (8 * near - far) / (12 * step);
}

}  // namespace

void check_gradient(const std::vector<GradientInput>& inputs, const std::function<double()>& loss, double tolerance,
                    std::int64_t most_elements) {
  for (const GradientInput& input : inputs) {
    const std::int64_t count = input.value.elements();
    ASSERT_EQ(count, input.gradient.elements()) << input.name;
    double largest = 1e-3;
    for (const double gradient : values_of(input.gradient)) largest = std::max(largest, std::abs(gradient));
    const std::int64_t stride = std::max<std::int64_t>(1, (count + most_elements - 1) / most_elements);
    for (std::int64_t i = 0; i < count; i += stride) {
      const double expected = difference_quotient(input.value.as<double>()[i], loss);
      EXPECT_NEAR(input.gradient.as<double>()[i], expected, tolerance * largest)
          << "d" << input.name << "[" << i << "]";
    }
  }
}

double weighted_sum(const kernels::View& y, const kernels::View& weight) {
  const std::vector<double> a = values_of(y), b = values_of(weight);
  CAPSTAN_CHECK(a.size() == b.size(), "{} values, {} weights", a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace capstan::tests
