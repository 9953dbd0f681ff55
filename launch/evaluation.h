#pragma once
// What `generate` and `eval` share: the model named on the command line, stretched or not, and where results go.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/checkpoint.h"
#include "framework/result_journal.h"
#include "framework/task_evaluation.h"
#include "framework/token_file.h"
#include "launch/command.h"
#include "parallel/placement.h"
#include "parallel/process_grid.h"

namespace capstan::launch {

/// A command on a model: --model, `own`, --ring, --device, --precision, --tile, and the recipe options of [position],
/// laid over the model's. `ring`: the default of --ring; 0 stands for all ranks.
Syntax model_syntax(const std::string& command, const std::string& summary, std::int64_t ring,
                    std::vector<CommandOption> own);

/// A model ready to run on this rank.
struct EvaluatedModel {
  std::string folder;  ///< where it was found
  std::string name;    ///< as a report names it: folder, and what was overridden
  std::string hash;    ///< of its manifest, which holds those of all its files
  std::unique_ptr<framework::Model> model;
  std::unique_ptr<framework::Tokenizer> tokenizer;  ///< absent if the model has none
  // What the model was trained with, which may be less than what its tokenizer could add.
  std::int32_t bos = -1;           ///< -1: none
  std::vector<std::int32_t> ends;  ///< empty: none
  std::int64_t tile = 64;

  /// Error (bad_data) if the model has none.
  const framework::Tokenizer& need_tokenizer() const;
};

/// Loads what --model names; --position.* options win over the model's own.
/// All ranks call; ranks whose binary or model differ are refused.
EvaluatedModel load_evaluated_model(const Arguments& arguments, parallel::Communicator& world);

/// Opens a token file that all ranks see alike. Called by all of them.
framework::TokenFile open_same_data(parallel::Communicator& world, const std::string& path);

/// A file made with another tokenizer has other ids for the same words: its figure would be meaningless, yet look like
/// one. Error (bad_data). A model without a tokenizer takes any file.
void check_same_tokenizer(const framework::TokenFile& data, const EvaluatedModel& loaded);

/// The rank on --device. It must outlive the model, and its world() serves the rest of the command. Called by all ranks.
parallel::OnDevice evaluation_place(const Arguments& arguments, parallel::Communicator& world);
/// data × ring by --ring.
parallel::ProcessGrid evaluation_grid(const Arguments& arguments, parallel::Communicator& world);

/// Where an evaluation notes its items: FILE.part beside --json FILE; nowhere without it. Its identity: the evaluation's name,
/// the model's and the tokenizer's hash, --position.*, every option that can change a value, and `contents`: name and
/// hash of what else is read.
framework::Journal journal_of(const Arguments& arguments, const EvaluatedModel& loaded, const std::string& evaluation,
                              const std::map<std::string, std::string>& contents);

/// What `eval task` finds.
struct TaskEvaluation {
  std::vector<framework::TaskResult> results;  ///< one for each file
  std::string table, json;
};
/// With the arguments of `eval task`; writes nothing. Called by all ranks, and the same on all.
TaskEvaluation evaluate_tasks(const Arguments& arguments, parallel::Communicator& world);

/// Refuses a result file that cannot be written, before the work. An empty path is no file.
void check_result_path(const std::string& option, const std::string& path);
/// On rank 0: atomically, then says where, then removes the journal. An empty path writes nothing.
void write_result(const parallel::Communicator& world, const std::string& path, const std::string& text,
                  const framework::Journal& journal = {});
void print_on_first(const parallel::Communicator& world, const std::string& text);

}  // namespace capstan::launch
