#include "parallel/parcel.h"

namespace capstan::parallel {

using kernels::DType;
using kernels::Shape;

namespace {

constexpr std::int64_t alignment = 16;  // of what GPUs load at once

std::int64_t padded(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::int64_t rows_of(const Field& field, const SequenceLayout& layout, const Steps& steps, const Part& part) {
  return layout.chunks()[part.chunk].steps(steps.of(field.per));
}

/// [B, rows, …] of the part.
Shape part_shape(const Field& field, std::int64_t rows, const Part& part) {
  const Shape& whole = field.whole.shape();
  std::vector<std::int64_t> extents{whole[0], rows};
  for (int axis = 2; axis < whole.rank(); ++axis) extents.push_back(whole[axis]);
  if (field.heads) {
    CAPSTAN_CHECK(whole.rank() > 2 && whole[2] % part.groups == 0, "{} in {} head groups", whole.text(), part.groups);
    extents[2] /= part.groups;
  }
  return Shape(extents);
}

enum class Way : std::uint8_t { into_part, out_of_part };

/// Copies what the part shares with the local array: of each sequence one run of rows, or of each row its heads.
void copy_shared(const View& whole, const View& part_view, const Field& field, std::int64_t first, const Part& part,
                 Way way) {
  const std::int64_t batch = part_view.dim(0), rows = part_view.dim(1);
  if (batch == 0 || rows == 0) return;
  const std::int64_t part_row = part_view.bytes() / (batch * rows), local_rows = whole.dim(1),
                     local_row = whole.bytes() / (batch * local_rows);
  const std::int64_t at = field.heads ? part.group * part_row : 0;
  auto *local = static_cast<std::uint8_t*>(whole.data()), *packed = static_cast<std::uint8_t*>(part_view.data());
  for (std::int64_t b = 0; b < batch; ++b) {
    std::uint8_t *here = local + (b * local_rows + first) * local_row + at, *there = packed + b * rows * part_row;
    const bool one_run = part_row == local_row;
    const std::int64_t width = one_run ? rows * part_row : part_row, runs = one_run ? 1 : rows;
    if (way == Way::into_part) kernels::copy_rows(whole.device(), there, part_row, here, local_row, width, runs);
    else kernels::copy_rows(whole.device(), here, local_row, there, part_row, width, runs);
  }
}

}  // namespace

std::int64_t Parcel::bytes(const Fields& like, const SequenceLayout& layout, const Steps& steps, const Part& part) {
  std::int64_t sum = 0;
  for (const Field& field : like)
    if (field.whole)
      sum += padded(part_shape(field, rows_of(field, layout, steps, part), part).elements() *
                    kernels::size_of(field.whole.type()));
  return sum;
}

Parcel Parcel::packed(const Fields& like, const SequenceLayout& layout, const Steps& steps, const Part& part) {
  Parcel parcel;
  kernels::Device device = kernels::Device::ref;
  for (const Field& field : like)
    if (field.whole) device = field.whole.device();
  parcel.memory_ = Tensor({bytes(like, layout, steps, part)}, DType::u8, device);
  std::int64_t used = 0;
  for (const Field& field : like) {
    const std::int64_t rows = rows_of(field, layout, steps, part);
    parcel.rows_.push_back(rows);
    parcel.first_.push_back(0);
    if (!field.whole) {
      parcel.arrays_.emplace_back();
      continue;
    }
    const View& array = parcel.arrays_.emplace_back(static_cast<std::uint8_t*>(parcel.memory_.view().data()) + used,
                                                    field.whole.type(), device, part_shape(field, rows, part));
    used += padded(array.bytes());
  }
  return parcel;
}

Parcel Parcel::window(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part) {
  CAPSTAN_CHECK(may_be_window(part), "a window holds all heads, not group {} of {}", part.group, part.groups);
  Parcel parcel;
  for (const Field& field : fields) {
    parcel.arrays_.push_back(field.whole);
    parcel.first_.push_back(layout.local_offset(part.chunk, steps.of(field.per)));
    parcel.rows_.push_back(rows_of(field, layout, steps, part));
  }
  return parcel;
}

void Parcel::copy_from(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part) const {
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (fields[i].whole)
      copy_shared(fields[i].whole, arrays_[i], fields[i], layout.local_offset(part.chunk, steps.of(fields[i].per)),
                  part, Way::into_part);
}

void Parcel::copy_to(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part) const {
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (fields[i].whole)
      copy_shared(fields[i].whole, arrays_[i], fields[i], layout.local_offset(part.chunk, steps.of(fields[i].per)),
                  part, Way::out_of_part);
}

View Parcel::at(int field, std::int64_t b) const { return at(field, b, 0, rows_[std::size_t(field)]); }

View Parcel::at(int field, std::int64_t b, std::int64_t begin, std::int64_t end) const {
  const std::size_t i = std::size_t(field);
  return arrays_[i] ? arrays_[i][b].rows(first_[i] + begin, first_[i] + end) : View();
}

}  // namespace capstan::parallel
