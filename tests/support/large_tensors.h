#pragma once
// Views of more than 2^32 elements on a machine of ordinary size: address space that is memory only where it is
// written.

#include <cstdint>

#include "kernels/tensor.h"

namespace capstan::tests {

/// A view [rows, …] that reads zero wherever nobody wrote.
class SparseTensor {
 public:
  SparseTensor(kernels::Shape shape, kernels::DType type, kernels::Device device);
  ~SparseTensor();
  SparseTensor(SparseTensor&&) = delete;

  const kernels::View& view() const { return view_; }
  operator const kernels::View&() const { return view_; }

 private:
  void* memory_ = nullptr;
  kernels::View view_;
};

/// A view [count · n, …] whose first (count - 1) n rows are one and the same memory of n rows, over and over; the last
/// n have their own. Both begin as a copy of `rows` [n, …], whose bytes must be whole pages.
class RepeatedTensor {
 public:
  RepeatedTensor(const kernels::View& rows, std::int64_t count);
  ~RepeatedTensor();
  RepeatedTensor(RepeatedTensor&&) = delete;

  const kernels::View& view() const { return view_; }
  operator const kernels::View&() const { return view_; }
  kernels::View repeated() const { return view_.rows(0, rows_); }
  kernels::View last() const { return view_.rows(view_.dim(0) - rows_, view_.dim(0)); }

 private:
  void* memory_ = nullptr;
  std::int64_t rows_;
  kernels::View view_;
};

}  // namespace capstan::tests
