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
    CAPSTAN_CHECK(is_computed(type_), "{}: {} is not computed on {}", operation, name_of(type_), name_of(device_));
  }
  void check(std::string_view name, const View& view, const Shape& shape) const { check(name, view, shape, type_); }
  /// For sums, positions and gradients of weights.
  void check_wide(std::string_view name, const View& view, const Shape& shape) const {
    check(name, view, shape, wide(type_));
  }
  /// For values that may also be kept as the sums that they are.
  void check_same_or_wide(std::string_view name, const View& view, const Shape& shape) const {
    check(name, view, shape, view && view.type() == wide(type_) ? wide(type_) : type_);
  }
  /// For values whose type is their own, narrow or wide.
  void check_any_width(std::string_view name, const View& view, const Shape& shape) const {
    const bool fits = view && is_computed(view.type()) && wide(view.type()) == wide(type_);
    check(name, view, shape, fits ? view.type() : type_);
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
  bool is_computed(DType type) const {
    return type == DType::f32 || type == (device_ == Device::ref ? DType::f64 : DType::bf16);
  }

  std::string_view operation_;
  Device device_;
  DType type_;
};

}  // namespace capstan::kernels
