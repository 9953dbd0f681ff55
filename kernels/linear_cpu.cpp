// Matrix products by oneDNN's matmul primitive.
//
// The promise: the bits of a result row do not depend on how many rows the call has, nor on the row's place among them. What
// was found with oneDNN 2.6 (linear_test repeats it on the machine it runs on):
//   brg:avx512_core   holds for all shapes: each element is one chain of fma over k, however the rows are blocked.
//   gemm:jit          (machines without AVX-512) does not: kernels for different row counts sum in different orders, and even
//                     rows of one call of 8 rows differ. With a constant row count that is a multiple of 12 or 16, a row's bits
//                     do not depend on its place.
// So everything but brg is called with exactly `block_rows` rows, the last block padded through scratch memory.
//
// Threads: ranks are threads here, so each product runs on its caller alone. The caches belong to the thread, because a
// primitive owns scratch memory that two executions must not share.

#include <omp.h>

#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/linear.h"

namespace capstan::kernels::cpu {

namespace {

using Dims = dnnl::memory::dims;

constexpr std::int64_t block_rows = 64;

/// A row-major matrix, or the transpose of one: [rows, columns] as the product sees it.
struct Matrix {
  float* data;
  std::int64_t rows, columns;
  bool transposed = false;  ///< stored as [columns, rows]

  dnnl::memory::desc layout() const {
    // Extents of 1 would make oneDNN guess between layouts; explicit strides leave nothing to guess.
    return {{rows, columns}, dnnl::memory::data_type::f32, transposed ? Dims{1, rows} : Dims{columns, 1}};
  }
};

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
    const Key key{c.rows, c.columns, a.columns, a.transposed, b.transposed, into};
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

  /// At least that many floats, of unspecified values.
  float* scratch(std::int64_t floats) {
    if (std::ssize(scratch_) < floats) scratch_.resize(static_cast<std::size_t>(floats));
    return scratch_.data();
  }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, Into>;

  Product make(const Matrix& c, const Matrix& a, const Matrix& b, Into into) const {
    dnnl::primitive_attr attributes;
    if (into == Into::add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({a.layout(), b.layout(), c.layout()}, attributes, engine_);
    const bool brg = std::string(description.impl_info_str()).starts_with("brg:");
    return {c.layout(), a.layout(), b.layout(), dnnl::matmul(description), brg};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Product> products_;
  std::vector<float> scratch_;
};

Workspace& workspace() {
  thread_local Workspace of_this_thread;
  return of_this_thread;
}

/// Rows [begin, begin + block_rows) of c (+)= a b by the one product for that many rows.
void multiply_block(const Matrix& c, const Matrix& a, const Matrix& b, Into into, std::int64_t begin) {
  const std::int64_t rows = std::min(block_rows, c.rows - begin);
  Matrix block_c{c.data + begin * c.columns, block_rows, c.columns};
  Matrix block_a{a.data + begin * a.columns, block_rows, a.columns};
  if (rows < block_rows) {
    block_a.data = workspace().scratch(block_rows * (a.columns + c.columns));
    block_c.data = block_a.data + block_rows * a.columns;
    std::memset(block_a.data, 0, sizeof(float) * static_cast<std::size_t>(block_rows * (a.columns + c.columns)));
    std::memcpy(block_a.data, a.data + begin * a.columns, sizeof(float) * static_cast<std::size_t>(rows * a.columns));
    std::memcpy(block_c.data, c.data + begin * c.columns, sizeof(float) * static_cast<std::size_t>(rows * c.columns));
  }
  workspace().run(workspace().product(block_c, block_a, b, into), block_c, block_a, b);
  if (rows < block_rows)
    std::memcpy(c.data + begin * c.columns, block_c.data, sizeof(float) * static_cast<std::size_t>(rows * c.columns));
}

bool is_empty(const Matrix& c, std::int64_t inner, Into into) {
  if (c.rows == 0 || c.columns == 0) return true;
  if (inner > 0) return false;
  if (into == Into::overwrite) std::memset(c.data, 0, sizeof(float) * static_cast<std::size_t>(c.rows * c.columns));
  return true;
}

/// c (+)= a b with the promise for rows of c; a is row major.
void multiply_rows(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  if (is_empty(c, a.columns, into)) return;
  const Product& whole = workspace().product(c, a, b, into);
  if (whole.any_row_count) return workspace().run(whole, c, a, b);
  for (std::int64_t begin = 0; begin < c.rows; begin += block_rows) multiply_block(c, a, b, into, begin);
}

}  // namespace

// y = x wᵀ
void linear_forward(const View& y, const View& x, const View& w, Into into) {
  const std::int64_t T = x.dim(0), K = x.dim(1), M = w.dim(0);
  multiply_rows({y.as<float>(), T, M}, {x.as<float>(), T, K}, {w.as<float>(), K, M, true}, into);
}

// Of y = x wᵀ:  dx = dy w
void linear_backward_input(const View& dx, const View& dy, const View& w, Into into) {
  const std::int64_t T = dy.dim(0), M = w.dim(0), K = w.dim(1);
  multiply_rows({dx.as<float>(), T, K}, {dy.as<float>(), T, M}, {w.as<float>(), M, K}, into);
}

// Of y = x wᵀ:  dw += dyᵀ x. Sums over rows, so there is no promise to keep.
void linear_backward_weight(const View& dw, const View& dy, const View& x) {
  const std::int64_t T = x.dim(0), K = x.dim(1), M = dy.dim(1);
  const Matrix c{dw.as<float>(), M, K}, a{dy.as<float>(), M, T, true}, b{x.as<float>(), T, K};
  if (is_empty(c, T, Into::add)) return;
  workspace().run(workspace().product(c, a, b, Into::add), c, a, b);
}

}  // namespace capstan::kernels::cpu
