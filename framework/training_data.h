#pragma once
// What a run reads: token files, checked against its recipe and the model that it starts from. `train` and `plan` share
// these checks, so that what plan accepts also starts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint.h"
#include "framework/dataset.h"

namespace capstan::framework {

struct TrainingData {
  Dataset train;
  std::optional<Dataset> validation;
};

/// Opens the files that [data] names. A model.vocabulary of 0 becomes theirs. Errors: io, config (none is named),
/// bad_data (as Dataset; fewer sequences than a step; a vocabulary larger than the model's).
TrainingData open_training_data(Recipe& recipe);

/// How the run's checkpoints read and write text.
struct TextConventions {
  std::string tokenizer;        ///< as in CheckpointHeader; empty: the checkpoints will know ids only
  std::string tokenizer_model;  ///< bytes of the tokenizer's file, or empty
  std::int32_t bos = -1;
  std::vector<std::int32_t> end_tokens;
};

/// From the start model (null: from scratch), data.tokenizer and the token files. Ids of another tokenizer stand for
/// other words: what made the files must be what the model has and what the recipe names. Errors: bad_data, and those
/// of make_tokenizer.
TextConventions text_conventions(const Recipe& recipe, const TrainingData& data, const Checkpoint* start);

}  // namespace capstan::framework
