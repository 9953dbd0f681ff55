#pragma once
// Hand-written gradients against central differences.

#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::tests {

/// One input of a function and the gradient that backward claims for it: f64, on a device whose memory the host sees.
struct GradientInput {
  std::string name;
  kernels::View value, gradient;
};

/// The rule: the fourth-order central difference with step h = ε^(1/5) · max(1, |x|) has truncation and rounding errors of about
/// ε^(4/5) ≈ 3e-13 of the loss's scale each; 1e-8 leaves room for derivatives and sums much larger than the gradient itself.
constexpr double gradient_tolerance = 1e-8;

/// For each element of each input: changes it in place, calls loss() (which must compute a scalar from the current values), and
/// expects |difference quotient − gradient| ≤ tolerance · max over the input's gradients, at least tolerance · 1e-3.
/// At most `most_elements` per input, evenly spread, are tried.
void check_gradient(const std::vector<GradientInput>& inputs, const std::function<double()>& loss,
                    double tolerance = gradient_tolerance, std::int64_t most_elements = 200);

/// Σ weight · y: turns a tensor-valued function into a loss whose output gradient is `weight`.
double weighted_sum(const kernels::View& y, const kernels::View& weight);

}  // namespace capstan::tests
