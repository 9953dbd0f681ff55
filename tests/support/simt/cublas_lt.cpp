// cuBLASLt's products over the emulated device: naive, each sum in f32 in the order of k.

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <cstring>

#include "tests/support/simt/device.h"

struct SimtBlas {};
struct SimtPreference {
  std::uint64_t workspace = 0;
};
struct SimtMatmul {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, pointers = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};
struct SimtMatrix {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t order = CUBLASLT_ORDER_COL, batches = 1;
  std::int64_t batch_stride = 0;
};

namespace {

using namespace simt;

/// A matrix of a batch in memory.
struct Matrix {
  SimtMatrix layout;
  std::byte* begin;

  std::size_t element_bytes() const { return layout.type == CUDA_R_32F ? sizeof(float) : sizeof(__nv_bfloat16); }
  std::byte* at(std::int64_t batch, std::uint64_t row, std::uint64_t column) const {
    const bool by_column = layout.order == CUBLASLT_ORDER_COL;
    const std::uint64_t outer = by_column ? column : row, inner = by_column ? row : column;
    return begin + (std::uint64_t(batch * layout.batch_stride) + outer * std::uint64_t(layout.leading) + inner) *
                       element_bytes();
  }
  float read(std::int64_t batch, std::uint64_t row, std::uint64_t column) const {
    const std::byte* const from = at(batch, row, column);
    float value;
    __nv_bfloat16 narrow;
    if (layout.type == CUDA_R_32F) std::memcpy(&value, from, sizeof value);
    else value = (std::memcpy(&narrow, from, sizeof narrow), __bfloat162float(narrow));
    return value;
  }
  void write(std::int64_t batch, std::uint64_t row, std::uint64_t column, float value) const {
    const __nv_bfloat16 narrow = __float2bfloat16(value);
    if (layout.type == CUDA_R_32F) std::memcpy(at(batch, row, column), &value, sizeof value);
    else std::memcpy(at(batch, row, column), &narrow, sizeof narrow);
  }
};

struct Product {
  Matrix a, b, c, d;
  bool transpose_a, transpose_b;
  float alpha, beta;
};

/// What is wrong with an operand's memory; empty: nothing. Memory that is written is noted as such.
std::string check_memory(const Matrix& matrix, bool writes) {
  DeviceMemory& memory = machine().memory();
  const bool by_column = matrix.layout.order == CUBLASLT_ORDER_COL;
  const std::uint64_t lines = by_column ? matrix.layout.columns : matrix.layout.rows;
  const std::size_t bytes = (by_column ? matrix.layout.rows : matrix.layout.columns) * matrix.element_bytes();
  for (std::int64_t batch = 0; batch < matrix.layout.batches; ++batch)
    for (std::uint64_t line = 0; line < lines; ++line) {
      const std::byte* const begin = by_column ? matrix.at(batch, 0, line) : matrix.at(batch, line, 0);
      const std::size_t offset = memory.offset_of(begin);
      if (!memory.valid(offset, bytes)) return "out of bounds: " + memory.place(begin);
      if (writes) memory.note_fill(begin, bytes);
      else if (const std::size_t written = memory.shadow().written(offset, bytes); written < bytes)
        return "reads memory that nobody has written: " + memory.place(begin + written);
    }
  return "";
}

cudaError_t multiply(const Product& p) {
  for (const Matrix* operand : {&p.a, &p.b, &p.c, &p.d}) {
    if (operand == &p.c && p.beta == 0) continue;
    const std::string trouble = check_memory(*operand, operand == &p.d);
    if (trouble.empty()) continue;
    device().fault = "cublasLtMatmul: " + trouble;
    return device().broken = cudaErrorIllegalAddress;
  }
  const std::uint64_t depth = p.transpose_a ? p.a.layout.rows : p.a.layout.columns;
  for (std::int64_t batch = 0; batch < p.d.layout.batches; ++batch)
    for (std::uint64_t j = 0; j < p.d.layout.columns; ++j)
      for (std::uint64_t i = 0; i < p.d.layout.rows; ++i) {
        float sum = 0;
        for (std::uint64_t k = 0; k < depth; ++k)
          sum += (p.transpose_a ? p.a.read(batch, k, i) : p.a.read(batch, i, k)) *
                 (p.transpose_b ? p.b.read(batch, j, k) : p.b.read(batch, k, j));
        p.d.write(batch, i, j, p.alpha * sum + (p.beta == 0 ? 0 : p.beta * p.c.read(batch, i, j)));
      }
  return cudaSuccess;
}

bool known(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

cublasStatus_t check(const SimtMatmul& m, const SimtMatrix& a, const SimtMatrix& b, const SimtMatrix& c,
                     const SimtMatrix& d) {
  const bool f32 =
      (m.compute == CUBLAS_COMPUTE_32F || m.compute == CUBLAS_COMPUTE_32F_PEDANTIC) && m.scale == CUDA_R_32F;
  const bool types = known(a.type) && a.type == b.type && c.type == d.type && known(d.type) &&
                     !(a.type == CUDA_R_32F && d.type == CUDA_R_16BF);
  if (!f32 || !types || m.epilogue != CUBLASLT_EPILOGUE_DEFAULT || m.pointers != CUBLASLT_POINTER_MODE_HOST)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::uint64_t rows_a = m.transpose_a ? a.columns : a.rows, depth = m.transpose_a ? a.rows : a.columns;
  const std::uint64_t depth_b = m.transpose_b ? b.columns : b.rows, columns_b = m.transpose_b ? b.rows : b.columns;
  const bool shapes = rows_a == d.rows && columns_b == d.columns && depth == depth_b && c.rows == d.rows &&
                      c.columns == d.columns && a.batches == d.batches && b.batches == d.batches &&
                      c.batches == d.batches;
  for (const SimtMatrix* const one : {&a, &b, &c, &d})
    if (one->leading < std::int64_t(one->order == CUBLASLT_ORDER_COL ? one->rows : one->columns))
      return CUBLAS_STATUS_INVALID_VALUE;
  return shapes ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

template <class T> cublasStatus_t assign(T& target, const void* value, std::size_t bytes) {
  if (bytes != sizeof target || !value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&target, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

Matrix matrix(const SimtMatrix* layout, const void* begin) {
  return {*layout, static_cast<std::byte*>(const_cast<void*>(begin))};
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "<unknown>";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new SimtBlas;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *matmul = new SimtMatmul{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) { return destroy(matmul); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return assign(matmul->pointers, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(matmul->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(matmul->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(matmul->epilogue, value, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  *matrix = new SimtMatrix{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) { return destroy(matrix); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matrix,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return assign(matrix->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return assign(matrix->leading, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(matrix->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(matrix->batch_stride, value, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new SimtPreference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return assign(preference->workspace, value, bytes);
  return CUBLAS_STATUS_SUCCESS;  // what only a choice among algorithms would ask for
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const cublasStatus_t status = check(*matmul, *a, *b, *c, *d);
  if (status != CUBLAS_STATUS_SUCCESS || requested < 1) return status;
  results[0] = {};
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta,
                              const void* C, cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const cublasStatus_t status = check(*matmul, *a, *b, *c, *d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Product product{matrix(a, A),
                        matrix(b, B),
                        matrix(c, C),
                        matrix(d, D),
                        matmul->transpose_a != CUBLAS_OP_N,
                        matmul->transpose_b != CUBLAS_OP_N,
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta)};
  const std::scoped_lock guard(device().lock);
  const cudaError_t queued = device().queue(stream, [product] { return multiply(product); });
  return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
