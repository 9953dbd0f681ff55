#pragma once
// kernels/terms/interpolation.h on a GPU: the same numbers wherever it is written down, so no operation is left to the compiler to
// fuse or not.

#include <cuda_runtime.h>

#include <cstdint>

namespace capstan::kernels::cuda::attention {

/// A place in a table: between two entries, which are one at integers.
struct Place {
  int low, high;
  float weight;  ///< of `high`

  __device__ explicit Place(float place) {
    low = __float2int_rd(place);
    high = __float2int_ru(place);
    weight = __fadd_rn(place, -static_cast<float>(low));
  }
  __device__ float value(const float* table) const {
    return __fmaf_rn(weight, table[high], __fmul_rn(1 - weight, table[low]));
  }
  /// d value / d place; 0 at integers, so also where the place is clamped to an end of the table.
  __device__ float slope(const float* table) const { return table[high] - table[low]; }
};

/// A row table's gradient while a thread walks along the row: the two entries beside the last place are held back until the place
/// moves on, which it seldom does.
class RowBin {
 public:
  /// d_row[place] += value, of an interpolation.
  __device__ void add(float* d_row, const Place& at, float value) {
    if (at.low != low_) {
      flush(d_row);
      low_ = at.low;
    }
    below_ += (1 - at.weight) * value;
    if (at.weight > 0) above_ += at.weight * value;  // a NaN must not reach beyond the table
  }
  __device__ void flush(float* d_row) {
    if (low_ < 0) return;
    d_row[low_] += below_;
    if (above_ != 0) d_row[low_ + 1] += above_;
    below_ = above_ = 0;
  }

 private:
  int low_ = -1;
  float below_ = 0, above_ = 0;
};

}  // namespace capstan::kernels::cuda::attention
