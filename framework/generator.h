#pragma once
// Text from a model, one token at a time, over keys that are cached on the ranks of a ring (parallel/decode.h).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/model.h"
#include "framework/tokenizer.h"
#include "parallel/decode.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

/// The cache of one sequence and the model that fills it. All ranks of the ring call the same members in the same order
/// and get the same bits.
class Generator {
 public:
  /// prefill_chunk: tokens of the prompt that are taken at a time, rounded up to whole units (Model::unit); 0: all. The
  /// first ones go through a ring, those after by pass_q: their row states travel to the keys in the cache.
  Generator(Model& model, parallel::Communicator& ring, std::int64_t tile, std::int64_t prefill_chunk = 0)
      : model_(model), ring_(ring), tile_(tile), prefill_chunk_(prefill_chunk) {}

  /// Begins a new sequence with at least one token. total_length: prompt and all tokens to come, for scalings that
  /// depend on it (a declared position.length goes before). Returns the logits [V] of the token after the prompt.
  View prefill(const std::vector<std::int32_t>& prompt, std::int64_t total_length);
  /// Appends one token. Returns the logits [V] of the next one.
  View step(std::int32_t token);

  std::int64_t length() const { return layout_ ? layout_->length() : 0; }
  std::int64_t vocabulary() const { return model_.config().vocabulary; }

 private:
  View next_logits(const View& hidden_row);
  Tensor prefill_part(const std::vector<std::int32_t>& prompt, std::int64_t begin, std::int64_t end);

  Model& model_;
  parallel::Communicator& ring_;
  std::int64_t tile_, prefill_chunk_, total_length_ = 0;
  std::optional<parallel::GrowingLayout> layout_;
  std::vector<parallel::KeyCache> caches_;  // per layer
  Tensor logits_;                           // [1, V]
};

/// How the next token is chosen.
struct Sampling {
  double temperature = 0;  ///< 0: greedy
  std::uint64_t seed = 0;
};

/// logits [V]. Greedy: the largest, the lowest id among equals. Otherwise softmax(logits / temperature), drawn by a
/// pure function of (seed, document, position). Error (bad_data): logits that are not finite.
std::int32_t choose_token(const View& logits, const Sampling& sampling, std::int64_t document, std::int64_t position);

struct Generated {
  std::vector<std::int32_t> ids;  ///< new tokens; the last is an end token if `ended`
  bool ended = false;
};

/// Up to `tokens` new tokens after the prompt; stops after one of `ends`.
Generated generate_tokens(Generator& generator, const std::vector<std::int32_t>& prompt, std::int64_t tokens,
                          const std::vector<std::int32_t>& ends, const Sampling& sampling, std::int64_t document = 0);

struct DocumentOptions {
  std::int64_t documents = 1;   ///< how many whole ones are wanted
  std::int64_t max_tokens = 0;  ///< new tokens after which a document counts as unfinished
  std::int32_t bos = -1;
  std::vector<std::int32_t> ends;
  Sampling sampling;
  std::int64_t tile = 64;
  std::function<void(std::int64_t made, std::int64_t wanted)>
      progress;  ///< on world rank 0, now and then; may be empty
};

struct GeneratedDocuments {
  std::vector<std::vector<std::int32_t>>
      documents;                ///< without BOS and end token, in order of their numbers, on every rank
  std::int64_t unfinished = 0;  ///< dropped among the numbers before the last one kept
  std::int64_t empty = 0;       ///< dropped: ended at once
  std::int64_t tokens = 0;      ///< of the kept ones, with BOS and end token
};

/// Documents from BOS to an end token. Number i is made by data rank i mod data and depends on (model, seed, i) only;
/// the first `documents` numbers that end within max_tokens are kept. Error (config): almost none of them ends.
GeneratedDocuments generate_documents(Model& model, const parallel::ProcessGrid& grid, const DocumentOptions& options);

}  // namespace capstan::framework
