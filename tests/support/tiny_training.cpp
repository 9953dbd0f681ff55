#include "tests/support/tiny_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "framework/random.h"
#include "framework/token_file.h"
#include "tests/support/tensors.h"

namespace capstan::tests {

using framework::Recipe;
using framework::Trainer;

std::string random_token_file() {
  static const std::string path = [] {
    const std::string name = (std::filesystem::path(::testing::TempDir()) / "capstan-trainer-test.h5").string();
    std::vector<framework::TokenDocument> documents;
    for (std::uint64_t d = 0; d < 60; ++d) {
      framework::TokenDocument document;
      const std::int64_t length = 1 + framework::random_below(9, 1, d, 40);
      for (std::int64_t t = 0; t < length; ++t)  // skewed, so that there is something to learn
        document.ids.push_back(std::int32_t(framework::random_below(9, 2 + d, std::uint64_t(t), 5) *
                                            framework::random_below(9, 99 + d, std::uint64_t(t), 4)));
      documents.push_back(document);
    }
    framework::TokenFileInfo info;
    info.vocabulary = 17;
    info.tokenizer = "test";
    framework::write_token_file(name, documents, info);
    return name;
  }();
  return path;
}

Recipe tiny_recipe(const std::string& kind) {
  Recipe r;
  r.model.hidden_size = 16;
  r.model.mlp_size = 20;
  r.model.layers = 2;
  r.model.heads = 4;
  r.model.kv_heads = 2;
  r.model.init_std = 0.2;
  r.model.max_length = 48;
  r.position.kind = kind;
  r.position.cope_positions = 6;
  r.data.train = random_token_file();
  r.data.context = 48;
  r.train.sequences = 4;
  r.train.steps = 20;
  r.train.tile = 4;
  r.train.device = "ref";
  r.train.precision = "f64";
  r.optimizer.kind = "sgd";
  r.optimizer.lr = 0.2;
  r.optimizer.clip = 0;
  r.schedule.kind = "constant";
  return r;
}

Trace train(Trainer& trainer, int steps) {
  Trace trace;
  for (int i = 0; i < steps; ++i) {
    const framework::StepResult result = trainer.train_step();
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.gradient_norm);
    trace.samples.insert(trace.samples.end(), result.samples.begin(), result.samples.end());
  }
  trace.weights = values_of(trainer.model().parameters().trainable_values());
  trace.weights.resize(std::size_t(trainer.model().parameters().trainable_elements()));
  return trace;
}

Trace train_alone(const Recipe& recipe, int steps, bool reversed) {
  const auto self = parallel::make_self_communicator();
  Trainer trainer(recipe, *self);
  if (reversed) trainer.reverse_micro_batches();
  return train(trainer, steps);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& a) { return distance(a, std::vector<double>(a.size(), 0.0)); }

}  // namespace capstan::tests
