#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

/// y += x. Same type and number of elements; y adds to.
void add(const View& y, const View& x);
/// y *= factor. y overwrites.
void scale(const View& y, double factor);
/// y[t, g] = factor Σ_{h in group g} x[t, h].  y [T, G, D] overwrites; x [T, H, D], group g = heads g·H/G … (g+1)·H/G - 1.
void group_sum(const View& y, const View& x, double factor);
/// x[t, h] = factor y[t, g(h)], the adjoint of group_sum.  x [T, H, D] overwrites; y [T, G, D].
void group_spread(const View& x, const View& y, double factor);
/// Columns [begin, begin + width) of the last axis, of any type: part [.., width] overwrites; whole [.., N].
void take_columns(const View& part, const View& whole, std::int64_t begin);
/// The same columns of whole overwritten with part.
void put_columns(const View& whole, const View& part, std::int64_t begin);
/// True if every element is finite.
bool all_finite(const View& x);

// The device entries behind these; arguments are checked before.
namespace ref {
decltype(kernels::add) add;
decltype(kernels::scale) scale;
decltype(kernels::group_sum) group_sum;
decltype(kernels::group_spread) group_spread;
decltype(kernels::take_columns) take_columns;
decltype(kernels::put_columns) put_columns;
decltype(kernels::all_finite) all_finite;
}  // namespace ref

namespace cpu {
decltype(kernels::add) add;
decltype(kernels::scale) scale;
decltype(kernels::group_sum) group_sum;
decltype(kernels::group_spread) group_spread;
decltype(kernels::take_columns) take_columns;
decltype(kernels::put_columns) put_columns;
decltype(kernels::all_finite) all_finite;
}  // namespace cpu

}  // namespace capstan::kernels
