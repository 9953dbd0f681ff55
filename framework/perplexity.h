#pragma once
// Perplexity of a token file: which windows are read, which of their positions count, and the sums.
//
// A stream of n tokens has n - 1 predictions; prediction p reads tokens up to p and is scored on token p + 1. A window
// of N reads N tokens and makes N predictions; nothing is put before it, so BOS stands only where the file has one: at
// a document's start.
//
//   once      N = 4, stride 2, 9 predictions      predictions   0 1 2 3 4 5 6 7 8
//             each prediction counts once         window 0      # # # #                 #: counts
//             in all but the first window         window 1          . . # #             .: context only
//             the last `stride` positions count   window 2              . . # #
//             the last window ends at the end     window 3                . . . #
//   longlora  windows of N predictions every stride; all positions of all windows count (arXiv 2309.12307's eval.py)

#include <cstdint>
#include <string>
#include <vector>

#include "framework/model.h"
#include "framework/result_journal.h"
#include "framework/token_file.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

enum class Convention : std::uint8_t { once, longlora };

struct PerplexityOptions {
  std::int64_t window = 0;  ///< N
  std::int64_t stride = 0;  ///< 0: N / 2
  Convention convention = Convention::once;
  bool joined = false;           ///< one stream over all documents; longlora knows nothing else
  std::int64_t max_windows = 0;  ///< 0: all; otherwise only the first ones
  std::int64_t document_tokens =
      0;  ///< 0: all; otherwise only so many predictions of each document, the same for any window
  std::int64_t tile = 64;
};

/// One window of a token file.
struct Window {
  std::int64_t begin = 0;       ///< first token, counted from the file's start
  std::int64_t length = 0;      ///< predictions; it reads length + 1 tokens
  std::int64_t count_from = 0;  ///< first position of the window that counts
  std::int64_t counted() const { return length - count_from; }
};

/// What an evaluation will do: a pure function of the documents' offsets.
struct WindowPlan {
  std::vector<Window> windows;
  std::int64_t skipped_documents = 0;  ///< of one token: nothing to predict
  std::int64_t short_documents = 0;    ///< read in one window shorter than N (separate)
  std::int64_t words = 0;              ///< of the documents read; meaningful if nothing is counted twice or left out
  bool complete = true;                ///< max_windows and document_tokens cut nothing off
};
WindowPlan plan_windows(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& words,
                        const PerplexityOptions& options);

/// Mean NLL over a range of positions within the window.
struct PositionBucket {
  std::int64_t begin, end;
  std::int64_t counted = 0;
  double mean_nll = 0;
};

struct PerplexityResult {
  PerplexityOptions options;  ///< stride resolved
  double total_nll = 0;       ///< over counted tokens
  double mean_nll = 0, perplexity = 0;
  double word_perplexity = 0;  ///< exp(total NLL / words); 0 if not every prediction counts exactly once
  std::int64_t counted_tokens = 0, windows = 0;
  std::int64_t words = 0;  ///< of the documents; 0 if some of them were cut off
  std::int64_t documents = 0, skipped_documents = 0, short_documents = 0;
  bool complete = true;
  std::string bos;  ///< what stands at a document's start: "1 at the start of each document, nowhere else", "none"
  std::vector<PositionBucket> buckets;
};

/// Windows go over the data axis, each is sharded over the ring. Sums are in double, per window in token order and then
/// over the windows in order, so that they do not depend on the ranks. The journal's items are the windows. Errors
/// (bad_data): fewer than two tokens, a window longer than the data, an id outside the model's vocabulary.
PerplexityResult evaluate_perplexity(Model& model, const parallel::ProcessGrid& grid, const TokenFile& data,
                                     const PerplexityOptions& options, const Journal& journal = {});

/// The result with everything that defines it. `model` and `data`: what the user named.
std::string perplexity_json(const PerplexityResult& result, const std::string& model, const std::string& data,
                            const parallel::ProcessGrid& grid);
/// The same as a table for a terminal.
std::string perplexity_table(const PerplexityResult& result, const std::string& model, const std::string& data);

}  // namespace capstan::framework
