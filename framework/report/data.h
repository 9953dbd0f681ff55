#pragma once
// What `capstan report` reads: run folders (docs/formats.md), each as plain data. A model folder with evaluations beside it is a run
// without training.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan::framework {

/// What metrics.jsonl says of a layer. Not there: NaN.
struct LayerMetrics {
  double mean_gate, horizon, saturated, mean_z, max_z;
};

/// One line of metrics.jsonl. Not there, or null (which is how NaN and infinity are written): NaN.
struct StepLine {
  std::int64_t step = 0;
  double loss, gradient_norm, learning_rate, validation_loss, tokens;
  std::vector<LayerMetrics> layers;
  std::int64_t file = -1;  ///< of data.train, from which all of its sequences are; -1: from several, or not said
};

struct TrainingCurve {
  std::vector<StepLine> steps;    ///< by rising step; of a step written twice the later line
  std::int64_t unreadable = 0;    ///< lines that are no JSON object with a step
  std::int64_t without_loss = 0;  ///< steps whose loss is no finite number
  double tokens() const;          ///< read in all
  /// The files of data.train whose losses do not mix in any step (data.mix = steps), if these are several; else none.
  std::vector<std::int64_t> files_apart() const;
  TrainingCurve of_file(std::int64_t file) const;  ///< its steps alone
  double last_loss() const;  ///< of the last step that has one; else NaN. With files apart: of the first file's
  double last_validation() const;
};
TrainingCurve parse_metrics(const std::string& text);

/// An evaluation's file, and which model it is of: the run as it stands, or stretched (`how`: "position.factor = 2").
struct EvaluationSource {
  std::string file, model, how;
};

struct PerplexityEvaluation {
  EvaluationSource source;
  std::int64_t window = 0, stride = 0, windows = 0, counted_tokens = 0;
  std::int64_t document_tokens = 0;  ///< only so many at each document's start; 0: all
  double mean_nll = 0, perplexity = 0;
  std::string data, convention, documents, bos;
  bool complete = true;
  struct Bucket {
    std::int64_t begin, end, counted;
    double mean_nll;
  };
  std::vector<Bucket> buckets;
};

/// What a task is called on the page.
struct RetrievalTaskName {
  const char *task, *title;
};
/// The tasks that the report knows (framework/retrieval.h), in the page's order; passkey first.
const std::vector<RetrievalTaskName>& retrieval_tasks();

struct RetrievalEvaluation {
  EvaluationSource source;
  std::string task;                     ///< "passkey", "ruler-single", "ruler-multikey"
  std::string prompts;                  ///< "seed 1", "preset longlora"
  std::string haystack, haystack_hash;  ///< of needles: "noise" or the file; empty: another task
  std::int64_t keys = 0;                ///< needles in a prompt
  std::string bos, tokenizer;
  struct Cell {
    std::int64_t length;
    double depth;  ///< -1: drawn for each prompt
    std::int64_t correct, trials;
  };
  std::vector<Cell> cells;
};

/// One set of a task, of `capstan eval task`.
struct TaskSetEvaluation {
  EvaluationSource source;
  std::string task, set, data;  ///< task and set are empty for files that do not say
  std::int64_t examples = 0, right = 0, tokens = 0, right_tokens = 0;
  bool complete = true;
  std::vector<std::string> cell_names;  ///< "digits_a", "digits_b"; empty: no cells
  struct Cell {
    std::vector<std::int64_t> at;  ///< a value for each name
    std::int64_t examples, right;
  };
  std::vector<Cell> cells;
};

struct ReportRun {
  std::string folder, name;  ///< name: the folder's own, or all of it where two would be the same
  std::vector<std::pair<std::string, std::string>>
      options;           ///< effective config, or what the model's manifest says of it
  bool trained = false;  ///< has a config of its own
  std::string position;  ///< "rope+cope"
  std::int64_t planned_steps = 0;
  std::string tokenizer;   ///< name and hash, as they stand in error lines; empty: unknown
  std::string validation;  ///< path and, where the file can be read, checksum; empty: none
  std::string training_data;
  std::string checkpoint;  ///< newest checkpoint or model folder; empty: none
  TrainingCurve curve;
  std::vector<PerplexityEvaluation> perplexity;
  std::vector<RetrievalEvaluation> retrieval;
  std::vector<TaskSetEvaluation> tasks;
  std::vector<std::string> not_shown;  ///< files under eval/ that are of no kind the report knows

  std::string option(const std::string& name) const;  ///< empty if unknown
};

/// Errors: io (no such folder), bad_data (nothing of a run in it; a broken evaluation or manifest), config (its config.cfg).
ReportRun read_run(const std::string& folder);
/// All of them, with names that differ. Errors: usage for a folder named twice; bad_data for runs whose losses are not of the
/// same tokens (another tokenizer): one line with both values.
std::vector<ReportRun> read_runs(const std::vector<std::string>& folders);

/// Adds an evaluation's text to the run; false if it is of no known kind. Error: bad_data, beginning with `file`.
bool add_evaluation(ReportRun& run, const std::string& file, const std::string& text);

}  // namespace capstan::framework
