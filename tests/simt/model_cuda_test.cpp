// The whole model on the emulated GPU: every encoding's forward and backward pass, against the dense oracle.

#include <gtest/gtest.h>

#include "kernels/device_queue.h"
#include "tests/simt/device_calls.h"
#include "tests/support/conformance.h"

namespace capstan::tests {
namespace {

using framework::Keep;
using kernels::Device;
using kernels::DType;

class ModelOnGpu : public OnGpu, public testing::WithParamInterface<int> {
 protected:
  /// One cell of each encoding, with what else there is taken in turn.
  static void run(int encoding, DType type) {
    constexpr Keep keeps[] = {Keep::everything, Keep::ring, Keep::inputs};
    const Cell cell{
        encoding, 0, 1, encoding % 2 == 1, encoding % 4 < 2, keeps[encoding % 3], encoding % 5 < 2 ? 4 : 64};
    const kernels::UseDevice gpu(0);
    Conformance conformance(61, 70, {Device::cuda, type});
    conformance.prepare(cell);
    const Conformance::Worst worst = conformance.run(*parallel::make_self_communicator(), cell);
    EXPECT_LE(worst.error, worst.bound) << cell.text() << " " << kernels::name_of(type) << ": " << worst.name;
  }
};

/// A third of them, in f32 and in bf16 in turn.
TEST_P(ModelOnGpu, AgreesWithTheDenseOracle) {
  if (GetParam() % 6 == 0) run(GetParam(), DType::f32);
  if (GetParam() % 6 == 1) run(GetParam(), DType::bf16);
}

/// All of them in both.
TEST_P(ModelOnGpu, MatrixAgreesWithTheDenseOracle) {
  for (const DType type : {DType::f32, DType::bf16}) run(GetParam(), type);
}

INSTANTIATE_TEST_SUITE_P(Encoding, ModelOnGpu, testing::Range(0, int(encoding_cases().size())),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace capstan::tests
