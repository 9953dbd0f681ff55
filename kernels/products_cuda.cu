// cuBLASLt computes by columns. A matrix by rows is the transpose of the same memory by columns, so cᵀ = bᵀ aᵀ is asked for.

#include "kernels/products_cuda.cuh"

#include <cublasLt.h>

#include <array>
#include <map>

#include "kernels/device_scratch.cuh"
#include "kernels/stream_cuda.h"

namespace capstan::kernels::cuda {

namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ExitCode::internal, "{}: {}", call, cublasLtGetStatusString(status));
}

/// Something of cuBLASLt that is created and destroyed.
template <class T, cublasStatus_t (*destroy)(T)> class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (object_ && destroy(object_) != CUBLAS_STATUS_SUCCESS) object_ = nullptr;
  }
  T* address() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cublasLtHandle_t handle_of_thread() {
  thread_local Handle handle;
  if (!handle.get()) check_cublas(cublasLtCreate(handle.address()), "cublasLtCreate");
  return handle.get();
}

/// The largest power of two, 16 at most, that the address is a multiple of.
std::uint32_t alignment_of(const void* address) {
  const auto bits = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) % 16);
  return bits == 0 ? 16 : bits & (~bits + 1);
}

/// All that the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 13>;
Key key_of(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  return {c.rows,
          c.columns,
          a.columns,
          a.transposed,
          b.transposed,
          a.pitch,
          b.pitch,
          c.pitch,
          std::int64_t(a.type) * 16 + std::int64_t(c.type),
          into == Into::add,
          alignment_of(a.data),
          alignment_of(b.data),
          alignment_of(c.data)};
}

constexpr std::uint64_t most_workspace = std::uint64_t(32) << 20;
constexpr std::size_t most_plans = 1024;  // of a thread; generation has a shape per length

/// How one shape is multiplied. cuBLASLt's A is our b, its B our a.
class Plan {
 public:
  Plan(const Matrix& c, const Matrix& a, const Matrix& b) {
    check_cublas(cublasLtMatmulDescCreate(description_.address(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate");
    set_operation(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
    set_operation(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
    set_layout(a_, a);
    set_layout(b_, b);
    set_layout(c_, c);
    choose(c, a, b);
  }

  void run(const Matrix& c, const Matrix& a, const Matrix& b, Into into) const {
    thread_local DeviceScratch memory;
    const float one = 1, before = into == Into::add ? 1 : 0;
    void* const workspace = memory.of<std::byte>(static_cast<std::int64_t>(found_.workspaceSize));
    check_cublas(cublasLtMatmul(handle_of_thread(), description_.get(), &one, b.data, b_.get(), a.data, a_.get(),
                                &before, c.data, c_.get(), c.data, c_.get(), &found_.algo, workspace,
                                found_.workspaceSize, stream_of_thread()),
                 "cublasLtMatmul");
  }

 private:
  void set_operation(cublasLtMatmulDescAttributes_t which, bool transposed) {
    const std::int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublasLtMatmulDescSetAttribute(description_.get(), which, &operation, sizeof operation),
                 "cublasLtMatmulDescSetAttribute");
  }

  /// The memory by columns: as many rows as a line of ours has elements.
  static void set_layout(Layout& layout, const Matrix& m) {
    const std::int64_t in_line = m.transposed ? m.rows : m.columns, lines = m.transposed ? m.columns : m.rows;
    check_cublas(
        cublasLtMatrixLayoutCreate(layout.address(), m.type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF,
                                   static_cast<std::uint64_t>(in_line), static_cast<std::uint64_t>(lines), m.pitch),
        "cublasLtMatrixLayoutCreate");
  }

  template <class T>
  static void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  }

  void choose(const Matrix& c, const Matrix& a, const Matrix& b) {
    Preference preference;
    check_cublas(cublasLtMatmulPreferenceCreate(preference.address()), "cublasLtMatmulPreferenceCreate");
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace);
    // Sums that are split are added in f32, in a pass of their own: neither rounded between, nor in an order of chance.
    prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b.data));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.data));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c.data));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c.data));
    int count = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(handle_of_thread(), description_.get(), b_.get(), a_.get(), c_.get(),
                                                c_.get(), preference.get(), 1, &found_, &count),
                 "cublasLtMatmulAlgoGetHeuristic");
    CAPSTAN_CHECK(count == 1 && found_.state == CUBLAS_STATUS_SUCCESS,
                  "cuBLASLt has no way to multiply [{}, {}] and [{}, {}] of {}", a.rows, a.columns, b.rows, b.columns,
                  name_of(a.type));
  }

  Description description_;
  Layout a_, b_, c_;
  cublasLtMatmulHeuristicResult_t found_{};
};

const Plan& plan_for(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  thread_local std::map<Key, Plan> plans;
  const Key key = key_of(c, a, b, into);
  const auto known = plans.find(key);
  if (known != plans.end()) return known->second;
  if (plans.size() >= most_plans) plans.clear();
  return plans.try_emplace(key, c, a, b).first->second;
}

}  // namespace

void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Into into) {
  CAPSTAN_CHECK(!c.transposed && a.columns == b.rows && c.rows == a.rows && c.columns == b.columns,
                "[{}, {}] = [{}, {}] [{}, {}]", c.rows, c.columns, a.rows, a.columns, b.rows, b.columns);
  if (c.rows == 0 || c.columns == 0) return;
  if (a.columns > 0) return plan_for(c, a, b, into).run(c, a, b, into);
  if (into == Into::add) return;
  CAPSTAN_CHECK(c.pitch == c.columns, "an empty sum into rows of {} that are {} apart", c.columns, c.pitch);
  View(c.data, c.type, Device::cuda, {c.rows, c.columns}).fill_zero();
}

}  // namespace capstan::kernels::cuda
