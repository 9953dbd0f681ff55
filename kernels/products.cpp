// Matrix products by oneDNN's matmul primitive.
//
// The promise: the bits of a result row do not depend on how many rows the call has, nor on the row's place among them. What
// was found with oneDNN 2.6 (linear_test repeats it on the machine it runs on):
//   brg:avx512_core…  holds for all shapes: each element is one chain of fma over k, however the rows are blocked.
//   gemm:jit          (machines without AVX-512) does not: kernels for different row counts sum in different orders, and even
//                     rows of one call of 8 rows differ. With a constant row count that is a multiple of 12 or 16, a row's bits
//                     do not depend on its place.
// So everything but brg is called with exactly `block_rows` rows, the last block padded through scratch memory.
//
// gemm:jit multiplies half as fast where an operand's lines along k begin whole pages apart (measured on AVX2: 31 to 45 GFLOP/s, not 65
// to 88): all of them share a few lines of the first cache. Such operands, whose widths are 1,024, 2,048, 4,096, are spread out first.
//
// Threads: a product is cut into pieces by its shape, and each piece runs on one thread. Primitives belong to the thread,
// because they own scratch memory that two executions must not share.

#include "kernels/products.h"

#include <omp.h>

#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>

#include "kernels/isa.h"
#include "kernels/scratch.h"
#include "kernels/stored_rows.h"
#include "kernels/threads.h"

namespace capstan::kernels::cpu {

namespace {

using Dims = dnnl::memory::dims;

constexpr std::int64_t block_rows = 64;

dnnl::memory::desc layout(const Matrix& m) {
  const auto type = m.type == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  // Extents of 1 would make oneDNN guess between layouts; explicit strides leave nothing to guess.
  return {{m.rows, m.columns}, type, m.transposed ? Dims{1, m.pitch} : Dims{m.pitch, 1}};
}

struct Product {
  dnnl::memory::desc c, a, b;
  dnnl::matmul primitive;
  bool any_row_count;  ///< the implementation keeps the promise by itself
};

/// One thread's engine, stream and compiled products.
class Workspace {
 public:
  Workspace() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    omp_set_num_threads(1);  // the calling thread's own setting, which oneDNN reads
  }

  const Product& product(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
    const Key key{c.rows,       c.columns,    a.columns, c.pitch, a.pitch, b.pitch,
                  a.transposed, b.transposed, c.type,    a.type,  into};
    auto found = products_.find(key);
    if (found == products_.end()) found = products_.emplace(key, make(c, a, b, into)).first;
    return found->second;
  }

  void run(const Product& product, const Matrix& c, const Matrix& a, const Matrix& b) {
    product.primitive.execute(stream_, {{DNNL_ARG_SRC, {product.a, engine_, a.data}},
                                        {DNNL_ARG_WEIGHTS, {product.b, engine_, b.data}},
                                        {DNNL_ARG_DST, {product.c, engine_, c.data}}});
    stream_.wait();
  }

  Scratch padding, spread_a, spread_b, wide_a, wide_b, wide_c;

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool,
                         DType, DType, Into>;

  Product make(const Matrix& c, const Matrix& a, const Matrix& b, Into into) const {
    dnnl::primitive_attr attributes;
    if (into == Into::add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({layout(a), layout(b), layout(c)}, attributes, engine_);
    const bool brg = std::string(description.impl_info_str()).starts_with("brg:");
    return {layout(c), layout(a), layout(b), dnnl::matmul(description), brg};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Product> products_;
};

Workspace& workspace() {
  thread_local Workspace of_this_thread;
  return of_this_thread;
}

/// from, row by row, at `to`.
void copy_rows(const Matrix& to, const Matrix& from, std::int64_t rows) {
  const std::int64_t size = size_of(from.type);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(to.part(r, 1, 0, to.columns).data, from.part(r, 1, 0, from.columns).data,
                static_cast<std::size_t>(from.columns * size));
}

/// Fewer than block_rows rows of c (+)= a b, by the one product for that many rows.
void multiply_padded(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  const std::int64_t bytes_a = block_rows * a.columns * size_of(a.type);
  const std::int64_t bytes = bytes_a + block_rows * c.columns * size_of(c.type);
  char* const memory = workspace().padding.of<char>(bytes);
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  const Matrix padded_a{memory, a.type, block_rows, a.columns, a.columns},
      padded_c{memory + bytes_a, c.type, block_rows, c.columns, c.columns};
  copy_rows(padded_a, a, a.rows);
  copy_rows(padded_c, c, c.rows);
  workspace().run(workspace().product(padded_c, padded_a, b, into), padded_c, padded_a, b);
  copy_rows(c, padded_c, c.rows);
}

/// c (+)= a b by blocks of rows, unless a is transposed, which has no promise to keep.
void multiply_blocks(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  if (a.transposed) return workspace().run(workspace().product(c, a, b, into), c, a, b);
  for (std::int64_t begin = 0; begin < c.rows; begin += block_rows) {
    const std::int64_t rows = std::min(block_rows, c.rows - begin);
    const Matrix of_c = c.part(begin, rows, 0, c.columns), of_a = a.part(begin, rows, 0, a.columns);
    if (rows < block_rows) multiply_padded(of_c, of_a, b, into);
    else workspace().run(workspace().product(of_c, of_a, b, into), of_c, of_a, b);
  }
}

/// Whether the lines of m, one for each k, begin whole pages apart.
bool crowded(const Matrix& m) { return m.pitch * size_of(m.type) % 4096 == 0; }

/// m with its lines a cache line more than their length apart: a copy in `memory`.
Matrix spread(const Matrix& m, Scratch& memory) {
  const Matrix lines = m.transposed ? transpose_of(m) : m;
  const std::int64_t pitch = lines.columns + 64 / size_of(m.type);
  const Matrix apart{memory.of<char>(lines.rows * pitch * size_of(m.type)), m.type, lines.rows, lines.columns, pitch};
  copy_rows(apart, lines, lines.rows);
  return m.transposed ? transpose_of(apart) : apart;
}

/// c (+)= a b of types that oneDNN multiplies, with the promise for rows of c unless a is transposed.
void multiply_stored(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  constexpr std::int64_t largest_inner = 1024;
  Workspace& own = workspace();
  const Product& whole = own.product(c, a, b, into);
  const bool spread_a = a.transposed && crowded(a), spread_b = !b.transposed && crowded(b),
             spreads = spread_a || spread_b;
  if (whole.any_row_count || (a.transposed && !spreads)) return own.run(whole, c, a, b);
  if (!spreads) return multiply_blocks(c, a, b, into);
  const Cut inner(a.columns, largest_inner);
  for (std::int64_t i = 0; i < inner.pieces; ++i) {
    const Matrix of_a = a.part(0, a.rows, inner.begin(i), inner.count(i)),
                 of_b = b.part(inner.begin(i), inner.count(i), 0, b.columns);
    multiply_blocks(c, spread_a ? spread(of_a, own.spread_a) : of_a, spread_b ? spread(of_b, own.spread_b) : of_b,
                    i > 0 ? Into::add : into);
  }
}

/// m in f32: itself, or a dense copy in `memory` with rows where it has rows.
Matrix widened(const Matrix& m, Scratch& memory) {
  if (m.type == DType::f32) return m;
  const std::int64_t lines = m.transposed ? m.columns : m.rows, length = m.transposed ? m.rows : m.columns;
  const BFloat16* const from = static_cast<const BFloat16*>(m.data);
  float* const to = memory.of<float>(lines * length);
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t line = 0; line < lines; ++line) convert_row(to + line * length, from + line * m.pitch, length);
  });
  return {to, DType::f32, m.rows, m.columns, length, m.transposed};
}

