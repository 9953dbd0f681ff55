#include "tests/support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/host_view.h"

namespace capstan::tests {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

namespace {

/// Calls f(T{}) with the element type of the view.
template <class F> void with_element(DType type, F&& f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(kernels::BFloat16{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::u8: return f(std::uint8_t{});
  }
}

template <class T> T element_of(double value) {
  if constexpr (std::is_same_v<T, kernels::BFloat16>) return kernels::to_bfloat16(float(value));
  else return static_cast<T>(value);
}

template <class T> double value_of(T element) {
  if constexpr (std::is_same_v<T, kernels::BFloat16>) return kernels::to_float(element);
  else return static_cast<double>(element);
}

void assign(const View& view, const std::vector<double>& values) {
  CAPSTAN_CHECK(view.elements() == std::ssize(values), "{} values for {}", values.size(), view.shape().text());
  kernels::update_on_host(view, [&](const View& host) {
    with_element(view.type(), [&](auto zero) {
      using T = decltype(zero);
      std::transform(values.begin(), values.end(), host.as<T>(), [](double value) { return element_of<T>(value); });
    });
  });
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  // SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014) over a counter; the seed is mixed first so that
  // neighbouring seeds give unrelated sequences.
  const auto mix = [](std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  return mix(mix(seed * golden + 1) + index * golden);
}

double uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(random_bits(seed, index) >> 11) * 0x1p-53;
}

double normal(std::uint64_t seed, std::uint64_t index) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(seed, 2 * index)));
  return radius * std::cos(2 * std::numbers::pi * uniform(seed, 2 * index + 1));
}

Tensor random_tensor(Shape shape, DType type, Device device, std::uint64_t seed, double scale, DType grid) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(scale * normal(seed, i));
  if (grid == DType::bf16)
    for (double& value : values) value = kernels::to_float(kernels::to_bfloat16(static_cast<float>(value)));
  return tensor_of(shape, type, device, values);
}

Tensor random_ids(Shape shape, Device device, std::uint64_t seed, std::int32_t low, std::int32_t high) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::floor(low + uniform(seed, i) * (high - low));
  return tensor_of(shape, DType::i32, device, values);
}

Tensor tensor_of(Shape shape, DType type, Device device, const std::vector<double>& values) {
  Tensor tensor(shape, type, device);
  assign(tensor, values);
  return tensor;
}

Tensor converted(const View& view, DType type, Device device) {
  return tensor_of(view.shape(), type, device, values_of(view));
}

std::vector<double> values_of(const View& view) {
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  const kernels::HostView host(view);
  with_element(view.type(), [&](auto zero) {
    using T = decltype(zero);
    std::transform(host.as<T>(), host.as<T>() + view.elements(), values.begin(),
                   [](T value) { return value_of(value); });
  });
  return values;
}

bool same_bits(const View& a, const View& b) {
  CAPSTAN_CHECK(a.type() == b.type() && a.elements() == b.elements(), "{} against {}", a.shape().text(),
                b.shape().text());
  return a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

double relative_error(const View& got, const View& expected) {
  CAPSTAN_CHECK(got.elements() == expected.elements(), "{} against {}", got.shape().text(), expected.shape().text());
  const std::vector<double> a = values_of(got), b = values_of(expected);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

double f32_bound(const View& naive, const View& exact) { return 2 * std::max(relative_error(naive, exact), f32_floor); }

double stored_bound(DType type, const View& naive, const View& exact) {
  if (type != DType::bf16) return f32_bound(naive, exact);
  return 2 * std::max(relative_error(converted(naive, DType::bf16, Device::ref), exact), bf16_floor);
}

}  // namespace capstan::tests
