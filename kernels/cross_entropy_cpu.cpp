// Words are cut into panels and rows into blocks, so that a block's logits, the panel of w and its gradient stay in the caches.
// Threads take panels. What is summed over panels (the exponentials of a row, dx) is kept per panel, or per run of panels, and
// added in their order; a panel of dw is summed by one thread, block after block.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/isa.h"
#include "kernels/products.h"
#include "kernels/scratch.h"
#include "kernels/simd_math.h"
#include "kernels/stored_rows.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

constexpr std::int64_t span_rows = 1024;   ///< rows whose partial sums exist at one time
constexpr std::int64_t block_rows = 512;   ///< rows of a block
constexpr std::int64_t panel_words = 512;  ///< words of a panel, at most
constexpr std::int64_t runs_wanted = 8;    ///< runs of panels, at most

/// The cut of the vocabulary: by V only, as the bits of a row may depend on nothing else.
Cut panels_of(std::int64_t V) { return Cut(V, std::clamp<std::int64_t>(V / runs_wanted, 64, panel_words)); }

/// Runs of panels that have a partial dx each.
std::int64_t runs_of(const Cut& panels) { return std::min(panels.pieces, runs_wanted); }

/// Σ_v exp(logit[v]) = scale exp(largest), of one row and panel.
struct Exponentials {
  float largest, scale;
};

[[gnu::always_inline]] inline Exponentials exponentials_of(const float* logit, std::int64_t words) {
  const float largest = lane_max(logit, words);
  return {largest,
          lane_sum(
              words, [=](std::int64_t v) __attribute__((always_inline)) { return fast_exp(logit[v] - largest); })};
}

/// The same of all panels of a row: ln Σ_v exp(logit[v]).
double log_sum_exp(const Exponentials* panel, std::int64_t panels) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t p = 0; p < panels; ++p) largest = std::max(largest, panel[p].largest);
  double sum = 0;
  for (std::int64_t p = 0; p < panels; ++p)
    sum += static_cast<double>(panel[p].scale) * std::exp(static_cast<double>(panel[p].largest - largest));
  return static_cast<double>(largest) + std::log(sum);
}

/// logit[v] = exp(logit[v] - lse) in place. lse in two floats: the first difference is nearly exact where it matters (lse ≈ logit),
/// and the second brings back what rounding lse to f32 took.
[[gnu::always_inline]] inline void softmax(float* logit, double lse, std::int64_t words) {
  const float high = static_cast<float>(lse), low = static_cast<float>(lse - static_cast<double>(high));
  for (std::int64_t v = 0; v < words; ++v) logit[v] = fast_exp((logit[v] - high) - low);
}

void check_targets(const View& targets, std::int64_t V) {
  for (std::int64_t t = 0; t < targets.dim(0); ++t) {
    const std::int32_t target = targets.as<std::int32_t>()[t];
    CAPSTAN_CHECK(-1 <= target && target < V, "target {} at {}, of {} words", target, t, V);
  }
}

/// A view [N, C] in f32: itself, or a copy in `memory`.
Matrix wide_copy(const View& view, Scratch& memory) {
  if (view.type() == DType::f32) return matrix(view);
  const std::int64_t C = view.dim(1);
  const BFloat16* const from = view.as<BFloat16>();
  float* const to = memory.of<float>(view.elements());
  parallel_rows(view.dim(0), C, [=](std::int64_t begin, std::int64_t end) {
    on_best_isa([=]() __attribute__((always_inline)) {
      convert_row(to + begin * C, from + begin * C, (end - begin) * C);
    });
  });
  return {to, DType::f32, view.dim(0), C, C};
}

/// Rows of x or w, as stored and in f32.
struct Operand {
  Operand(const View& view, Scratch& memory) : wide(wide_copy(view, memory)), logits_from(wide) {
    if (best_narrow_products() == NarrowProducts::native) logits_from = matrix(view);
  }
  Matrix wide, logits_from;
};

/// Calls work(first row, logits) for blocks of rows of x and one panel of words, logits = x wᵀ [rows, words] being the work's to change.
template <class Work> void for_each_block(const Operand& x, const Operand& w, const Work& work) {
  thread_local Scratch memory;
  const std::int64_t T = x.wide.rows, C = x.wide.columns, words = w.wide.rows;
  float* const room = memory.of<float>(std::min(T, block_rows) * words);
  for (std::int64_t begin = 0; begin < T; begin += block_rows) {
    const std::int64_t rows = std::min(block_rows, T - begin);
    const Matrix logits{room, DType::f32, rows, words, words};
    multiply(logits, x.logits_from.part(begin, rows, 0, C), transpose_of(w.logits_from), Into::overwrite);
    work(begin, logits);
  }
}

/// Calls work(panel's number, w's panel).
template <class Work> void for_each_panel(const View& w, std::int64_t first, std::int64_t last, const Work& work) {
  thread_local Scratch memory;
  const Cut panels = panels_of(w.dim(0));
  for (std::int64_t p = first; p < last; ++p) work(p, Operand(w.rows(panels.begin(p), panels.end(p)), memory));
}

