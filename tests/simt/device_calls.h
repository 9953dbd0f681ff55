#pragma once
// One description of an operation's call, run on `ref`, as a plain f32 program, on `cpu` and on the emulated GPU.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "tests/support/simt/simt.h"

namespace capstan::tests {

/// How an argument is stored beside values of the run's type.
enum class Stored : std::uint8_t { value, wide, f64, i64, i32 };

struct Argument {
  kernels::Shape shape;
  Stored stored = Stored::value;
  bool result = false;         ///< compared; before the call it holds numbers, too. What is no result may not change.
  double scale = 1;            ///< of random numbers
  std::vector<double> values;  ///< in place of random numbers
};
Argument in(kernels::Shape shape, double scale = 1, Stored stored = Stored::value);
Argument out(kernels::Shape shape, Stored stored = Stored::value);
Argument integers(kernels::Shape shape, Stored stored, const std::function<std::int64_t(std::int64_t)>& at);

struct Call {
  using Run = std::function<void(const std::vector<kernels::View>&)>;
  std::vector<Argument> arguments;
  Run run;         ///< the operation, of the arguments in their order
  Run naive = {};  ///< its formulas in f32, one term after the other; absent: the operation on `ref` in f32
};

/// All arguments after the call, in the host's memory. Random numbers are those of `grid`.
std::vector<kernels::Tensor> after(const Call& call, kernels::Device device, kernels::DType type, kernels::DType grid);

/// The rule of two for every result, in f32 and bf16 (or f32 only).
void expect_accurate(const Call& call, const std::string& what, bool with_bf16 = true);
/// The cpu's bits, in f32 and bf16.
void expect_as_on_cpu(const Call& call, const std::string& what, bool with_bf16 = true);
/// The same bits in 20 repeats of each order of threads.
void expect_same_bits(const Call& call, bool with_bf16 = true);

/// A test on the emulated GPU, where each tensor is exactly as large as it is asked for.
class OnGpu : public ::testing::Test {
 protected:
  OnGpu();
  ~OnGpu() override;

 private:
  simt::Session session_;
};

}  // namespace capstan::tests
