#include "tests/support/tiny_training.h"

#include <gtest/gtest.h>
#include <unistd.h>

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

Recipe tiny_recipe(const std::string& kind, const BlockForm& form) {
  Recipe r;
  r.model.hidden_size = 16;
  r.model.mlp_size = 20;
  r.model.layers = 2;
  r.model.heads = 4;
  r.model.kv_heads = 2;
  r.model.init_std = 0.2;
  r.model.max_length = 48;
  r.model.norm = form.norm;
  r.model.bias = form.bias;
  r.model.mlp = form.mlp;
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

namespace {

/// A new folder of all ranks.
std::string shared_folder(parallel::Communicator& world) {
  static int counter = 0;
  std::string name;
  if (world.rank() == 0) {
    name =
        (std::filesystem::path(::testing::TempDir()) / fmt::format("capstan-run-{}-{}", getpid(), counter++)).string();
    std::filesystem::create_directories(name + "/checkpoints");
  }
  return world.broadcast(name, 0);
}

template <class T> std::vector<T> from(const std::vector<T>& all, std::size_t begin) {
  return {all.begin() + std::ptrdiff_t(begin), all.end()};
}

}  // namespace

void expect_resumes_bit_exact(const Recipe& recipe, parallel::Communicator& world, int steps_before, int steps_after) {
  Trainer unbroken(recipe, world);
  const Trace all = train(unbroken, steps_before + steps_after);
  const std::string run = shared_folder(world);
  {
    Trainer first(recipe, world);
    train(first, steps_before);
    first.save(run + "/checkpoints");
  }
  Trainer second(recipe, world);
  second.load(framework::Checkpoint::open(world.broadcast(framework::newest_checkpoint(run), 0)));
  EXPECT_EQ(second.step(), steps_before);
  const Trace rest = train(second, steps_after);
  EXPECT_EQ(rest.losses, from(all.losses, std::size_t(steps_before)));
  EXPECT_EQ(rest.samples, from(all.samples, std::size_t(steps_before * recipe.train.sequences)));
  EXPECT_EQ(rest.weights, all.weights);
  const framework::Optimizer &a = second.optimizer(), &b = unbroken.optimizer();
  EXPECT_EQ(values_of(a.m()), values_of(b.m()));
  EXPECT_EQ(values_of(a.v()), values_of(b.v()));
  EXPECT_EQ(values_of(a.values()), values_of(b.values()));
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(run);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& a) { return distance(a, std::vector<double>(a.size(), 0.0)); }

}  // namespace capstan::tests
