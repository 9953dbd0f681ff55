#include "framework/linear.h"

#include <gtest/gtest.h>

#include "tests/framework/runs.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

/// With biases or without: an adapter leaves them as they are.
class Adapter : public testing::TestWithParam<BlockForm> {
 protected:
  ModelRun of_form() const {
    ModelRun run;
    run.shape.form = GetParam();
    return run;
  }
};

/// B = 0: the model is bit for bit the one without adapters.
TEST_P(Adapter, StartsAsTheModelWithout) {
  ModelRun plain = of_form(), adapted = of_form();
  adapted.shape.lora_rank = 2;
  const auto comm = parallel::make_self_communicator();
  const auto start = tiny_model(plain.shape);
  adapted.set_model = [&](framework::Model& model) {
    copy_shared(model, *start);
    zero_parameters(model, ".lora_B");
  };
  EXPECT_EQ(run_model(*comm, adapted).nll, run_model(*comm, plain).nll);
}

/// W + s B A in the weight's place gives the same model.
TEST_P(Adapter, MergedIsTheSame) {
  ModelRun adapted = of_form(), merged = of_form();
  adapted.shape.lora_rank = 3;
  const auto comm = parallel::make_self_communicator();
  const auto trained = tiny_model(adapted.shape);
  merged.set_model = [&](framework::Model& model) {
    copy_shared(model, *trained);
    for (framework::Parameter& p : model.parameters().all()) {
      const std::string layer = p.name.substr(0, p.name.rfind(".weight"));
      const framework::Parameter *a = trained->parameters().find(layer + ".lora_A"),
                                 *b = trained->parameters().find(layer + ".lora_B");
      if (!a || !b) continue;
      const auto floats = [](const kernels::View& x) {
        const std::vector<double> values = values_of(x);
        return std::vector<float>(values.begin(), values.end());
      };
      const std::vector<float> values = framework::merged_weight(floats(p.value), floats(a->value), floats(b->value), 3,
                                                                 trained->config().lora_alpha / 3);
      p.value.copy_from(tensor_of(p.shape, p.value.type(), p.value.device(), {values.begin(), values.end()}));
    }
  };
  // Merged weights are rounded to f32.
  EXPECT_LE(relative_difference(run_model(*comm, merged).nll, run_model(*comm, adapted).nll), 1e-6);
  EXPECT_GT(relative_difference(run_model(*comm, of_form()).nll, run_model(*comm, adapted).nll), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Forms, Adapter, testing::Values(BlockForm(), post_bias_gelu),
                         [](const auto& form) { return form.param.text(); });

}  // namespace
}  // namespace capstan::tests
