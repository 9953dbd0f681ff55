#include "launch/evaluation.h"

#include <cstdio>
#include <filesystem>

#include "framework/files.h"
#include "framework/json.h"
#include "kernels/build_info.h"
#include "kernels/threads.h"
#include "parallel/agreement.h"

namespace capstan::launch {

namespace fs = std::filesystem;
using kernels::Device;
using kernels::DType;

Syntax model_syntax(const std::string& command, const std::string& summary, std::int64_t ring,
                    std::vector<CommandOption> own) {
  std::vector<CommandOption> all = {
      CommandOption::text("model", "", "DIR", "Model folder, checkpoint, or run folder (its newest checkpoint).")
          .needed()};
  all.insert(all.end(), own.begin(), own.end());
  const std::vector<CommandOption> rest = {
      CommandOption::integer("ring", ring, 0, 1 << 20, "ranks",
                             "Ranks that share a sequence; 0: all. The rest of the ranks share the work."),
      CommandOption::choice("device", "cpu", {"cpu", "cuda", "ref"},
                            "cpu: fast; cuda: a GPU for each rank; ref: naive, also in double precision."),
      CommandOption::choice("precision", "f32", {"f32", "bf16", "f64"},
                            "bf16 needs --device cpu or cuda, f64 --device ref."),
      CommandOption::integer("threads", 0, 0, 1024, "threads",
                             "Threads of each rank; 0: the cores of a machine, shared out among its ranks."),
      CommandOption::integer("tile", 64, 1, kernels::largest_tile, "tokens",
                             "Attention tile; as in training for the same bits."),
      memory_report_option(),
  };
  all.insert(all.end(), rest.begin(), rest.end());
  return {command, summary, {}, all, {"position"}, true};
}

const framework::Tokenizer& EvaluatedModel::need_tokenizer() const {
  if (!tokenizer)
    fail(ExitCode::bad_data, "{}: the model has no tokenizer; import it again with --tokenizer FILE", folder);
  return *tokenizer;
}

namespace {

/// The model's encoding with the command line's --position.* over it; `changes` names them. Together they must make
/// sense: a factor without a scaling would do nothing, and the figure look as if it had.
framework::PositionConfig position_of(const Arguments& arguments, const framework::CheckpointHeader& trained,
                                      std::string& changes) {
  framework::Recipe recipe;
  recipe.model = trained.model;
  recipe.position = trained.position;
  for (const auto& [name, value] : arguments.recipe_options())
    changes += fmt::format("{}{} = {}", changes.empty() ? "" : ", ", name, value);
  arguments.apply_to(recipe);
  framework::check_recipe(recipe, "command line over " + arguments.text("model"));
  return recipe.position;
}

}  // namespace

EvaluatedModel load_evaluated_model(const Arguments& arguments, parallel::Communicator& world) {
  const std::string precision = arguments.text("precision");
  const Device device = framework::device_of_name(arguments.text("device"));
  const DType type = framework::type_of_precision(precision);
  if (!framework::computes_in(arguments.text("device"), precision))
    fail(ExitCode::usage, "--precision {} is computed on --device {} only", precision,
         precision == "f64" ? "ref" : "cpu and cuda");
  kernels::set_threads(parallel::threads_of_rank(world, arguments.integer("threads")));

  EvaluatedModel loaded;
  loaded.tile = arguments.integer("tile");
  loaded.folder = framework::resolve_model_folder(arguments.text("model"));
  loaded.hash = framework::hex(framework::xxh3_of_file(loaded.folder + "/manifest.json"));
  parallel::require_agreement(world, {{"binary", kernels::build_text()}, {"model " + loaded.folder, loaded.hash}});
  framework::PositionConfig position;
  std::string changes;
  const bool changed = !arguments.recipe_options().empty();
  if (changed) position = position_of(arguments, framework::Checkpoint::open(loaded.folder).header(), changes);
  framework::LoadedModel parts = framework::load_model(loaded.folder, device, type, changed ? &position : nullptr);
  loaded.name = changed ? fmt::format("{} with {}", loaded.folder, changes) : loaded.folder;
  loaded.model = std::move(parts.model);
  loaded.tokenizer = std::move(parts.tokenizer);
  loaded.bos = parts.header.bos;
  loaded.ends = parts.header.end_tokens;
  return loaded;
}

framework::TokenFile open_same_data(parallel::Communicator& world, const std::string& path) {
  framework::TokenFile data = framework::TokenFile::open(path);
  parallel::require_agreement(world, {{"data file " + path, data.info().checksum}});
  return data;
}

void check_same_tokenizer(const framework::TokenFile& data, const EvaluatedModel& loaded) {
  const framework::TokenFileInfo& info = data.info();
  if (loaded.tokenizer && info.tokenizer_hash != loaded.tokenizer->hash())
    fail(ExitCode::bad_data,
         "{}: made with tokenizer {} ({}), the model {} has {} ({}); prepare the text with the model's tokenizer",
         data.path(), info.tokenizer, info.tokenizer_hash, loaded.folder, loaded.tokenizer->name(),
         loaded.tokenizer->hash());
}

parallel::ProcessGrid evaluation_grid(const Arguments& arguments, parallel::Communicator& world) {
  const std::int64_t ring = arguments.integer("ring");
  return parallel::make_process_grid(world, ring ? int(ring) : world.size());
}

parallel::OnDevice evaluation_place(const Arguments& arguments, parallel::Communicator& world) {
  return parallel::OnDevice(world, framework::device_of_name(arguments.text("device")));
}

namespace {

/// Options that change no value: places (what lies there goes by its hash), and how the work is shared.
bool decides_nothing(const std::string& option) {
  for (const char* other : {"model", "data", "json", "ring", "threads", "memory-report"})
    if (option == other) return true;
  return false;
}

}  // namespace

framework::Journal journal_of(const Arguments& arguments, const EvaluatedModel& loaded, const std::string& evaluation,
                              const std::map<std::string, std::string>& contents) {
  const std::string& path = arguments.text("json");
  if (path.empty()) return {};
  nlohmann::ordered_json identity = {{"format", "capstan-journal-1"},
                                     {"evaluation", evaluation},
                                     {"model", loaded.hash},
                                     {"tokenizer", loaded.tokenizer ? loaded.tokenizer->hash() : "none"},
                                     {"position", arguments.recipe_options()},
                                     {"contents", contents}};
  for (const auto& [name, value] : arguments.values())
    if (!decides_nothing(name)) std::visit([&](const auto& held) { identity["options"][name] = held; }, value);
  constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;  // a path may be no UTF-8
  return {path + ".part", identity.dump(-1, ' ', false, replace)};
}

void check_result_path(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  const fs::path parent = fs::path(path).parent_path();
  std::error_code problem;
  if (!parent.empty() && !fs::is_directory(parent, problem))
    fail(ExitCode::io, "--{} {}: there is no folder {}; make it first", option, path, parent.string());
  if (fs::is_directory(path, problem)) fail(ExitCode::io, "--{} {}: is a folder; name a file", option, path);
}

void write_result(const parallel::Communicator& world, const std::string& path, const std::string& text,
                  const framework::Journal& journal) {
  if (path.empty() || world.rank() != 0) return;
  framework::write_text_atomically(path, text);
  std::printf("saved to %s\n", path.c_str());
  framework::remove_journal(world, journal);
}

void print_on_first(const parallel::Communicator& world, const std::string& text) {
  if (world.rank() == 0) std::fputs(text.c_str(), stdout);
}

}  // namespace capstan::launch
