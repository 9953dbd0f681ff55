// Every parameter tensor of the whole model against finite differences, for every encoding; and recompute, whose bits must not differ.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tiny_model.h"

namespace capstan::tests {
namespace {

using framework::Keep;

double loss_of(framework::Model& model, const parallel::Ring& ring, const framework::Batch& batch, std::int64_t tile) {
  const framework::Pass pass = model.forward(ring, batch, tile, Keep::nothing);
  double sum = 0;
  for (std::int64_t t = 0; t < pass.nll.view().elements(); ++t) sum += pass.nll.as<double>()[t];
  return sum;
}

/// Central differences with h = 1e-6. CoPE is piecewise smooth in its positions, so h must be small; the rounding of the loss (about
/// 1e-16 · 100) and of gate sums (2^-44 per tile) over 2h then bounds the error by about 1e-7, and 1e-6 of the largest entry is left
/// for the third derivative.
void expect_gradients(framework::Model& model, const parallel::Ring& ring, const framework::Batch& batch,
                      std::int64_t tile) {
  loss_and_gradients(model, ring, batch, tile);
  constexpr double h = 1e-6;
  for (framework::Parameter& p : model.parameters().all()) {
    double largest = 0;
    for (std::int64_t i = 0; i < p.grad.elements(); ++i) largest = std::max(largest, std::abs(p.grad.as<double>()[i]));
    EXPECT_GT(largest, 0) << p.name << ": a path without gradient";
    const std::int64_t step = std::max<std::int64_t>(1, p.value.elements() / 12);
    for (std::int64_t i = 0; i < p.value.elements(); i += step) {
      double& x = p.value.as<double>()[i];
      const double kept = x;
      x = kept + h;
      const double above = loss_of(model, ring, batch, tile);
      x = kept - h;
      const double below = loss_of(model, ring, batch, tile);
      x = kept;
      EXPECT_NEAR(p.grad.as<double>()[i], (above - below) / (2 * h), 1e-6 * largest + 2e-7)
          << p.name << "[" << i << "]";
    }
  }
}

class ModelGradient : public ::testing::TestWithParam<TinyCase> {};

TinyShape shape_of(const TinyCase& each) {
  TinyShape shape;
  shape.kind = each.kind;
  shape.form = each.form;
  return shape;
}

TEST_P(ModelGradient, EveryParameterAgreesWithFiniteDifferences) {
  for (const bool tied : {true, false}) {
    TinyShape shape = shape_of(GetParam());
    shape.tied = tied;
    const auto comm = parallel::make_self_communicator();
    const parallel::Ring ring = tiny_ring(*comm, 19, shape.tile);
    const auto model = tiny_model(shape);
    expect_gradients(
        *model, ring,
        tiny_batch(ring.layout, 0, shape, 2, tied ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{7, 1, 6}),
        shape.tile);
  }
}

/// Every combination of model.norm, model.bias and model.mlp.
TEST(BlockGradient, EveryParameterAgreesWithFiniteDifferences) {
  for (const char* norm : {"pre", "post"})
    for (const char* bias : {"false", "true", "attention", "mlp"})
      for (const char* mlp : {"swiglu", "geglu", "gelu"}) {
        TinyShape shape;
        shape.form = {norm, bias, mlp};
        SCOPED_TRACE(shape.form.text());
        const auto comm = parallel::make_self_communicator();
        const parallel::Ring ring = tiny_ring(*comm, 11, shape.tile);
        const auto model = tiny_model(shape);
        expect_gradients(*model, ring, tiny_batch(ring.layout, 0, shape, 1, {7}), shape.tile);
      }
}

/// Adapters on all linear layers, and on some.
TEST(AdapterGradient, EveryParameterAgreesWithFiniteDifferences) {
  for (const BlockForm& form : {BlockForm(), post_bias_gelu})
    for (const char* targets : {"*_proj", "*.q_proj,*.down_proj"}) {
      TinyShape shape;
      shape.lora_rank = 3;
      shape.lora_targets = targets;
      shape.form = form;
      const auto comm = parallel::make_self_communicator();
      const parallel::Ring ring = tiny_ring(*comm, 19, shape.tile);
      const auto model = tiny_model(shape);
      expect_gradients(*model, ring, tiny_batch(ring.layout, 0, shape, 2, {7, 1, 6}), shape.tile);
    }
}

TEST(ShiftedGradient, EveryParameterAgreesWithFiniteDifferences) {
  for (const BlockForm& form : {BlockForm(), post_bias_gelu}) {
    TinyShape shape;
    shape.form = form;
    const auto comm = parallel::make_self_communicator();
    const parallel::Ring ring = tiny_ring(*comm, 23, shape.tile);
    const auto model = tiny_model(shape);
    framework::Batch batch = tiny_batch(ring.layout, 0, shape, 2, {9, 6});
    batch.shifted_groups = 3;
    expect_gradients(*model, ring, batch, shape.tile);
  }
}

TEST_P(ModelGradient, RecomputeChangesNoBit) {
  const TinyShape shape = shape_of(GetParam());
  const auto comm = parallel::make_self_communicator();
  const parallel::Ring ring = tiny_ring(*comm, 33, shape.tile);
  const auto model = tiny_model(shape);
  const framework::Batch batch = tiny_batch(ring.layout, 0, shape, 2, {9, 3});
  const LossAndGradients kept = loss_and_gradients(*model, ring, batch, shape.tile, Keep::everything);
  for (const Keep keep : {Keep::ring, Keep::inputs}) {
    const LossAndGradients again = loss_and_gradients(*model, ring, batch, shape.tile, keep);
    EXPECT_EQ(kept.loss, again.loss);
    EXPECT_EQ(kept.gradients, again.gradients);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, ModelGradient, ::testing::ValuesIn(tiny_cases()),
                         [](const auto& each) { return each.param.text(); });

/// rope+cope with a zero table and tape with zero alpha and W_d are the RoPE model, bit for bit.
TEST(EncodingStart, ZeroPositionParametersGiveTheRopeModel) {
  for (const kernels::Device device : {kernels::Device::ref, kernels::Device::cpu}) {
    TinyShape shape;
    shape.device = device;
    shape.type = device == kernels::Device::cpu ? kernels::DType::f32 : kernels::DType::f64;
    const auto comm = parallel::make_self_communicator();
    const parallel::Ring ring = tiny_ring(*comm, 70, 16);
    const framework::Batch batch = tiny_batch(ring.layout, 0, shape, 1);
    const auto rope = tiny_model(shape);
    const framework::Pass expected = rope->forward(ring, batch, 16, Keep::nothing);
    for (const std::string kind : {"rope+cope", "tape"}) {
      shape.kind = kind;
      const auto other = tiny_model(shape);
      for (framework::Parameter& p : other->parameters().all()) {
        const bool starts_at_zero = p.init == framework::Init::zero;
        if (framework::Parameter* same = rope->parameters().find(p.name)) p.value.copy_from(same->value);
        if (starts_at_zero) p.value.fill_zero();
      }
      const framework::Pass got = other->forward(ring, batch, 16, Keep::nothing);
      for (std::int64_t t = 0; t < got.nll.view().elements(); ++t)
        EXPECT_EQ(got.nll.as<double>()[t], expected.nll.as<double>()[t]) << kind << " token " << t;
    }
  }
}

}  // namespace
}  // namespace capstan::tests
