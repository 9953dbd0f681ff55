// The stand-in of cuBLASLt, against products in f64.

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/simt/device_array.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using testing::HasSubstr;

struct Case {
  cudaDataType_t in, out;
  bool transpose_a, transpose_b, row_major;
  float alpha, beta;
  int batches;
};

/// The descriptors of D = alpha op(A) op(B) + beta D, [m, n] with a depth of k; leading dimensions are 3 more than needed.
class Product {
 public:
  static constexpr std::int64_t m = 5, n = 7, k = 11, room = 3;

  explicit Product(const Case& c) : case_(c) {
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    const std::int32_t a = c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b),
              CUBLAS_STATUS_SUCCESS);
    a_ = layout(c.in, c.transpose_a ? k : m, c.transpose_a ? m : k);
    b_ = layout(c.in, c.transpose_b ? n : k, c.transpose_b ? k : n);
    d_ = layout(c.out, m, n);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (const auto matrix : {a_, b_, d_}) EXPECT_EQ(cublasLtMatrixLayoutDestroy(matrix), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescDestroy(matmul_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
  }

  std::int64_t leading(std::int64_t rows, std::int64_t columns) const {
    return (case_.row_major ? columns : rows) + room;
  }
  std::int64_t matrix_elements(std::int64_t rows, std::int64_t columns) const {
    return leading(rows, columns) * (case_.row_major ? rows : columns);
  }
  std::int64_t index(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column) const {
    return case_.row_major ? row * leading(rows, columns) + column : column * leading(rows, columns) + row;
  }
  cublasStatus_t run(const void* a, const void* b, void* d) const {
    cublasLtMatmulPreference_t preference;
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, matmul_, a_, b_, d_, d_, preference, 1, &found, &count);
    EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    EXPECT_EQ(count, 1);
    return cublasLtMatmul(handle_, matmul_, &case_.alpha, a, a_, b, b_, &case_.beta, d, d_, d, d_, &found.algo, nullptr,
                          0, nullptr);
  }

 private:
  cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) const {
    cublasLtMatrixLayout_t made;
    const std::int64_t stride = matrix_elements(rows, columns);
    const std::int32_t order = case_.row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, batches = case_.batches;
    EXPECT_EQ(
        cublasLtMatrixLayoutCreate(&made, type, std::uint64_t(rows), std::uint64_t(columns), leading(rows, columns)),
        CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(
        cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        CUBLAS_STATUS_SUCCESS);
    return made;
  }

  Case case_;
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t matmul_;
  cublasLtMatrixLayout_t a_, b_, d_;
};

/// n random numbers as elements of `type`, and what they are.
struct Numbers {
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

double value_at(const std::byte* bytes, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return reinterpret_cast<const float*>(bytes)[i];
  return kernels::to_float(reinterpret_cast<const kernels::BFloat16*>(bytes)[i]);
}

Numbers numbers(cudaDataType_t type, std::int64_t n, std::uint64_t seed) {
  Numbers made{std::vector<std::byte>(std::size_t(n) * size_of(type)), std::vector<double>(std::size_t(n))};
  for (std::size_t i = 0; i < made.values.size(); ++i) {
    const float value = static_cast<float>(normal(seed, i));
    if (type == CUDA_R_32F) reinterpret_cast<float*>(made.bytes.data())[i] = value;
    else reinterpret_cast<kernels::BFloat16*>(made.bytes.data())[i] = kernels::to_bfloat16(value);
    made.values[i] = value_at(made.bytes.data(), type, i);
  }
  return made;
}

void check(const Case& c) {
  constexpr std::int64_t m = Product::m, n = Product::n, k = Product::k;
  const simt::Session session;
  const Product product(c);
  const auto [a_rows, a_columns] = c.transpose_a ? std::pair{k, m} : std::pair{m, k};
  const auto [b_rows, b_columns] = c.transpose_b ? std::pair{n, k} : std::pair{k, n};
  const std::int64_t a_size = product.matrix_elements(a_rows, a_columns),
                     b_size = product.matrix_elements(b_rows, b_columns), d_size = product.matrix_elements(m, n);
  const Numbers A = numbers(c.in, a_size * c.batches, 1), B = numbers(c.in, b_size * c.batches, 2),
                D = numbers(c.out, d_size * c.batches, 3);
  const DeviceArray<std::byte> a(A.bytes), b(B.bytes), d(D.bytes);
  ASSERT_EQ(product.run(a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS);
  const std::vector<std::byte> got = d.values();
  for (std::int64_t batch = 0; batch < c.batches; ++batch)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const std::size_t at = std::size_t(batch * d_size + product.index(m, n, i, j));
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const std::int64_t of_a = c.transpose_a ? product.index(k, m, l, i) : product.index(m, k, i, l);
          const std::int64_t of_b = c.transpose_b ? product.index(n, k, j, l) : product.index(k, n, l, j);
          sum += A.values[std::size_t(batch * a_size + of_a)] * B.values[std::size_t(batch * b_size + of_b)];
        }
        const double expected = c.alpha * sum + (c.beta == 0 ? 0 : c.beta * D.values[at]);
        const double tolerance = c.out == CUDA_R_32F ? 1e-5 : std::abs(expected) * 0x1p-8 + 1e-5;
        EXPECT_NEAR(value_at(got.data(), c.out, at), expected, tolerance);
      }
}

TEST(SimtCublasLt, Products) {
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true})
      for (const bool row_major : {false, true}) {
        check({CUDA_R_32F, CUDA_R_32F, transpose_a, transpose_b, row_major, 1, 0, 1});
        check({CUDA_R_16BF, CUDA_R_16BF, transpose_a, transpose_b, row_major, 0.5f, 1, 1});
        check({CUDA_R_16BF, CUDA_R_32F, transpose_a, transpose_b, row_major, 2, -1, 3});
      }
}

TEST(SimtCublasLt, WhatItRefuses) {
  EXPECT_EQ(Product({CUDA_R_16F, CUDA_R_16F, false, false, false, 1, 0, 1}).run(nullptr, nullptr, nullptr),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Product({CUDA_R_32F, CUDA_R_16BF, false, false, false, 1, 0, 1}).run(nullptr, nullptr, nullptr),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_STREQ(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST(SimtCublasLt, MemoryIsChecked) {
  const Case c{CUDA_R_32F, CUDA_R_32F, false, false, false, 1, 0, 1};
  const Product product(c);
  const std::size_t a_size = std::size_t(product.matrix_elements(5, 11)),
                    b_size = std::size_t(product.matrix_elements(11, 7)),
                    d_size = std::size_t(product.matrix_elements(5, 7));
  const auto failure = [&](bool a_written, std::size_t d_elements) {
    const simt::Session session;
    return failure_of([&] {
      const DeviceArray<float> a(a_size), b(std::vector<float>(b_size, 1)), d(d_elements);
      if (a_written) kernels::check_cuda(cudaMemset(a.data(), 0, a_size * sizeof(float)), "cudaMemset");
      EXPECT_EQ(product.run(a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS);
    });
  };
  EXPECT_EQ(failure(true, d_size), "");
  EXPECT_EQ(failure(true, d_size - Product::room), "");  // nothing is stored beyond the last column
  EXPECT_THAT(failure(true, d_size - Product::room - 1), HasSubstr("cublasLtMatmul: out of bounds"));
  EXPECT_THAT(failure(false, d_size), HasSubstr("cublasLtMatmul: reads memory that nobody has written"));
}

}  // namespace
}  // namespace capstan::tests
