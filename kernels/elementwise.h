#pragma once
#include "kernels/tensor.h"

namespace capstan::kernels {

// Values may be f32 or bf16 (on `ref` f32 or f64), one type per call where nothing else is said.

/// y += x. Same number of elements; y adds to. f32 and bf16 may meet.
void add(const View& y, const View& x);
/// y = x, rounded to the type of y. Same number of elements; y overwrites. Any two types that the device computes with.
void convert(const View& y, const View& x);
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
decltype(kernels::convert) convert;
decltype(kernels::scale) scale;
decltype(kernels::group_sum) group_sum;
decltype(kernels::group_spread) group_spread;
decltype(kernels::take_columns) take_columns;
decltype(kernels::put_columns) put_columns;
decltype(kernels::all_finite) all_finite;
}  // namespace ref

namespace cpu {
decltype(kernels::add) add;
decltype(kernels::convert) convert;
decltype(kernels::scale) scale;
decltype(kernels::group_sum) group_sum;
decltype(kernels::group_spread) group_spread;
decltype(kernels::take_columns) take_columns;
decltype(kernels::put_columns) put_columns;
decltype(kernels::all_finite) all_finite;
}  // namespace cpu

namespace cuda {
decltype(kernels::add) add;
decltype(kernels::convert) convert;
decltype(kernels::scale) scale;
decltype(kernels::group_sum) group_sum;
decltype(kernels::group_spread) group_spread;
decltype(kernels::take_columns) take_columns;
decltype(kernels::put_columns) put_columns;
decltype(kernels::all_finite) all_finite;
}  // namespace cuda

}  // namespace capstan::kernels
