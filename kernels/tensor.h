#pragma once
// Buffers and views. A Tensor owns memory; a View borrows it and knows type, device and shape. Both are dense, row major.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/check.h"

namespace capstan::kernels {

/// Element types. f64 is computed on `ref` only, bf16 on `cpu` and `cuda` only. Integers carry token ids, global indices and
/// fixed-point sums.
enum class DType : std::uint8_t { f64, f32, bf16, i64, i32, u8 };

/// Where an operation runs. `ref`: naive, single thread, f32 and f64. `cpu`: SIMD and threads, f32 and bf16. `cuda`: the calling
/// thread's GPU, f32 and bf16; work is queued on the thread's stream, and its memory is not the host's to touch.
enum class Device : std::uint8_t { ref, cpu, cuda };

std::int64_t size_of(DType type);  ///< bytes
/// The type of sums, positions and gradients of weights beside values of `type`: f32 beside bf16, else the same.
constexpr DType wide(DType type) { return type == DType::bf16 ? DType::f32 : type; }
std::string name_of(DType type);
std::string name_of(Device device);

template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<std::int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::u8; };

/// Up to five extents. Extents may be zero; a Shape without extents is a scalar of one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(const std::vector<std::int64_t>& extents);
  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const;  ///< negative axes count from the end
  std::int64_t elements() const;            ///< product, checked against overflow
  bool operator==(const Shape& other) const;
  std::string text() const;  ///< "[3, 4]"

 private:
  static constexpr int max_rank = 5;
  std::array<std::int64_t, max_rank> extent_{};
  int rank_ = 0;
};

/// Borrowed memory. Copying a View copies no data. A default View is absent: `if (view)` is false.
class View {
 public:
  View() = default;
  View(void* data, DType type, Device device, Shape shape)
      : data_(data), type_(type), device_(device), shape_(shape), present_(true) {}

  explicit operator bool() const { return present_; }
  void* data() const { return data_; }
  DType type() const { return type_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(int axis) const { return shape_[axis]; }
  std::int64_t elements() const { return present_ ? shape_.elements() : 0; }
  std::int64_t bytes() const { return elements() * size_of(type_); }

  /// The elements as T, for code of the host; the type must match. A view on `cuda` is refused: see host_values.
  template <class T> T* as() const {
    CAPSTAN_CHECK(present_ && type_ == DTypeOf<T>::value && device_ != Device::cuda,
                  "view of {} on {} read as {} by the host", name_of(type_), name_of(device_),
                  name_of(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }

  View rows(std::int64_t begin, std::int64_t end) const;  ///< [begin, end) of the first axis
  View operator[](std::int64_t index) const;              ///< one entry of the first axis, which is dropped
  View reshape(Shape shape) const;                        ///< same elements, other extents
  void fill_zero() const;
  /// Same type and number of elements; devices may differ. On `cuda` this is queued like an operation; what comes to the host
  /// from there is waited for.
  void copy_from(const View& source) const;

 private:
  void* data_ = nullptr;
  DType type_ = DType::f32;
  Device device_ = Device::ref;
  Shape shape_;
  bool present_ = false;
};

/// What new memory holds: zeros, or anything (in debug builds NaNs, but on `cuda`), for what is overwritten at once.
enum class Fill : std::uint8_t { zero, none };

/// Owned memory (kernels/memory.h), 64-byte aligned, 256-byte on `cuda`. Moves, never copies by accident: see clone().
class Tensor {
 public:
  Tensor() = default;
  Tensor(Shape shape, DType type, Device device, Fill fill = Fill::zero);
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  explicit operator bool() const { return bool(view_); }
  const View& view() const { return view_; }
  operator const View&() const { return view_; }
  template <class T> T* as() const { return view_.as<T>(); }
  const Shape& shape() const { return view_.shape(); }
  Tensor clone() const;

 private:
  struct Free {
    Device device;
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  View view_;
};

/// Copies `rows` rows of `width` bytes, which begin `to_pitch` and `from_pitch` bytes from each other, on one device. On `cuda` queued.
void copy_rows(Device device, void* to, std::int64_t to_pitch, const void* from, std::int64_t from_pitch,
               std::int64_t width, std::int64_t rows);

/// Tensors of the same shape, type and device.
Tensor zeros_like(const View& view);
Tensor empty_like(const View& view);
/// A copy on another device (or the same).
Tensor on_device(const View& view, Device device);
/// The elements, wherever they lie; those on `cuda` are waited for.
template <class T> std::vector<T> host_values(const View& view) {
  std::vector<T> values(static_cast<std::size_t>(view.elements()));
  View(values.data(), DTypeOf<T>::value, Device::cpu, view.shape()).copy_from(view);
  return values;
}

/// Calls f(float{}) or f(double{}): the body of every `ref` kernel.
template <class F> void with_real(DType type, F&& f) {
  if (type == DType::f64) return f(double{});
  CAPSTAN_CHECK(type == DType::f32, "{} is not a floating-point type that kernels compute in", name_of(type));
  f(float{});
}

/// Calls f(float{}) or f(BFloat16{}), the types that `cpu` and `cuda` store values in: the body of their kernels.
template <class F> void with_stored(DType type, F&& f) {
  if (type == DType::bf16) return f(BFloat16{});
  CAPSTAN_CHECK(type == DType::f32, "{} is not a type that `cpu` and `cuda` compute with", name_of(type));
  f(float{});
}

/// One entry of an operation's device table: every operation calls pick(view, ref::op, cpu::op, cuda::op)(…).
template <class F> F* pick(const View& view, F* on_ref, F* on_cpu, F* on_cuda) {
  switch (view.device()) {
    case Device::ref: return on_ref;
    case Device::cpu: return on_cpu;
    case Device::cuda: return on_cuda;
  }
  return nullptr;
}

/// Whether an operation replaces its result or adds to what is there.
enum class Into : std::uint8_t { overwrite, add };

}  // namespace capstan::kernels
