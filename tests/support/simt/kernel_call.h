#pragma once
// A kernel with its parameters, as it waits in a stream.

#include <cstddef>
#include <tuple>
#include <utility>

#include "tests/support/simt/vector_types.h"

namespace simt {

class KernelCall {
 public:
  virtual ~KernelCall() = default;
  virtual void run() const = 0;           ///< one thread's run
  virtual std::size_t bytes() const = 0;  ///< of this object: kernels may read their parameters
  const void* kernel = nullptr;           ///< its address
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

template <class... Parameters> class KernelCallOf final : public KernelCall {
 public:
  KernelCallOf(void (*function)(Parameters...), std::tuple<Parameters...> parameters)
      : function_(function), parameters_(std::move(parameters)) {
    kernel = reinterpret_cast<const void*>(function);
  }
  void run() const override { std::apply(function_, parameters_); }
  std::size_t bytes() const override { return sizeof *this; }

 private:
  void (*function_)(Parameters...);
  std::tuple<Parameters...> parameters_;
};

}  // namespace simt
