#include <algorithm>

#include "kernels/attention_backward_columns.cuh"
#include "kernels/attention_backward_rows.cuh"
#include "kernels/attention_devices.h"
#include "kernels/attention_launch.cuh"
#include "kernels/device_scratch.cuh"
#include "kernels/launch.cuh"
#include "kernels/stream_cuda.h"

// Backward of attention on a GPU: the key chunk in superblocks, far → near; of each first the rows' jobs, then the columns', one
// launch after the other, because their targets may be the same memory (gates made of q, k or v).

namespace capstan::kernels::cuda {

namespace attention {
namespace {

constexpr std::int64_t superblock_keys = 4096, band_bytes = std::int64_t(512) << 20;

/// Sums of the blocks' parts of shared weights, [query tiles, H, warps, n] each.
struct Partials {
  float *distance = nullptr, *fire = nullptr;
};

/// d [H, n] += Σ over query tiles and warps of partial[…, from + k], k < n. A thread per entry.
__global__ void __launch_bounds__(block_threads)
    add_head_partials(float* __restrict__ d, const float* __restrict__ partial, std::int64_t tiles, std::int64_t heads,
                      std::int64_t stride, std::int64_t from, std::int64_t n) {
  const std::int64_t at = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (at >= heads * n) return;
  const std::int64_t head = at / n, entry = from + at % n;
  float sum = 0;
  for (std::int64_t tile = 0; tile < tiles; ++tile)
    for (int warp = 0; warp < block_warps; ++warp)
      sum += partial[((tile * heads + head) * block_warps + warp) * stride + entry];
  d[at] += sum;
}

/// d [n] += Σ over everything of partial[…, from + k]. A block per entry: threads have every 128th part, then a fixed tree.
__global__ void __launch_bounds__(block_threads)
    add_all_partials(float* __restrict__ d, const float* __restrict__ partial, std::int64_t parts, std::int64_t stride,
                     std::int64_t from) {
  BlockReduction& shared = ptx::shared<BlockReduction>();
  float sum = 0;
  for (std::int64_t part = threadIdx.x; part < parts; part += block_threads)
    sum += partial[part * stride + from + blockIdx.x];
  sum = block_sum(shared, sum);
  if (threadIdx.x == 0) d[blockIdx.x] += sum;
}

void add_heads(const View& d, const float* partial, const Arguments& a, std::int64_t stride, std::int64_t from,
               std::int64_t n) {
  if (!d) return;
  const auto blocks = static_cast<unsigned>((a.heads * n + block_threads - 1) / block_threads);
  launch<void>(add_head_partials, dim3(blocks), dim3(block_threads), stream_of_thread(), device_data<float>(d), partial,
               a.query_tiles(), a.heads, stride, from, n);
}

void add_all(const View& d, const float* partial, const Arguments& a, std::int64_t stride, std::int64_t from) {
  if (!d) return;
  launch<BlockReduction>(add_all_partials, dim3(static_cast<unsigned>(d.elements())), dim3(block_threads),
                         stream_of_thread(), device_data<float>(d), partial, a.query_tiles() * a.heads * block_warps,
                         stride, from);
}

/// Gradients of weights that all rows share, from the blocks' parts.
void add_shared(const SharedTerms& out, const Partials& partials, const Arguments& a) {
  const std::int64_t entries = a.terms.distance_last + 1, width = a.terms.fire_width, stride = fire_sums(width);
  if (partials.distance != nullptr) add_heads(out.distance_table, partials.distance, a, entries, 0, entries);
  if (partials.fire == nullptr) return;
  add_heads(out.fire.out, partials.fire, a, stride, 0, width);
  add_all(out.fire.in, partials.fire, a, stride, width);
  add_all(out.fire.in_bias, partials.fire, a, stride, 2 * width);
  add_heads(out.fire.out_bias, partials.fire, a, stride, 3 * width, 1);
  add_all(out.fire.scale, partials.fire, a, stride, 3 * width + 1);
}

BackwardArguments backward_arguments(const AttentionBackwardState& state, const View& d_o,
                                     const AttentionSaved& saved) {
  BackwardArguments b{};
  b.d_o = d_o.data();
  b.lse = device_data<float>(saved.lse);
  b.delta = device_data<float>(saved.delta);
  for (int w = 0; w < gated_sums; ++w) {
    b.horizon[w] = pointer_or_null<std::int64_t>(saved.horizon[w]);
    b.final_carry[w] = pointer_or_null<std::int64_t>(saved.carry[w]);
    b.carry[w] = pointer_or_null<std::int64_t>(state.carry[w]);
    b.gate_grad[w] = pointer_or_null<float>(state.gate_grad[w]);
  }
  return b;
}

/// One call over the tiles of one superblock.
class Superblock {
 public:
  Superblock(const Arguments& a, const BackwardArguments& b, const Partials& partials, const AttentionGradients& out,
             const QueryChunk& queries, const KeyChunk& keys)
      : a_(a), b_(b), partials_(partials), out_(out), queries_(queries), keys_(keys) {}

