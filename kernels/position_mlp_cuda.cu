#include <algorithm>

#include "kernels/device_scratch.cuh"
#include "kernels/elements.cuh"
#include "kernels/position_mlp.h"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

// The matrices act on heads, so the D columns of a token are independent of each other. Forward: a thread per column. Backward: a
// block takes some tokens, one after the other, in strips of 32 columns that lie in shared memory, and sums its part of the
// weights' gradients, each entry by one thread; the blocks' parts are then added in order. How tokens fall to blocks depends on T alone.

namespace capstan::kernels::cuda {

namespace {

struct Inputs {
  const float *dnext, *z, *p;      // [T, G, D]; dnext in backward only
  const float* gate;               // [T, I]
  const float *alpha, *up, *down;  // [G, G], [I, G], [G, I]
  std::int64_t T;
  int G, D, I;
};

Inputs inputs_of(const View& dz_next, const View& z, const View& p, const View& gate, const View& alpha,
                 const View& w_up, const View& w_down) {
  const auto floats = [](const View& view) { return device_data<float>(view); };
  return {dz_next ? floats(dz_next) : nullptr,
          floats(z),
          floats(p),
          floats(gate),
          floats(alpha),
          floats(w_up),
          floats(w_down),
          z.dim(0),
          static_cast<int>(z.dim(1)),
          static_cast<int>(z.dim(2)),
          static_cast<int>(gate.dim(1))};
}

/// Shared memory: zc [G] and b = g ∘ a [I] of each thread's column, so that a row of it has a number per thread.
__global__ void __launch_bounds__(element_threads) forward_columns(float* __restrict__ next, const Inputs in) {
  const int threads = static_cast<int>(blockDim.x), G = in.G, D = in.D, I = in.I;
  float *const zc = &ptx::shared<float>() + threadIdx.x, *const b = zc + G * threads;
  const std::int64_t column = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= in.T * D) return;
  const auto [t, d] = divide(column, D);
  const std::int64_t at = t * G * D + d;
  for (int g = 0; g < G; ++g) {  // zc = z + alpha p
    float sum = in.z[at + g * D];
    for (int h = 0; h < G; ++h) sum += in.alpha[g * G + h] * in.p[at + h * D];
    zc[g * threads] = sum;
  }
  for (int i = 0; i < I; ++i) {  // b = g ∘ (w_up zc)
    float sum = 0;
    for (int h = 0; h < G; ++h) sum += in.up[i * G + h] * zc[h * threads];
    b[i * threads] = in.gate[t * I + i] * sum;
  }
  for (int g = 0; g < G; ++g) {  // z' = zc + w_down b
    float sum = zc[g * threads];
    for (int i = 0; i < I; ++i) sum += in.down[g * I + i] * b[i * threads];
    next[at + g * D] = sum;
  }
}

constexpr std::size_t most_shared = 160 * 1024;  // of a block, that every GPU we compile for has

void check_heads(std::size_t bytes, const Inputs& in) {
  CAPSTAN_CHECK(bytes <= most_shared, "a position MLP of {} heads and width {} needs {} bytes of shared memory, not {}",
                in.G, in.I, bytes, most_shared);
}

}  // namespace

// zc = z + alpha p;  a = w_up zc;  z' = zc + w_down (g ∘ a)
void position_mlp_forward(const View& z_next, const View& z, const View& p, const View& gate, const View& alpha,
                          const View& w_up, const View& w_down) {
  constexpr std::size_t comfortable = 48 * 1024;
  const Inputs in = inputs_of(View(), z, p, gate, alpha, w_up, w_down);
  const std::size_t per_thread = static_cast<std::size_t>(in.G + in.I) * sizeof(float);
  unsigned threads = 128;
  while (threads > 32 && threads * per_thread > comfortable) threads /= 2;
  check_heads(threads * per_thread, in);
  const std::int64_t columns = in.T * in.D;
  launch_with(threads * per_thread, forward_columns, dim3(static_cast<unsigned>(quotient_up(columns, threads))),
              dim3(threads), stream_of_thread(), device_data<float>(z_next), in);
}

