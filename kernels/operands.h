#pragma once
// What every operation checks before it runs: one device, one type, the shapes of its header comment.

#include <string_view>

#include "kernels/tensor.h"

namespace capstan::kernels {

/// The operands of one call. The first names the device and the floating-point type; the others must agree with it.
class Operands {
 public:
  Operands(std::string_view operation, const View& first)
      : operation_(operation), device_(first.device()), type_(first.type()) {
    CAPSTAN_CHECK(first, "{}: the first operand is absent", operation);
    const bool computable = type_ == DType::f32 || type_ == (device_ == Device::ref ? DType::f64 : DType::bf16);
    CAPSTAN_CHECK(computable, "{}: {} is not computed on {}", operation, name_of(type_), name_of(device_));
  }
  void check(std::string_view name, const View& view, const Shape& shape) const { check(name, view, shape, type_); }
  /// For sums, which are wide beside narrow values.
  void check_wide(std::string_view name, const View& view, const Shape& shape) const {
    check(name, view, shape, wide(type_));
  }
  void check(std::string_view name, const View& view, const Shape& shape, DType type) const {
    CAPSTAN_CHECK(view, "{}: {} is absent", operation_, name);
    CAPSTAN_CHECK(view.device() == device_, "{}: {} is on {}, not on {}", operation_, name, name_of(view.device()),
                  name_of(device_));
    CAPSTAN_CHECK(view.type() == type, "{}: {} is {}, not {}", operation_, name, name_of(view.type()), name_of(type));
    CAPSTAN_CHECK(view.shape() == shape, "{}: {} is {}, not {}", operation_, name, view.shape().text(), shape.text());
  }
  /// For gradients that a caller may leave out.
  void check_if_present(std::string_view name, const View& view, const Shape& shape) const {
    if (view) check(name, view, shape);
  }

 private:
  std::string_view operation_;
  Device device_;
  DType type_;
};

}  // namespace capstan::kernels
