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

/// Which encoding of the conformance matrix, in what, and in which form of the block.
struct ModelCase {
  int encoding;
  DType type;
  int form = 0;
};

class ModelOnGpu : public OnGpu, public testing::WithParamInterface<ModelCase> {};
class MatrixOfModelsOnGpu : public ModelOnGpu {};

/// One cell of the encoding, with what else there is taken in turn.
void expect_as_the_oracle(const ModelCase& which) {
  const auto [encoding, type, form] = which;
  constexpr Keep keeps[] = {Keep::everything, Keep::ring, Keep::inputs};
  const Cell cell{encoding, 0, 1, encoding % 2 == 1, encoding % 4 < 2, keeps[encoding % 3], encoding % 5 < 2 ? 4 : 64,
                  form};
  const kernels::UseDevice gpu(0);
  Conformance conformance(61, 70, {Device::cuda, type});
  conformance.prepare(cell);
  const Conformance::Worst worst = conformance.run(*parallel::make_self_communicator(), cell);
  EXPECT_LE(worst.error, worst.bound) << cell.text() << " " << kernels::name_of(type) << ": " << worst.name;
}

TEST_P(ModelOnGpu, AgreesWithTheDenseOracle) { expect_as_the_oracle(GetParam()); }
TEST_P(MatrixOfModelsOnGpu, AgreesWithTheDenseOracle) { expect_as_the_oracle(GetParam()); }

/// Every encoding in both types.
std::vector<ModelCase> all_models() {
  std::vector<ModelCase> cases;
  for (int encoding = 0; encoding < int(encoding_cases().size()); ++encoding)
    for (const DType type : {DType::f32, DType::bf16}) cases.push_back({encoding, type});
  return cases;
}

/// A third of the encodings, in f32 and in bf16 in turn.
std::vector<ModelCase> some_models() {
  std::vector<ModelCase> cases = all_models();
  std::erase_if(cases, [](const ModelCase& c) { return c.encoding % 6 != (c.type == DType::f32 ? 0 : 1); });
  return cases;
}

/// Other blocks with RoPE, in f32 and in bf16.
std::vector<ModelCase> other_blocks() {
  std::vector<ModelCase> cases;
  for (int form = 1; form < int(block_forms().size()); ++form)
    for (const DType type : {DType::f32, DType::bf16}) cases.push_back({encoding_named("rope"), type, form});
  return cases;
}

const auto name_of_case = [](const auto& given) {
  const auto [encoding, type, form] = given.param;
  return fmt::format("{}_{}_{}", encoding, kernels::name_of(type), block_forms()[std::size_t(form)].text());
};
INSTANTIATE_TEST_SUITE_P(Some, ModelOnGpu, testing::ValuesIn(some_models()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Blocks, ModelOnGpu, testing::ValuesIn(other_blocks()), name_of_case);
INSTANTIATE_TEST_SUITE_P(All, MatrixOfModelsOnGpu, testing::ValuesIn(all_models()), name_of_case);

}  // namespace
}  // namespace capstan::tests
