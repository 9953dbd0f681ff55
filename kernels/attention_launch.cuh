#pragma once
// From a call to a kernel: the policy that its type and head size ask for, and what the kernels refuse.

#include <cstdint>
#include <type_traits>

#include "kernels/attention_arguments.cuh"
#include "kernels/attention_products.cuh"
#include "kernels/check.h"

namespace capstan::kernels::cuda::attention {

constexpr std::int64_t largest_depth = 128;

/// Calls f(policy) for the element type and the head size.
template <class F> void with_products(const View& q, F&& f) {
  const std::int64_t depth = q.dim(2);
  if (q.type() == DType::bf16) {
    if (depth <= 32) return f(Bf16Products<32>{});
    if (depth <= 64) return f(Bf16Products<64>{});
    return f(Bf16Products<128>{});
  }
  if (depth <= 32) return f(F32Products<32>{});
  if (depth <= 64) return f(F32Products<64>{});
  f(F32Products<128>{});
}

inline void check_rows(const char* name, const View& view) {
  CAPSTAN_CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % 16 == 0, "{} does not begin at 16 bytes", name);
}

/// What the GPU's kernels do not take.
inline void check_call(const QueryChunk& queries, const KeyChunk& keys) {
  const std::int64_t depth = queries.q.dim(2);
  if (queries.q.type() != DType::f32 && queries.q.type() != DType::bf16)
    fail(ExitCode::config, "attention on a GPU computes in f32 and bf16, not {}", name_of(queries.q.type()));
  if (depth > largest_depth || depth % 8 != 0)
    fail(ExitCode::config, "attention on a GPU takes head sizes that are multiples of 8 up to {}, not {}",
         largest_depth, depth);
  if (queries.q.dim(1) > 65535) fail(ExitCode::config, "attention on a GPU takes at most 65535 heads");
  check_rows("q", queries.q);
  check_rows("k", keys.k);
  check_rows("v", keys.v);
  if (keys.z) check_rows("z", keys.z);
}

}  // namespace capstan::kernels::cuda::attention