namespace {

constexpr int strip_columns = 32, strip_pitch = 33;  // one more, so that threads with a row each meet no bank twice
constexpr std::int64_t fewest_tokens = 16, most_blocks = 1024;

struct Outputs {
  float *dz, *dp, *dgate;  // [T, G, D], [T, G, D], [T, I]
  float* partial;          // [blocks, G G + I G + G I]
};

/// A strip of one token: rows of strip_pitch.
struct Strip {
  float *zc, *p, *dn, *dzc;  // [G]
  float *a, *db;             // [I]
};

__device__ inline Strip strip_of(int G, int I) {
  float* const zc = &ptx::shared<float>();
  float *const p = zc + G * strip_pitch, *const dn = p + G * strip_pitch, *const dzc = dn + G * strip_pitch;
  float* const a = dzc + G * strip_pitch;
  return {zc, p, dn, dzc, a, a + I * strip_pitch};
}

/// Σ_c x[c] y[c] of two rows of a strip.
__device__ inline float dot(const float* x, const float* y) {
  float sum = 0;
  for (int c = 0; c < strip_columns; ++c) sum += x[c] * y[c];
  return sum;
}

/// Where a block is: its token, the strip's first column, whether this is the first one of all that it adds.
struct Place {
  std::int64_t t;
  int column;
  bool first;
};

/// to (+)= value, as the place asks for.
__device__ inline void accumulate(float& to, float value, bool first) { to = first ? value : to + value; }

/// p, dn = dz', zc = z + alpha p. Columns beyond D are zeros.
__device__ inline void load_strip(const Strip& s, const Inputs& in, const Place& at) {
  const std::int64_t token = at.t * in.G * in.D;
  for (int e = static_cast<int>(threadIdx.x); e < in.G * strip_columns; e += element_threads) {
    const int g = e / strip_columns, c = e % strip_columns;
    const bool inside = at.column + c < in.D;
    const std::int64_t i = token + at.column + c;
    float zc = inside ? in.z[i + g * in.D] : 0;
    for (int h = 0; inside && h < in.G; ++h) zc += in.alpha[g * in.G + h] * in.p[i + h * in.D];
    s.zc[g * strip_pitch + c] = zc;
    s.p[g * strip_pitch + c] = inside ? in.p[i + g * in.D] : 0;
    s.dn[g * strip_pitch + c] = inside ? in.dnext[i + g * in.D] : 0;
  }
}

/// a = w_up zc;  db = w_downᵀ dn
__device__ inline void make_hidden(const Strip& s, const Inputs& in) {
  for (int e = static_cast<int>(threadIdx.x); e < in.I * strip_columns; e += element_threads) {
    const int i = e / strip_columns, c = e % strip_columns;
    float a = 0, db = 0;
    for (int g = 0; g < in.G; ++g) {
      a += in.up[i * in.G + g] * s.zc[g * strip_pitch + c];
      db += in.down[g * in.I + i] * s.dn[g * strip_pitch + c];
    }
    s.a[i * strip_pitch + c] = a;
    s.db[i * strip_pitch + c] = db;
  }
}

/// dg = Σ_D db a;  dw_down += dn (g ∘ a)ᵀ;  dw_up += (g ∘ db) zcᵀ
__device__ inline void sum_hidden(const Strip& s, const Inputs& in, const Outputs& out, float* dup, float* ddown,
                                  const Place& at) {
  const float* const gate = in.gate + at.t * in.I;
  for (int i = static_cast<int>(threadIdx.x); i < in.I; i += element_threads)
    accumulate(out.dgate[at.t * in.I + i], dot(s.db + i * strip_pitch, s.a + i * strip_pitch), at.column == 0);
  for (int e = static_cast<int>(threadIdx.x); e < in.G * in.I; e += element_threads) {
    const int g_down = e / in.I, i_down = e % in.I, i_up = e / in.G, g_up = e % in.G;
    accumulate(ddown[e], gate[i_down] * dot(s.dn + g_down * strip_pitch, s.a + i_down * strip_pitch), at.first);
    accumulate(dup[e], gate[i_up] * dot(s.db + i_up * strip_pitch, s.zc + g_up * strip_pitch), at.first);
  }
}

/// dzc = dn + w_upᵀ (g ∘ db);  dz += dzc
__device__ inline void make_dzc(const Strip& s, const Inputs& in, const Outputs& out, const Place& at) {
  const float* const gate = in.gate + at.t * in.I;
  for (int e = static_cast<int>(threadIdx.x); e < in.G * strip_columns; e += element_threads) {
    const int g = e / strip_columns, c = e % strip_columns;
    float sum = s.dn[g * strip_pitch + c];
    for (int i = 0; i < in.I; ++i) sum += in.up[i * in.G + g] * (gate[i] * s.db[i * strip_pitch + c]);
    s.dzc[g * strip_pitch + c] = sum;
    if (at.column + c < in.D) out.dz[(at.t * in.G + g) * in.D + at.column + c] += sum;
  }
}

/// dp = alphaᵀ dzc;  dalpha += dzc pᵀ
__device__ inline void finish_strip(const Strip& s, const Inputs& in, const Outputs& out, float* dalpha,
                                    const Place& at) {
  for (int e = static_cast<int>(threadIdx.x); e < in.G * strip_columns; e += element_threads) {
    const int g = e / strip_columns, c = e % strip_columns;
    float sum = 0;
    for (int h = 0; h < in.G; ++h) sum += in.alpha[h * in.G + g] * s.dzc[h * strip_pitch + c];
    if (at.column + c < in.D) out.dp[(at.t * in.G + g) * in.D + at.column + c] = sum;
  }
  for (int e = static_cast<int>(threadIdx.x); e < in.G * in.G; e += element_threads)
    accumulate(dalpha[e], dot(s.dzc + e / in.G * strip_pitch, s.p + e % in.G * strip_pitch), at.first);
}

/// Block b has the tokens b · tokens and on.
__global__ void __launch_bounds__(element_threads)
    backward_tokens(const Outputs out, const Inputs in, std::int64_t tokens) {
  const Strip s = strip_of(in.G, in.I);
  const std::int64_t begin = blockIdx.x * tokens, end = min(in.T, begin + tokens);
  float* const dalpha = out.partial + std::int64_t(blockIdx.x) * (in.G + 2 * in.I) * in.G;  // [G, G]
  float *const dup = dalpha + in.G * in.G, *const ddown = dup + in.I * in.G;                // [I, G], [G, I]
  for (std::int64_t t = begin; t < end; ++t)
    for (int column = 0; column < in.D; column += strip_columns) {
      const Place at{t, column, t == begin && column == 0};
      load_strip(s, in, at);
      __syncthreads();
      make_hidden(s, in);
      __syncthreads();
      sum_hidden(s, in, out, dup, ddown, at);
      make_dzc(s, in, out, at);
      __syncthreads();
      finish_strip(s, in, out, dalpha, at);
      __syncthreads();
    }
}

/// sum[i] += Σ_b partial[b · pitch + i], in the order of b
struct AddParts {
  static constexpr int pack = 1;
  float* sum;
  const float* partial;
  std::int64_t blocks, pitch;
  template <int V> __device__ void at(std::int64_t i) const {
    float all = 0;
    for (std::int64_t b = 0; b < blocks; ++b) all += partial[b * pitch + i];
    sum[i] += all;
  }
};

}  // namespace

