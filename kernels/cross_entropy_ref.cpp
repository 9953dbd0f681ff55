#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_rows(const Operands& operands, const View& lse, const View& x, const View& w, const View& targets) {
  const std::int64_t T = x.dim(0), C = x.dim(-1);
  operands.check("x", x, {T, C});
  operands.check("w", w, {w.dim(0), C});
  operands.check("lse", lse, {T}, DType::f64);
  operands.check("targets", targets, {T}, DType::i32);
}

}  // namespace

void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  const Operands operands("cross_entropy_forward", x);
  check_rows(operands, lse, x, w, targets);
  operands.check("nll", nll, {x.dim(0)}, DType::f64);
  pick(x, ref::cross_entropy_forward, cpu::cross_entropy_forward, cuda::cross_entropy_forward)(nll, lse, x, w, targets);
}

void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets) {
  const Operands operands("cross_entropy_backward", x);
  check_rows(operands, lse, x, w, targets);
  operands.check("dx", dx, x.shape());
  if (dw) operands.check_wide("dw", dw, w.shape());
  pick(x, ref::cross_entropy_backward, cpu::cross_entropy_backward, cuda::cross_entropy_backward)(dx, dw, lse, x, w,
                                                                                                  targets);
}

namespace ref {

namespace {

std::int32_t target_of(const View& targets, std::int64_t t, std::int64_t V) {
  const std::int32_t target = targets.as<std::int32_t>()[t];
  CAPSTAN_CHECK(-1 <= target && target < V, "target {} at {}, of {} words", target, t, V);
  return target;
}

/// logit[v] = x[t] · w[v]
template <class Real> std::vector<double> logits_of(const View& x, const View& w, std::int64_t t) {
  const std::int64_t C = x.dim(1), V = w.dim(0);
  std::vector<double> logit(static_cast<std::size_t>(V));
  for (std::int64_t v = 0; v < V; ++v)
    for (std::int64_t c = 0; c < C; ++c)
      logit[static_cast<std::size_t>(v)] +=
          static_cast<double>(x.as<Real>()[t * C + c]) * static_cast<double>(w.as<Real>()[v * C + c]);
  return logit;
}

double log_sum_exp(const std::vector<double>& logit) {
  const double largest = *std::max_element(logit.begin(), logit.end());
  double sum = 0;
  for (const double value : logit) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

}  // namespace

// lse_t = ln Σ_v exp(logit[t, v]);  nll_t = lse_t - logit[t, target_t]
void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      const std::int32_t target = target_of(targets, t, w.dim(0));
      const std::vector<double> logit = logits_of<Real>(x, w, t);  // [V]
      lse.as<double>()[t] = log_sum_exp(logit);
      nll.as<double>()[t] = target < 0 ? 0 : lse.as<double>()[t] - logit[static_cast<std::size_t>(target)];
    }
  });
}

// Of nll_t = lse_t - logit[t, target_t], logit = x wᵀ:  dlogit = exp(logit - lse) - 1{v = target};  dx = dlogit w;  dw += dlogitᵀ x
void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t T = x.dim(0), C = x.dim(1), V = w.dim(0);
    std::vector<double> sum(static_cast<std::size_t>(dw ? V * C : 0));  // [V, C]
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int32_t target = target_of(targets, t, V);
      std::vector<double> row(static_cast<std::size_t>(C));   // [C]
      std::vector<double> dlogit = logits_of<Real>(x, w, t);  // [V]
      for (double& value : dlogit) value = target < 0 ? 0 : std::exp(value - lse.as<double>()[t]);
      if (target >= 0) dlogit[static_cast<std::size_t>(target)] -= 1;
      for (std::int64_t v = 0; v < V; ++v) {
        for (std::int64_t c = 0; c < C; ++c) {
          row[static_cast<std::size_t>(c)] +=
              dlogit[static_cast<std::size_t>(v)] * static_cast<double>(w.as<Real>()[v * C + c]);
          if (dw)
            sum[static_cast<std::size_t>(v * C + c)] +=
                dlogit[static_cast<std::size_t>(v)] * static_cast<double>(x.as<Real>()[t * C + c]);
        }
      }
      std::transform(row.begin(), row.end(), dx.as<Real>() + t * C,
                     [](double value) { return static_cast<Real>(value); });
    }
    for (std::size_t i = 0; i < sum.size(); ++i)
      dw.as<Real>()[i] = static_cast<Real>(static_cast<double>(dw.as<Real>()[i]) + sum[i]);
  });
}

}  // namespace ref

}  // namespace capstan::kernels
