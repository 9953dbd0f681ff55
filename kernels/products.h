#pragma once
// Matrix products on `cpu`, for the operations that are made of them.

#include <algorithm>
#include <cstdint>

#include "kernels/matrix.h"

namespace capstan::kernels::cpu {

using kernels::Matrix, kernels::matrix, kernels::transposed;

/// How two bf16 matrices are multiplied. `native`: by oneDNN's bf16 primitives. `widened`: blocks of them are converted to f32 in
/// the cache, which is the faster way wherever there is no matrix unit (AMX).
enum class NarrowProducts : std::uint8_t { native, widened };
NarrowProducts best_narrow_products();

/// c (+)= a b, summed in f32 and rounded once.  a and b of one type; c of that type, or f32; not transposed.
/// The bits of a row of c depend on that row of a and on b only, if a is not transposed: see products.cpp.
void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into,
              NarrowProducts narrow = best_narrow_products());

}  // namespace capstan::kernels::cpu
