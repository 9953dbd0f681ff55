// Rows are cut into chunks and words into panels, so that a chunk's logits of a panel are all that exists of them. Products of
// bf16 run on tensor cores: the logits' gradients, which stay wide, are for that split into three numbers of bf16 whose sum is
// exactly the f32 number (8 bits each), and each of the three is multiplied, summed in f32.

#include <cstdint>

#include "kernels/cross_entropy.h"
#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/elementwise.h"
#include "kernels/products_cuda.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

namespace capstan::kernels::cuda {

namespace {

constexpr std::int64_t chunk_rows = 1024;
constexpr std::int64_t panel_words = 8192;
constexpr int split_parts = 3;

/// Σ_v exp(logit[v]) = scale exp(largest), of one row and panel.
struct Exponentials {
  float largest, scale;
};

/// A block per row t of logits [rows, words]: sums[t, panel], and the target's logit where it is among these words.
__global__ void __launch_bounds__(element_threads)
    sum_panel(Exponentials* __restrict__ sums, float* __restrict__ at_target, const float* __restrict__ logits,
              const std::int32_t* __restrict__ targets, std::int64_t first, std::int64_t words, int panel, int panels) {
  BlockReduction& shared = ptx::shared<BlockReduction>();
  const float* const logit = logits + blockIdx.x * words;  // [words]
  float largest = -INFINITY;
  for (std::int64_t v = threadIdx.x; v < words; v += element_threads) largest = fmaxf(largest, logit[v]);
  largest = block_max(shared, largest);
  float scale = 0;
  for (std::int64_t v = threadIdx.x; v < words; v += element_threads) scale += expf(logit[v] - largest);
  scale = block_sum(shared, scale);
  if (threadIdx.x != 0) return;
  sums[std::int64_t(blockIdx.x) * panels + panel] = {largest, scale};
  const std::int64_t target = targets[blockIdx.x] - first;
  if (0 <= target && target < words) at_target[blockIdx.x] = logit[target];
}

/// lse and nll of row t from its panels, in their order; a thread per row. A target outside of [-1, V) makes nll NaN.
__global__ void __launch_bounds__(element_threads)
    finish_rows(double* __restrict__ nll, double* __restrict__ lse, const Exponentials* __restrict__ sums,
                const float* __restrict__ at_target, const std::int32_t* __restrict__ targets, std::int64_t rows,
                std::int64_t V, int panels) {
  const std::int64_t t = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= rows) return;
  const Exponentials* const panel = sums + t * panels;  // [panels]
  float largest = -INFINITY;
  for (int p = 0; p < panels; ++p) largest = fmaxf(largest, panel[p].largest);
  double sum = 0;
  for (int p = 0; p < panels; ++p)
    sum += static_cast<double>(panel[p].scale) * exp(static_cast<double>(panel[p].largest - largest));
  const double of_row = static_cast<double>(largest) + log(sum);
  const std::int32_t target = targets[t];
  lse[t] = of_row;
  if (target == -1) nll[t] = 0;
  else nll[t] = 0 <= target && target < V ? of_row - static_cast<double>(at_target[t]) : NAN;
}

/// logits [rows, words], of words first…, become dlogit = exp(logit - lse) - 1{v = target}, or 0 where there is no target; i
/// counts them. lse in two floats, as on the cpu. Split: the three parts, each [rows, words], instead.
struct Differentiate {
  static constexpr int pack = 1;
  float* logits;
  __nv_bfloat16* parts;  // or null
  const double* lse;
  const std::int32_t* targets;
  std::int64_t first, words, all;
  template <int V> __device__ void at(std::int64_t i) const {
    const auto [t, v] = divide(i, words);
    const std::int32_t target = targets[t];
    const float high = static_cast<float>(lse[t]), low = static_cast<float>(lse[t] - static_cast<double>(high));
    float gradient = target < 0 ? 0.0f : expf((logits[i] - high) - low);
    if (target >= 0 && first + v == target) gradient -= 1;
    if (!parts) {
      logits[i] = gradient;
      return;
    }
    for (int part = 0; part < split_parts; ++part) {
      const __nv_bfloat16 rounded = element_of<__nv_bfloat16>(gradient);
      parts[part * all + i] = rounded;
      gradient -= value_of(rounded);
    }
  }
};

/// A chunk of rows, and what is kept for it.
struct Chunk {
  View x, lse, targets;  // [rows, C], [rows], [rows]
  std::int64_t rows() const { return x.dim(0); }
};

/// Calls work(chunk, cut) for chunks of rows; cut(view) is a view's part.
template <class Work> void for_each_chunk(const View& x, const View& lse, const View& targets, const Work& work) {
  for (std::int64_t begin = 0; begin < x.dim(0); begin += chunk_rows) {
    const std::int64_t end = std::min(x.dim(0), begin + chunk_rows);
    const auto cut = [=](const View& view) { return view.rows(begin, end); };
    work(Chunk{cut(x), cut(lse), cut(targets)}, cut);
  }
}

/// Calls work(first word, w's panel, logits [rows, words]) for the panels of w; the logits are the work's to change.
template <class Work> void for_each_panel(const Chunk& chunk, const View& w, const Work& work) {
  thread_local DeviceScratch memory;
  const std::int64_t V = w.dim(0);
  float* const room = memory.of<float>(chunk.rows() * std::min(V, panel_words));
  for (std::int64_t first = 0; first < V; first += panel_words) {
    const View panel = w.rows(first, std::min(V, first + panel_words));
    const View logits(room, DType::f32, Device::cuda, {chunk.rows(), panel.dim(0)});
    multiply(matrix(logits), matrix(chunk.x), transposed(panel), Into::overwrite);
    work(first, panel, logits);
  }
}

void forward_chunk(const View& nll, const Chunk& chunk, const View& w) {
  thread_local DeviceScratch memory_sums, memory_targets;
  const std::int64_t rows = chunk.rows(), V = w.dim(0);
  const int panels = static_cast<int>(quotient_up(V, panel_words));
  Exponentials* const sums = memory_sums.of<Exponentials>(rows * panels);  // [rows, panels]
  float* const at_target = memory_targets.of<float>(rows);                 // [rows]
  const std::int32_t* const targets = device_data<std::int32_t>(chunk.targets);
  for_each_panel(chunk, w, [&](std::int64_t first, const View& panel, const View& logits) {
    launch<BlockReduction>(sum_panel, dim3(static_cast<unsigned>(rows)), dim3(element_threads), stream_of_thread(),
                           sums, at_target, device_data<float>(logits), targets, first, panel.dim(0),
                           static_cast<int>(first / panel_words), panels);
  });
  launch<void>(finish_rows, element_grid(rows), dim3(element_threads), stream_of_thread(), device_data<double>(nll),
               device_data<double>(chunk.lse), sums, at_target, targets, rows, V, panels);
}

}  // namespace

