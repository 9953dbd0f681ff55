#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy.h"
#include "kernels/isa.h"
#include "kernels/linear.h"
#include "kernels/simd_math.h"

namespace capstan::kernels::cpu {

namespace {

/// Σ_v exp(logit[v] - largest): f32 in blocks short enough for it, double over the blocks.
[[gnu::always_inline]] inline double sum_exp(const float* logit, float largest, std::int64_t V) {
  constexpr std::int64_t block = 1024;
  double sum = 0;
  for (std::int64_t begin = 0; begin < V; begin += block) {
    const float* const B = logit + begin;
    sum += static_cast<double>(lane_sum(
        std::min(block, V - begin), [=](std::int64_t v)
                                        __attribute__((always_inline)) { return fast_exp(B[v] - largest); }));
  }
  return sum;
}

/// lse of one row [V].
double log_sum_exp(const float* logit, std::int64_t V) {
  double lse = 0;
  on_best_isa([ =, &lse ]() __attribute__((always_inline)) {
    const float largest = lane_max(logit, V);
    lse = static_cast<double>(largest) + std::log(sum_exp(logit, largest, V));
  });
  return lse;
}

/// logit[v] = exp(logit[v] - lse) in place. lse in two floats: the first difference is nearly exact where it matters (lse ≈ logit),
/// and the second brings back what rounding lse to f32 took.
void softmax(float* logit, double lse, std::int64_t V) {
  const float high = static_cast<float>(lse), low = static_cast<float>(lse - static_cast<double>(high));
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t v = 0; v < V; ++v) logit[v] = fast_exp((logit[v] - high) - low);
  });
}

std::int32_t target_of(const View& targets, std::int64_t t, std::int64_t V) {
  const std::int32_t target = targets.as<std::int32_t>()[t];
  CAPSTAN_CHECK(-1 <= target && target < V, "target {} at {}, of {} words", target, t, V);
  return target;
}

/// Calls work(begin, end, logits) for the chunks of rows, logits [end - begin, V] = x wᵀ being the work's to change.
template <class Work> void for_each_chunk(const View& x, const View& w, Work work) {
  const std::int64_t T = x.dim(0), V = w.dim(0);
  const Tensor memory({std::min(T, cross_entropy_chunk), V}, DType::f32, Device::cpu);
  for (std::int64_t begin = 0; begin < T; begin += cross_entropy_chunk) {
    const std::int64_t end = std::min(T, begin + cross_entropy_chunk);
    const View logits = memory.view().rows(0, end - begin);
    cpu::linear_forward(logits, x.rows(begin, end), w, Into::overwrite);
    work(begin, end, logits);
  }
}

}  // namespace

// lse_t = ln Σ_v exp(logit[t, v]);  nll_t = lse_t - logit[t, target_t]
void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  const std::int64_t V = w.dim(0);
  for_each_chunk(x, w, [&](std::int64_t begin, std::int64_t end, const View& logits) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* const logit = logits.as<float>() + (t - begin) * V;  // [V]
      const std::int32_t target = target_of(targets, t, V);
      const double of_row = log_sum_exp(logit, V);
      lse.as<double>()[t] = of_row;
      nll.as<double>()[t] = target < 0 ? 0 : of_row - static_cast<double>(logit[target]);
    }
  });
}

// Of nll_t = lse_t - logit[t, target_t], logit = x wᵀ:  dlogit = exp(logit - lse) - 1{v = target};  dx = dlogit w;  dw += dlogitᵀ x
void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets) {
  const std::int64_t V = w.dim(0);
  for_each_chunk(x, w, [&](std::int64_t begin, std::int64_t end, const View& logits) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const dlogit = logits.as<float>() + (t - begin) * V;  // [V]
      const std::int32_t target = target_of(targets, t, V);
      if (target < 0) {
        std::fill(dlogit, dlogit + V, 0.0f);
        continue;
      }
      softmax(dlogit, lse.as<double>()[t], V);
      dlogit[target] -= 1;
    }
    cpu::linear_backward_input(dx.rows(begin, end), logits, w, Into::overwrite);
    if (dw) cpu::linear_backward_weight(dw, logits, x.rows(begin, end));
  });
}

}  // namespace capstan::kernels::cpu