// Of zc = z + alpha p;  a = w_up zc;  z' = zc + w_down b with b = g ∘ a;  G = dz': see backward_tokens, step by step.
void position_mlp_backward(const PositionMlpGradients& out, const View& dz_next, const View& z, const View& p,
                           const View& gate, const View& alpha, const View& w_up, const View& w_down) {
  thread_local DeviceScratch memory;
  const Inputs in = inputs_of(dz_next, z, p, gate, alpha, w_up, w_down);
  const std::size_t bytes = static_cast<std::size_t>(4 * in.G + 2 * in.I) * strip_pitch * sizeof(float);
  check_heads(bytes, in);
  if (in.T == 0) return;
  const std::int64_t tokens = std::max(fewest_tokens, quotient_up(in.T, most_blocks)),
                     blocks = quotient_up(in.T, tokens);
  const std::int64_t entries = std::int64_t(in.G + 2 * in.I) * in.G;
  const Outputs to{device_data<float>(out.dz), device_data<float>(out.dp), device_data<float>(out.dgate),
                   memory.of<float>(blocks * entries)};
  launch_with(bytes, backward_tokens, dim3(static_cast<unsigned>(blocks)), dim3(element_threads), stream_of_thread(),
              to, in, tokens);
  const float* partial = to.partial;
  for (const auto& [sum, size] :
       {std::pair(out.dalpha, in.G * in.G), std::pair(out.dw_up, in.I * in.G), std::pair(out.dw_down, in.G * in.I)}) {
    if (sum) for_each_element(AddParts{device_data<float>(sum), partial, blocks, entries}, size, {});
    partial += size;
  }
}

namespace {

constexpr std::int64_t piece_pairs = 1 << 14;

struct Magnitudes {
  double sum, max;
};

/// Of the pairs of piece b; z [rows, 2 half].
__global__ void __launch_bounds__(element_threads)
    magnitudes_of_pieces(Magnitudes* __restrict__ of_piece, const float* __restrict__ z, std::int64_t pairs,
                         std::int64_t half) {
  WideReduction& shared = ptx::shared<WideReduction>();
  const std::int64_t begin = blockIdx.x * piece_pairs, end = min(pairs, begin + piece_pairs);
  double sum = 0, largest = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += element_threads) {
    const auto [row, f] = divide(i, half);
    const float* const real = z + row * 2 * half + f;
    const double magnitude = hypot(static_cast<double>(real[0]), static_cast<double>(real[half]));
    sum += magnitude;
    largest = fmax(largest, magnitude);
  }
  sum = block_sum(shared, sum);
  largest = block_max(shared, largest);
  if (threadIdx.x == 0) of_piece[blockIdx.x] = {sum, largest};
}

}  // namespace

MagnitudeSum complex_magnitude(const View& z) {
  thread_local DeviceScratch memory;
  const std::int64_t pairs = z.elements() / 2, pieces = quotient_up(pairs, piece_pairs);
  MagnitudeSum out{0, 0, pairs};
  if (pairs == 0) return out;
  const View sums(memory.of<double>(2 * pieces), DType::f64, Device::cuda, {2 * pieces});
  launch<WideReduction>(magnitudes_of_pieces, dim3(static_cast<unsigned>(pieces)), dim3(element_threads),
                        stream_of_thread(), static_cast<Magnitudes*>(sums.data()), device_data<float>(z), pairs,
                        z.dim(2) / 2);
  const std::vector<double> of_piece = host_values<double>(sums);
  for (std::size_t i = 0; i < of_piece.size(); i += 2)
    out = {out.sum + of_piece[i], std::max(out.max, of_piece[i + 1]), pairs};
  return out;
}

}  // namespace capstan::kernels::cuda
