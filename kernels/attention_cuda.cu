#include "kernels/attention_devices.h"

#include "kernels/attention_forward.cuh"
#include "kernels/attention_launch.cuh"
#include "kernels/device_scratch.cuh"
#include "kernels/launch.cuh"
#include "kernels/stream_cuda.h"

// Forward and gate sums of attention on a GPU; backward is in attention_backward_cuda.cu. Head sizes are multiples of 8 up to 128, q in
// f32 or bf16.
//
// Statistics are read back at the end of a call that wants them: 32 bytes, for which it waits for its stream.

namespace capstan::kernels::cuda {

namespace attention {
namespace {

dim3 grid_of(const Arguments& a) {
  return dim3(static_cast<unsigned>(a.query_tiles()), static_cast<unsigned>(a.heads));
}

StateArguments state_arguments(const AttentionState& state, Counts* counts) {
  StateArguments s{};
  s.o = device_data<float>(state.o);
  s.m = device_data<float>(state.m);
  s.l = device_data<float>(state.l);
  for (int w = 0; w < gated_sums; ++w) {
    s.carry[w] = pointer_or_null<std::int64_t>(state.carry[w]);
    s.horizon[w] = pointer_or_null<std::int64_t>(state.horizon[w]);
  }
  s.counts = counts;
  return s;
}

void forward(const Arguments& a, StateArguments s, const View& q) {
  with_products(q, [&](auto products) {
    using Products = decltype(products);
    const Terms terms = terms_of(a);
    const auto kernel = terms == Terms::none    ? forward_tiles<Products, Terms::none>
                        : terms == Terms::gates ? forward_tiles<Products, Terms::gates>
                                                : forward_tiles<Products, Terms::all>;
    for (const bool of_z : {true, false}) {  // of z first: it reads the state that the other writes
      if (of_z && a.z == nullptr) continue;
      s.of_z = of_z;
      launch<ForwardShared<Products>>(kernel, grid_of(a), dim3(block_threads), stream_of_thread(), a, s);
    }
  });
}

/// total = Σ of the blocks' counters: threads have every 128th block, then all threads' in their order.
__global__ void __launch_bounds__(block_threads)
    add_counts(Counts* __restrict__ total, const Counts* __restrict__ of_block, std::int64_t blocks) {
  Counts(&of_thread)[block_threads] = ptx::shared<Counts[block_threads]>();
  Counts sum{};
  for (std::int64_t b = threadIdx.x; b < blocks; b += block_threads) sum += of_block[b];
  of_thread[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int thread = 1; thread < block_threads; ++thread) sum += of_thread[thread];
  *total = sum;
}

}  // namespace
}  // namespace attention

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings) {
  attention::check_call(queries, keys);
  const attention::Arguments a = attention::arguments_of(queries, keys, settings);
  if (a.rows == 0 || a.keys == 0) return;
  attention::forward(a, attention::state_arguments(state, nullptr), queries.q);
}

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  using attention::Counts;
  attention::check_call(queries, keys);
  const attention::Arguments a = attention::arguments_of(queries, keys, settings);
  if (a.rows == 0 || a.keys == 0) return;
  thread_local DeviceScratch memory;
  const std::int64_t blocks = a.query_tiles() * a.heads;
  Counts* const total = memory.of<Counts>(1 + blocks);
  const cudaStream_t stream = stream_of_thread();
  attention::forward(a, attention::state_arguments(state, total + 1), queries.q);
  launch<Counts[attention::block_threads]>(attention::add_counts, dim3(1), dim3(attention::block_threads), stream,
                                           total, total + 1, blocks);
  Counts counts;
  check_cuda(cudaMemcpyAsync(&counts, total, sizeof counts, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  stats.gate_sum += counts.gate_sum;
  stats.gates += counts.gates;
  stats.tiles += counts.tiles;
  stats.saturated_tiles += counts.saturated_tiles;
}

void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  attention::check_call(queries, keys);
  const attention::Arguments a = attention::arguments_of(queries, keys, settings);
  if (a.rows == 0 || a.keys == 0) return;
  attention::with_products(queries.q, [&](auto products) {
    using Products = decltype(products);
    launch<attention::GateSumShared<Products>>(attention::gate_sum_tiles<Products>, attention::grid_of(a),
                                               dim3(attention::block_threads), stream_of_thread(), a,
                                               device_data<std::int64_t>(sum), which);
  });
}

}  // namespace capstan::kernels::cuda
