#pragma once
// Training that takes a second: a token file, a recipe and what a few steps of it leave, to be compared with another run.

#include <string>
#include <vector>

#include "framework/trainer.h"
#include "tests/support/tiny_model.h"

namespace capstan::tests {

/// A token file of random documents under a fixed name: every process writes the same bytes, and writing is by rename.
std::string random_token_file();

/// f64 on ref, plain SGD, sequences of 48 tokens.
framework::Recipe tiny_recipe(const std::string& kind, const BlockForm& form = {});

/// What steps leave.
struct Trace {
  std::vector<double> losses, norms, weights;
  std::vector<std::string> samples;
};
Trace train(framework::Trainer& trainer, int steps);
/// On one rank. reversed: micro-batches from the last to the first.
Trace train_alone(const framework::Recipe& recipe, int steps, bool reversed = false);

/// Saved after some steps and gone on with by a new trainer: the unbroken run's losses, samples, weights, moments and masters of the
/// steps that follow, bit for bit. With AdamW. Called by all ranks.
void expect_resumes_bit_exact(const framework::Recipe& recipe, parallel::Communicator& world, int steps_before,
                              int steps_after);

double distance(const std::vector<double>& a, const std::vector<double>& b);  ///< Euclidean
double norm(const std::vector<double>& a);

}  // namespace capstan::tests