  void run() const {
    for (int w = 0; w < gated_sums; ++w) {
      if (!a_.sum[w].separate) continue;
      const View& target = queries_.terms.gate_q[w] ? out_.rows.gate_q[w] : out_.dq;
      if (target) rows(job(Job::gate, w, target));
    }
    rows(main_rows());
    add_shared(out_.shared, partials_, a_);
    columns(job(Job::dv, 0, out_.dv));
    if (out_.dz) columns(job(Job::dz, 0, out_.dz));
    BackwardArguments dk = job(Job::dk, 0, out_.dk);
    dk.d_key_offset = pointer_or_null<float>(out_.keys.offset);
    columns(dk);
    for (int w = 0; w < gated_sums; ++w) {
      if (!a_.sum[w].separate) continue;
      const View& target = keys_.terms.gate_k[w] ? out_.keys.gate_k[w] : out_.dk;
      if (target) columns(job(Job::gate, w, target));
    }
  }

 private:
  BackwardArguments job(Job kind, int which, const View& target) const {
    BackwardArguments b = b_;
    b.job = kind;
    b.which = which;
    b.target = device_data<float>(target);
    return b;
  }
  BackwardArguments main_rows() const {
    BackwardArguments b = job(Job::dq, 0, out_.dq);
    for (int w = 0; w < gated_sums; ++w) b.d_table[w] = pointer_or_null<float>(out_.rows.table[w]);
    b.d_row_offset = pointer_or_null<float>(out_.rows.offset);
    b.d_offset_table = pointer_or_null<float>(out_.rows.offset_table);
    b.d_relative = pointer_or_null<float>(out_.rows.relative);
    b.distance_partial = partials_.distance;
    b.fire_partial = partials_.fire;
    return b;
  }
  bool terms() const { return a_.gated || a_.terms.any || a_.dropout.on; }
  void rows(const BackwardArguments& b) const {
    with_products(queries_.q, [&](auto products) {
      using Products = decltype(products);
      const auto kernel = terms() ? backward_rows<Products, true> : backward_rows<Products, false>;
      launch<BackwardShared<Products>>(kernel,
                                       dim3(static_cast<unsigned>(a_.query_tiles()), static_cast<unsigned>(a_.heads)),
                                       dim3(block_threads), stream_of_thread(), a_, b);
    });
  }
  void columns(const BackwardArguments& b) const {
    with_products(queries_.q, [&](auto products) {
      using Products = decltype(products);
      const auto kernel = terms() ? backward_columns<Products, true> : backward_columns<Products, false>;
      launch<BackwardShared<Products>>(
          kernel, dim3(static_cast<unsigned>(b.end_tile - b.first_tile), static_cast<unsigned>(a_.groups)),
          dim3(block_threads), stream_of_thread(), a_, b);
    });
  }

  const Arguments& a_;
  const BackwardArguments& b_;
  const Partials& partials_;
  const AttentionGradients& out_;
  const QueryChunk& queries_;
  const KeyChunk& keys_;
};

/// Key tiles whose carries and X are kept at once.
std::int64_t tiles_of_superblock(const Arguments& a, std::int64_t sums) {
  if (sums == 0) return a.key_tiles();
  const std::int64_t of_tile = sums * a.rows * a.heads * std::int64_t(sizeof(BandEntry));
  return std::max<std::int64_t>(1, std::min(superblock_keys / a.tile, band_bytes / of_tile));
}

}  // namespace
}  // namespace attention

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  using namespace attention;
  check_call(queries, keys);
  check_rows("d_o", d_o);
  const Arguments a = arguments_of(queries, keys, settings);
  if (a.rows == 0 || a.keys == 0) return;
  BackwardArguments b = backward_arguments(state, d_o, saved);
  std::int64_t sums = 0;
  for (const GatedArguments& g : a.sum) sums += g.gates != Gates::none;
  const std::int64_t tiles = tiles_of_superblock(a, sums), entries = std::min(tiles, a.key_tiles()) * a.heads * a.rows,
                     warps = a.query_tiles() * a.heads * block_warps;
  const FireTerm& d_fire = out.shared.fire;
  const bool fire = d_fire.in || d_fire.in_bias || d_fire.out || d_fire.out_bias || d_fire.scale,
             distance = a.terms.distance_table && out.shared.distance_table;
  const std::int64_t distance_sums = distance ? warps * (a.terms.distance_last + 1) : 0,
                     fire_entries = fire ? warps * fire_sums(a.terms.fire_width) : 0;
  thread_local DeviceScratch band, partial;
  BandEntry* of_sum = sums > 0 ? band.of<BandEntry>(sums * entries) : nullptr;
  for (int w = 0; w < gated_sums; ++w)
    if (a.sum[w].gates != Gates::none) {
      b.band[w] = of_sum;
      of_sum += entries;
    }
  Partials partials;
  if (distance || fire) {
    float* const memory = partial.of<float>(distance_sums + fire_entries);
    if (distance) partials.distance = memory;
    if (fire) partials.fire = memory + distance_sums;
  }
  for (std::int64_t first = 0; first < a.key_tiles(); first += tiles) {
    b.first_tile = first;
    b.end_tile = std::min(first + tiles, a.key_tiles());
    Superblock(a, b, partials, out, queries, keys).run();
  }
}

}  // namespace capstan::kernels::cuda
