#pragma once
// Sums over the rows of a [T, C] array in two steps, 64 rows and then all of them, each in the order of rows: no atomics, the same
// bits at every run.

#include "kernels/elements.cuh"

namespace capstan::kernels {

constexpr int column_threads = 128;  // of a block that has a column per thread
constexpr int summed_rows = 64;      // rows that one thread sums

/// f32 numbers of scratch memory that add_column_sums takes.
inline std::int64_t column_partials(std::int64_t rows, std::int64_t C) { return quotient_up(rows, summed_rows) * C; }

/// partial[b, c] = Σ_t term(t, c) over the 64 rows t of block b
template <class Term>
__global__ void __launch_bounds__(column_threads)
    sum_columns(float* __restrict__ partial, const Term term, std::int64_t rows, std::int64_t C) {
  const std::int64_t c = std::int64_t(blockIdx.y) * column_threads + threadIdx.x;
  const std::int64_t begin = std::int64_t(blockIdx.x) * summed_rows;
  const std::int64_t end = begin + summed_rows < rows ? begin + summed_rows : rows;
  if (c >= C) return;
  float sum = 0;
  for (std::int64_t t = begin; t < end; ++t) sum += term(t, c);
  partial[blockIdx.x * C + c] = sum;
}

/// sums[c] += Σ_b partial[b, c]
template <int threads>
__global__ void __launch_bounds__(threads)
    add_partials(float* __restrict__ sums, const float* __restrict__ partial, std::int64_t blocks, std::int64_t C) {
  const std::int64_t c = std::int64_t(blockIdx.x) * threads + threadIdx.x;
  if (c >= C) return;
  float sum = 0;
  for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * C + c];
  sums[c] += sum;
}

/// sums[c] += Σ_t term(t, c). partial: [column_partials].
template <class Term>
void add_column_sums(float* sums, float* partial, const Term& term, std::int64_t rows, std::int64_t C) {
  const std::int64_t blocks = quotient_up(rows, summed_rows);
  const unsigned strips = static_cast<unsigned>(quotient_up(C, column_threads));
  const cudaStream_t stream = stream_of_thread();
  launch<void>(sum_columns<Term>, dim3(static_cast<unsigned>(blocks), strips), dim3(column_threads), stream, partial,
               term, rows, C);
  launch<void>(add_partials<column_threads>, dim3(strips), dim3(column_threads), stream, sums, partial, blocks, C);
}

}  // namespace capstan::kernels