/// c (+)= wide, rounded once.
void store(const Matrix& c, const Matrix& wide, Into into) {
  BFloat16* const to = static_cast<BFloat16*>(c.data);
  const float* const from = static_cast<const float*>(wide.data);
  on_best_isa([=]() __attribute__((always_inline)) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      if (into == Into::add) add_row(to + r * c.pitch, from + r * wide.pitch, c.columns);
      else convert_row(to + r * c.pitch, from + r * wide.pitch, c.columns);
    }
  });
}

/// c (+)= a b through f32 copies of blocks, which the caches hold.
void multiply_widened(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  constexpr std::int64_t largest_inner = 1024;
  Workspace& own = workspace();
  const bool narrow = c.type == DType::bf16;
  const Matrix sum =
      narrow ? Matrix{own.wide_c.of<float>(c.rows * c.columns), DType::f32, c.rows, c.columns, c.columns} : c;
  const Cut inner(a.columns, largest_inner);
  for (std::int64_t i = 0; i < inner.pieces; ++i) {
    const Matrix wide_a = widened(a.part(0, a.rows, inner.begin(i), inner.count(i)), own.wide_a),
                 wide_b = widened(b.part(inner.begin(i), inner.count(i), 0, b.columns), own.wide_b);
    multiply_stored(sum, wide_a, wide_b, i > 0 ? Into::add : narrow ? Into::overwrite : into);
  }
  if (narrow) store(c, sum, into);
}

/// The product of no terms.
void multiply_nothing(const Matrix& c, Into into) {
  if (into == Into::add) return;
  for (std::int64_t r = 0; r < c.rows; ++r)
    std::memset(c.part(r, 1, 0, c.columns).data, 0, static_cast<std::size_t>(c.columns * size_of(c.type)));
}

bool has_matrix_unit() {
  const Matrix bf16{nullptr, DType::bf16, 64, 64, 64};
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const dnnl::matmul::primitive_desc description({layout(bf16), layout(bf16), layout(bf16)}, engine);
    return std::string(description.impl_info_str()).find("amx") != std::string::npos;
  } catch (const dnnl::error&) { return false; }  // no such primitive on this machine
}

}  // namespace

NarrowProducts best_narrow_products() {
  static const NarrowProducts best = has_matrix_unit() ? NarrowProducts::native : NarrowProducts::widened;
  return best;
}

void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into, NarrowProducts narrow) {
  if (c.rows == 0 || c.columns == 0) return;
  if (a.columns == 0) return multiply_nothing(c, into);
  // Pieces large enough to repay the rearranging of b, or the conversion of both, and small enough to keep some threads busy. The
  // promise forbids columns to be cut by the number of rows.
  constexpr std::int64_t worthwhile = 1 << 21;
  const bool as_stored = a.type == DType::f32 || narrow == NarrowProducts::native;
  const Cut rows(c.rows, as_stored ? 256 : 512), columns(c.columns, as_stored ? 1024 : 512);
  const auto piece = [&](std::int64_t i) {
    const std::int64_t row = i % rows.pieces, column = i / rows.pieces;
    const Matrix of_c = c.part(rows.begin(row), rows.count(row), columns.begin(column), columns.count(column)),
                 of_a = a.part(rows.begin(row), rows.count(row), 0, a.columns),
                 of_b = b.part(0, b.rows, columns.begin(column), columns.count(column));
    if (as_stored) multiply_stored(of_c, of_a, of_b, into);
    else multiply_widened(of_c, of_a, of_b, into);
  };
  const std::int64_t pieces = rows.pieces * columns.pieces;
  if (c.rows * c.columns * a.columns >= worthwhile) return parallel_for(pieces, piece);
  for (std::int64_t i = 0; i < pieces; ++i) piece(i);
}

}  // namespace capstan::kernels::cpu
