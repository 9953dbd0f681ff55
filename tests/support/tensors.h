#pragma once
// Tensors for tests: random ones that depend on (seed, index) only, and the ways to compare two.

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::tests {

/// Pure functions of (seed, index), so that any part of a tensor can be made anywhere.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index);
double uniform(std::uint64_t seed, std::uint64_t index);  ///< [0, 1)
double normal(std::uint64_t seed, std::uint64_t index);   ///< mean 0, variance 1

/// scale · normal, rounded to `grid` also in wider types: one seed gives the same numbers in every type (bf16: with that as the
/// grid) and on every device.
kernels::Tensor random_tensor(kernels::Shape shape, kernels::DType type, kernels::Device device, std::uint64_t seed,
                              double scale = 1, kernels::DType grid = kernels::DType::f32);
/// Ids in [low, high), i32.
kernels::Tensor random_ids(kernels::Shape shape, kernels::Device device, std::uint64_t seed, std::int32_t low,
                           std::int32_t high);
/// The given values, row major, cast to type.
kernels::Tensor tensor_of(kernels::Shape shape, kernels::DType type, kernels::Device device,
                          const std::vector<double>& values);
/// A copy, cast to another type and moved to another device.
kernels::Tensor converted(const kernels::View& view, kernels::DType type, kernels::Device device);
std::vector<double> values_of(const kernels::View& view);

bool same_bits(const kernels::View& a, const kernels::View& b);

/// Norm-wise: ‖got − expected‖₂ / ‖expected‖₂ (the absolute error where expected is all zero). Types may differ.
double relative_error(const kernels::View& got, const kernels::View& expected);

/// The rule for every f32 result (DESIGN §4): at most twice the error of a naive f32 implementation, both against f64. Where the
/// naive one is lucky (few operations, or sums in double), its error counts as `f32_floor` at least: 2 ulp, the rounding of a
/// handful of f32 operations, which no tolerance found by trial.
constexpr double f32_floor = 2.0 / (1 << 23);
double f32_bound(const kernels::View& naive, const kernels::View& exact);
/// The same for a result stored as `type`, naive in f32 from the same inputs: bf16 results are the naive ones rounded to it, and
/// their floor is the rounding of one store.
constexpr double bf16_floor = 1.0 / (1 << 9);
double stored_bound(kernels::DType type, const kernels::View& naive, const kernels::View& exact);

}  // namespace capstan::tests
