#include "kernels/attention_rows_cpu.h"

#include <algorithm>
#include <utility>

#include "kernels/attention_lanes.h"
#include "kernels/isa.h"

namespace capstan::kernels::cpu {
namespace {

/// Blocks of `step` by `step` beside the diagonal of x [W][W] change places.
template <int W, int step, int... n>
[[gnu::always_inline]] inline void exchange(Reals<W>* x, std::integer_sequence<int, n...>) {
  const Ints<W> upper = {(n & step ? W + n - step : n)...}, lower = {(n & step ? W + n : n + step)...};
  for (int i = 0; i < W; ++i) {
    if (i & step) continue;
    const Reals<W> a = x[i], b = x[i + step];
    x[i] = __builtin_shuffle(a, b, upper);  // entries of a, and from W on of b
    x[i + step] = __builtin_shuffle(a, b, lower);
  }
}

/// x[i][n] ↔ x[n][i]; W is a power of two.
template <int W, int step = 1> [[gnu::always_inline]] inline void transpose(Reals<W>* x) {
  exchange<W, step>(x, std::make_integer_sequence<int, W>{});
  if constexpr (step * 2 < W) transpose<W, step * 2>(x);
}

/// The first `count` of W elements, times factor; zeros behind.
template <int W, class T>
[[gnu::always_inline]] inline void load_block(Reals<W>& out, const T* x, std::int64_t count, float factor) {
  alignas(64) float values[W] = {};
  if (count >= W)
    for (int n = 0; n < W; ++n) values[n] = to_float(x[n]) * factor;
  else
    for (int n = 0; n < count; ++n) values[n] = to_float(x[n]) * factor;
  out = lanes<W>(values);
}

/// Rows of one head: element [i, n] at first + i · stride + n.
template <class T> struct HeadRows {
  T* first;
  std::int64_t stride, rows, columns;

  HeadRows(const View& x, T* elements, std::int64_t begin, std::int64_t row_count, std::int64_t head)
      : first(elements + (begin * x.dim(1) + head) * x.dim(2)), stride(x.dim(1) * x.dim(2)), rows(row_count),
        columns(x.dim(2)) {}
};

/// W lanes and W entries from (lane, entry) on. Whole columns go by registers for any number of rows, so that a row's bits do
/// not depend on it.
template <int W, class T>
[[gnu::always_inline]] inline void gather_block(float* x_t, float* also, const HeadRows<const T>& x, std::int64_t lane,
                                                std::int64_t entry, std::int64_t entries, int lane_count,
                                                std::int64_t columns_p, float factor) {
  Reals<W> block[W];
  const std::int64_t columns = std::min<std::int64_t>(W, x.columns - entry);
  for (int i = 0; i < W; ++i) {
    block[i] = Reals<W>{};
    if (lane + i < x.rows) load_block<W>(block[i], x.first + (lane + i) * x.stride + entry, columns, factor);
    if (also && entries >= W) lanes<W>(also + (lane + i) * row_stride(columns_p) + entry) = block[i];
    else if (also)
      for (int n = 0; n < entries; ++n) also[(lane + i) * row_stride(columns_p) + entry + n] = block[i][n];
  }
  transpose<W>(block);
  for (int n = 0; n < entries; ++n) lanes<W>(x_t + (entry + n) * lane_count + lane) = block[n];
}

template <int W, class T>
[[gnu::always_inline]] inline void gather(float* x_t, float* also, const HeadRows<const T>& x, std::int64_t columns_p,
                                          int lane_count, float factor) {
  for (std::int64_t lane = 0; lane < lane_count; lane += W)
    for (std::int64_t entry = 0; entry < columns_p; entry += W)
      gather_block<W>(x_t, also, x, lane, entry, std::min<std::int64_t>(W, columns_p - entry), lane_count, columns_p,
                      factor);
}

template <int W>
[[gnu::always_inline]] inline void scatter_block(const HeadRows<float>& x, const float* x_t, std::int64_t lane,
                                                 std::int64_t entry, int lane_count, float factor, Into into) {
  Reals<W> block[W];
  const std::int64_t columns = std::min<std::int64_t>(W, x.columns - entry);
  for (int n = 0; n < W; ++n)
    block[n] = n < columns ? lanes<W>(x_t + (entry + n) * lane_count + lane) * factor : Reals<W>{};
  transpose<W>(block);
  const std::int64_t rows = std::min<std::int64_t>(W, x.rows - lane);
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = x.first + (lane + i) * x.stride + entry;
    if (columns >= W) {
      lanes<W>(row) = into == Into::add ? lanes<W>(row) + block[i] : block[i];
    } else {
      for (int n = 0; n < columns; ++n) row[n] = into == Into::add ? row[n] + block[i][n] : block[i][n];
    }
  }
}

template <int W>
[[gnu::always_inline]] inline void scatter(const HeadRows<float>& x, const float* x_t, int lane_count, float factor,
                                           Into into) {
  for (std::int64_t lane = 0; lane < x.rows; lane += W)
    for (std::int64_t entry = 0; entry < x.columns; entry += W)
      scatter_block<W>(x, x_t, lane, entry, lane_count, factor, into);
}

/// body(W) as a compile-time number, on the widest instruction set.
template <class Body> void with_width(const Body& body) {
  switch (best_isa()) {
    case Isa::avx512: return run_avx512([&]() __attribute__((always_inline)) { body.template operator()<16>(); });
    case Isa::avx2: return run_avx2([&]() __attribute__((always_inline)) { body.template operator()<8>(); });
    case Isa::portable: return run_portable([&]() __attribute__((always_inline)) { body.template operator()<4>(); });
  }
}

}  // namespace

void gather_rows(float* x_t, float* also, const View& x, std::int64_t begin, std::int64_t rows, std::int64_t head,
                 std::int64_t columns_p, int lane_count, float factor) {
  const auto run = [&]<class T>(T* elements) {
    const HeadRows<const T> source(x, elements, begin, rows, head);
    with_width([&]<int W>()
                   __attribute__((always_inline)) { gather<W>(x_t, also, source, columns_p, lane_count, factor); });
  };
  if (x.type() == DType::bf16) run(x.as<BFloat16>());
  else run(x.as<float>());
}

void scatter_rows(const View& x, const float* x_t, std::int64_t begin, std::int64_t rows, std::int64_t head,
                  int lane_count, float factor, Into into) {
  const HeadRows<float> target(x, x.as<float>(), begin, rows, head);
  with_width([&]<int W>() __attribute__((always_inline)) { scatter<W>(target, x_t, lane_count, factor, into); });
}

}  // namespace capstan::kernels::cpu
