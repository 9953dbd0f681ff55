#include "kernels/tensor.h"

#include <cstring>
#include <limits>

#include "kernels/device_cuda.h"
#include "kernels/memory.h"

namespace capstan::kernels {

std::int64_t size_of(DType type) {
  switch (type) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::i64: return 8;
    case DType::i32: return 4;
    case DType::u8: return 1;
  }
  return 0;
}

std::string name_of(DType type) {
  switch (type) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

std::string name_of(Device device) {
  switch (device) {
    case Device::ref: return "ref";
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
  }
  return "?";
}

namespace {

MemoryPlace place_of(Device device) { return device == Device::cuda ? MemoryPlace::gpu : MemoryPlace::host; }

void fill_bytes(void* memory, Device device, int byte, std::int64_t bytes) {
  if (bytes == 0) return;
  if (device == Device::cuda) fill_device_memory(memory, byte, bytes);
  else std::memset(memory, byte, std::size_t(bytes));
}

/// As many bytes as `to` has. On the host they may overlap.
void copy_bytes(const View& to, const View& from) {
  const bool to_gpu = to.device() == Device::cuda, from_gpu = from.device() == Device::cuda;
  const std::int64_t bytes = to.bytes();
  if (to_gpu && from_gpu) {
    const char *const a = static_cast<char*>(to.data()), *const b = static_cast<char*>(from.data());
    CAPSTAN_CHECK(a + bytes <= b || b + bytes <= a, "a copy of {} bytes on cuda overlaps itself", bytes);
    copy_device_memory(to.data(), from.data(), bytes, DeviceCopy::on_device);
  } else if (to_gpu || from_gpu) {
    copy_device_memory(to.data(), from.data(), bytes, to_gpu ? DeviceCopy::from_host : DeviceCopy::to_host);
  } else {
    std::memmove(to.data(), from.data(), std::size_t(bytes));
  }
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> extents) : Shape(std::vector<std::int64_t>(extents)) {}

Shape::Shape(const std::vector<std::int64_t>& extents) {
  CAPSTAN_CHECK(extents.size() <= max_rank, "a shape has at most {} extents, not {}", int(max_rank), extents.size());
  for (std::int64_t extent : extents) {
    CAPSTAN_CHECK(extent >= 0, "extent {} of axis {}", extent, rank_);
    extent_[rank_++] = extent;
  }
  elements();
}

std::int64_t Shape::operator[](int axis) const {
  const int at = axis < 0 ? axis + rank_ : axis;
  CAPSTAN_CHECK(at >= 0 && at < rank_, "axis {} of {}", axis, text());
  return extent_[at];
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis)
    CAPSTAN_CHECK(!__builtin_mul_overflow(product, extent_[axis], &product), "the elements of {} do not fit in 63 bits",
                  text());
  // Eight bytes are the widest element: what has a Shape has a number of bytes.
  CAPSTAN_CHECK(product <= std::numeric_limits<std::int64_t>::max() / 8, "the bytes of {} do not fit in 63 bits",
                text());
  return product;
}

bool Shape::operator==(const Shape& other) const { return rank_ == other.rank_ && extent_ == other.extent_; }

std::string Shape::text() const {
  std::string out = "[";
  for (int axis = 0; axis < rank_; ++axis) out += fmt::format("{}{}", axis ? ", " : "", extent_[axis]);
  return out + "]";
}

View View::rows(std::int64_t begin, std::int64_t end) const {
  CAPSTAN_CHECK(present_ && 0 <= begin && begin <= end && end <= dim(0), "rows {} to {} of {}", begin, end,
                shape_.text());
  std::vector<std::int64_t> extents;
  for (int axis = 0; axis < shape_.rank(); ++axis) extents.push_back(axis == 0 ? end - begin : shape_[axis]);
  const std::int64_t row = dim(0) == 0 ? 0 : bytes() / dim(0);
  return View(static_cast<char*>(data_) + begin * row, type_, device_, Shape(extents));
}

View View::operator[](std::int64_t index) const {
  const View row = rows(index, index + 1);
  std::vector<std::int64_t> extents;
  for (int axis = 1; axis < shape_.rank(); ++axis) extents.push_back(shape_[axis]);
  return row.reshape(Shape(extents));
}

View View::reshape(Shape shape) const {
  CAPSTAN_CHECK(present_ && shape.elements() == elements(), "{} as {}", shape_.text(), shape.text());
  return View(data_, type_, device_, shape);
}

void View::fill_zero() const { fill_bytes(data_, device_, 0, bytes()); }

void View::copy_from(const View& source) const {
  CAPSTAN_CHECK(source.type() == type_ && source.elements() == elements(), "copy {} {} into {} {}",
                name_of(source.type()), source.shape().text(), name_of(type_), shape_.text());
  if (bytes() == 0 || data_ == source.data()) return;
  copy_bytes(*this, source);
}

void copy_rows(Device device, void* to, std::int64_t to_pitch, const void* from, std::int64_t from_pitch,
               std::int64_t width, std::int64_t rows) {
  if (width == 0 || rows == 0) return;
  if (device == Device::cuda) return copy_device_rows(to, to_pitch, from, from_pitch, width, rows);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch,
                std::size_t(width));
}

Tensor::Tensor(Shape shape, DType type, Device device, Fill fill) {
  const std::int64_t bytes = shape.elements() * size_of(type);
  memory_ = {take_memory(bytes, place_of(device)), Free{device}};
  if (bytes > 0 && !memory_)
    fail(ExitCode::internal,
         "no memory for a tensor {} of {} bytes: use more ranks, a smaller micro-batch, or train.recompute",
         shape.text(), bytes);
  if (fill == Fill::zero) fill_bytes(memory_.get(), device, 0, bytes);
#ifndef NDEBUG
  if (bytes > 0 && fill == Fill::none && device != Device::cuda)
    std::memset(memory_.get(), 0xff, std::size_t(bytes));  // NaNs
#endif
  view_ = View(memory_.get(), type, device, shape);
}

void Tensor::Free::operator()(void* memory) const { give_memory(memory, place_of(device)); }

Tensor Tensor::clone() const {
  if (!view_) return {};
  return on_device(view_, view_.device());
}

Tensor zeros_like(const View& view) { return Tensor(view.shape(), view.type(), view.device()); }

Tensor on_device(const View& view, Device device) {
  Tensor copy(view.shape(), view.type(), device, Fill::none);
  copy.view().copy_from(view);
  return copy;
}

Tensor empty_like(const View& view) { return Tensor(view.shape(), view.type(), view.device(), Fill::none); }

}  // namespace capstan::kernels