// lse_t = ln Σ_v exp(logit[t, v]);  nll_t = lse_t - logit[t, target_t]
void cross_entropy_forward(const View& nll, const View& lse, const View& x, const View& w, const View& targets) {
  for_each_chunk(x, lse, targets, [&](const Chunk& chunk, const auto& cut) { forward_chunk(cut(nll), chunk, w); });
}

namespace {

/// dx of the chunk, and its part of dw.
void backward_chunk(const View& dx, const View& dw, const Chunk& chunk, const View& w) {
  thread_local DeviceScratch memory_parts, memory_dx;
  const bool narrow = chunk.x.type() == DType::bf16;
  const std::int64_t rows = chunk.rows(), C = chunk.x.dim(1), words = std::min(w.dim(0), panel_words);
  BFloat16* const room = narrow ? memory_parts.of<BFloat16>(split_parts * rows * words) : nullptr;
  const View sum = narrow ? View(memory_dx.of<float>(rows * C), DType::f32, Device::cuda, {rows, C}) : dx;
  sum.fill_zero();
  for_each_panel(chunk, w, [&](std::int64_t first, const View& panel, const View& logits) {
    const std::int64_t all = logits.elements();
    const View parts(room, DType::bf16, Device::cuda, {split_parts, rows, panel.dim(0)});
    const Differentiate op{device_data<float>(logits),
                           narrow ? device_data<BFloat16>(parts) : nullptr,
                           device_data<double>(chunk.lse),
                           device_data<std::int32_t>(chunk.targets),
                           first,
                           panel.dim(0),
                           all};
    for_each_element(op, all, {});
    for (int part = 0; part < (narrow ? split_parts : 1); ++part) {
      const View dlogit = narrow ? parts[part] : logits;
      multiply(matrix(sum), matrix(dlogit), matrix(panel), Into::add);
      if (dw) multiply(matrix(dw.rows(first, first + panel.dim(0))), transposed(dlogit), matrix(chunk.x), Into::add);
    }
  });
  if (narrow) cuda::convert(dx, sum);
}

}  // namespace

// Of nll_t = lse_t - logit[t, target_t], logit = x wᵀ:  dlogit = exp(logit - lse) - 1{v = target};  dx = dlogit w;  dw += dlogitᵀ x
void cross_entropy_backward(const View& dx, const View& dw, const View& lse, const View& x, const View& w,
                            const View& targets) {
  for_each_chunk(x, lse, targets, [&](const Chunk& chunk, const auto& cut) { backward_chunk(cut(dx), dw, chunk, w); });
}

}  // namespace capstan::kernels::cuda