/// forward for at most span_rows rows.
void forward_span(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  thread_local Scratch memory_x, memory_sums, memory_logits;
  const std::int64_t T = x.dim(0);
  const std::int32_t* const target = targets.as<std::int32_t>();  // [T]
  const Operand rows(x, memory_x);
  const Cut panels = panels_of(w.dim(0));
  Exponentials* const sums = memory_sums.of<Exponentials>(T * panels.pieces);  // [T, panels]
  float* const at_target = memory_logits.of<float>(T);                         // [T]
  parallel_for(panels.pieces, [&](std::int64_t i) {
    for_each_panel(w, i, i + 1, [&](std::int64_t p, const Operand& words) {
      for_each_block(rows, words, [&](std::int64_t begin, const Matrix& logits) {
        const std::int64_t V = logits.columns, first = panels.begin(p);
        on_best_isa([=]() __attribute__((always_inline)) {
          for (std::int64_t t = begin; t < begin + logits.rows; ++t) {
            const float* const logit = static_cast<const float*>(logits.data) + (t - begin) * V;  // [V]
            sums[t * panels.pieces + p] = exponentials_of(logit, V);
            if (first <= target[t] && target[t] < first + V) at_target[t] = logit[target[t] - first];
          }
        });
      });
    });
  });
  for (std::int64_t t = 0; t < T; ++t) {
    const double of_row = log_sum_exp(sums + t * panels.pieces, panels.pieces);
    lse.as<double>()[t] = of_row;
    nll.as<double>()[t] = target[t] < 0 ? 0 : of_row - static_cast<double>(at_target[t]);
  }
}

/// logits of words first… become dlogit = exp(logit - lse) - 1{v = target}, or 0 where there is no target.
void differentiate(const Matrix& logits, const double* lse, const std::int32_t* target, std::int64_t first) {
  const std::int64_t V = logits.columns;
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t t = 0; t < logits.rows; ++t) {
      float* const logit = static_cast<float*>(logits.data) + t * V;  // [V]
      if (target[t] < 0) {
        std::fill(logit, logit + V, 0.0f);
        continue;
      }
      softmax(logit, lse[t], V);
      if (first <= target[t] && target[t] < first + V) logit[target[t] - first] -= 1;
    }
  });
}

/// dx = Σ over runs of their parts, in their order.
void add_parts(const View& dx, const float* part, std::int64_t runs) {
  const std::int64_t n = dx.elements();
  with_stored(dx.type(), [&](auto stored) {
    using T = decltype(stored);
    T* const dX = dx.as<T>();
    parallel_rows(n, runs, [=](std::int64_t begin, std::int64_t end) {
      on_best_isa([=]() __attribute__((always_inline)) {
        for (std::int64_t i = begin; i < end; ++i) {
          float sum = part[i];
          for (std::int64_t r = 1; r < runs; ++r) sum += part[r * n + i];
          dX[i] = stored_as<T>(sum);
        }
      });
    });
  });
}

/// backward for at most span_rows rows.
void backward_span(const View& dx, const View& dw, const View& lse, const View& x, const View& w, const View& targets) {
  thread_local Scratch memory_x, memory_dx;
  const std::int64_t T = x.dim(0), C = x.dim(1);
  const Operand rows(x, memory_x);
  const Cut panels = panels_of(w.dim(0));
  const std::int64_t runs = runs_of(panels);
  float* const parts = memory_dx.of<float>(runs * T * C);  // [runs, T, C]
  parallel_for(runs, [&](std::int64_t run) {
    const std::int64_t first_panel = run * panels.pieces / runs, last_panel = (run + 1) * panels.pieces / runs;
    const Matrix part{parts + run * T * C, DType::f32, T, C, C};
    for_each_panel(w, first_panel, last_panel, [&](std::int64_t p, const Operand& words) {
      for_each_block(rows, words, [&](std::int64_t begin, const Matrix& logits) {
        differentiate(logits, lse.as<double>() + begin, targets.as<std::int32_t>() + begin, panels.begin(p));
        multiply(part.part(begin, logits.rows, 0, C), logits, words.wide,
                 p == first_panel ? Into::overwrite : Into::add);
        if (dw)
          multiply(matrix(dw.rows(panels.begin(p), panels.end(p))), transpose_of(logits),
                   rows.wide.part(begin, logits.rows, 0, C), Into::add);
      });
    });
  });
  add_parts(dx, parts, runs);
}

/// Calls work(cut) for spans of rows: cut(view) is the view's part.
template <class Work> void for_each_span(const View& x, const Work& work) {
  for (std::int64_t begin = 0; begin < x.dim(0); begin += span_rows) {
    const std::int64_t end = std::min(x.dim(0), begin + span_rows);
    work([&](const View& view) { return view.rows(begin, end); });
  }
}

}  // namespace

// lse_t = ln Σ_v exp(logit[t, v]);  nll_t = lse_t - logit[t, target_t]
void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  check_targets(targets, w.dim(0));
  for_each_span(x, [&](const auto& cut) { forward_span(cut(nll), cut(lse), cut(x), w, cut(targets)); });
}

// Of nll_t = lse_t - logit[t, target_t], logit = x wᵀ:  dlogit = exp(logit - lse) - 1{v = target};  dx = dlogit w;  dw += dlogitᵀ x
void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets) {
  check_targets(targets, w.dim(0));
  for_each_span(x, [&](const auto& cut) { backward_span(cut(dx), dw, cut(lse), cut(x), w, cut(targets)); });
}

}  // namespace capstan::kernels::cpu

namespace capstan::kernels {

std::int64_t cross_entropy_bytes(std::int64_t T, std::int64_t C, std::int64_t V) {
  const Cut panels = cpu::panels_of(V);
  const std::int64_t span = std::min(T, cpu::span_rows);
  const std::int64_t logits = std::min(T, cpu::block_rows) * panels.length, exponentials = span * panels.pieces * 2,
                     dx = cpu::runs_of(panels) * span * C;
  return (logits + exponentials + dx) * size_of(DType::f32);
}

}  // namespace capstan::kernels
