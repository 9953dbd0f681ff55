// capstan inspect: what a file or folder holds, as text.

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "framework/checkpoint.h"
#include "framework/files.h"
#include "framework/json.h"
#include "framework/safetensors.h"
#include "framework/token_file.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;  // the reader has checked that this does not overflow
  return product;
}

std::string describe_token_file(const std::string& path) {
  const auto file = framework::TokenFile::open(path);
  const auto& info = file.info();
  const auto& offsets = file.document_offsets();
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < offsets.size(); ++i) longest = std::max(longest, offsets[i] - offsets[i - 1]);
  std::string result = fmt::format("{}: token file\n", path);
  const auto line = [&](const char* name, const std::string& value) {
    result += fmt::format("  {:<12}{}\n", name, value);
  };
  line("documents", std::to_string(info.documents));
  line("tokens", std::to_string(info.tokens));
  line("longest", fmt::format("{} tokens", longest));
  line("words", std::to_string(info.words));
  line("vocabulary", std::to_string(info.vocabulary));
  line("bos", info.bos < 0 ? "none" : std::to_string(info.bos));
  line("end", info.end.empty() ? "none" : fmt::format("{}", fmt::join(info.end, ", ")));
  line("tokenizer", fmt::format("{} ({})", info.tokenizer, info.tokenizer_hash));
  line("source", info.source);
  line("checksum", info.checksum);
  return result;
}

std::string tensor_lines(const framework::SafetensorsHeader& header) {
  std::string result;
  for (const auto& [name, tensor] : header.tensors)
    result += fmt::format("  {:<6}{:<20}{}\n", tensor.dtype, shape_text(tensor.shape), name);
  return result;
}

std::int64_t parameters(const framework::SafetensorsHeader& header) {
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : header.tensors) sum += elements(tensor.shape);
  return sum;
}

std::string describe_safetensors(const std::string& path) {
  const auto file = framework::SafetensorsFile::open(path);
  const auto& header = file.header();
  return fmt::format("{}: safetensors file, {} tensors, {} parameters\n", path, header.tensors.size(),
                     parameters(header)) +
         tensor_lines(header);
}

/// The fields of config.json, one a line; nothing if there is no such file.
std::string config_lines(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!fs::exists(path)) return "";
  const auto config = nlohmann::json::parse(framework::read_file(path, std::int64_t(1) << 20), nullptr, false);
  if (!config.is_object()) fail(ExitCode::bad_data, "{}: not a JSON object; restore the file", path);
  constexpr auto replace = nlohmann::json::error_handler_t::replace;  // the file may hold broken UTF-8
  std::string result;
  for (const auto& [name, value] : config.items())
    result += fmt::format("  {} = {}\n", nlohmann::json(name).dump(-1, ' ', true, replace),
                          value.dump(-1, ' ', true, replace));
  return result;
}

std::string describe_model(const std::string& folder) {
  const auto model = framework::open_safetensors_model(folder);
  std::int64_t count = 0;
  std::string tensors;
  for (const auto& file : model.files) {
    count += parameters(file.header());
    tensors += tensor_lines(file.header());
  }
  return fmt::format("{}: model of {} tensors and {} parameters in {} file(s)\n", folder, model.file_of.size(), count,
                     model.files.size()) +
         config_lines(folder) + tensors;
}

std::string ids_text(const std::vector<std::int32_t>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ", "));
}

/// The options of [model] and [position] as a recipe writes them.
std::string option_lines(const framework::CheckpointHeader& header) {
  framework::Recipe recipe;
  recipe.model = header.model;
  recipe.position = header.position;
  std::string result;
  for (const auto& option : framework::options(recipe)) {
    const bool shown = option.name.compare(0, 6, "model.") == 0 || option.name.compare(0, 9, "position.") == 0;
    if (shown && !option.text().empty())
      result += fmt::format("  {} = {}\n", option.name, framework::printable(option.text()));
  }
  return result;
}

/// A model folder, a checkpoint, or a run's newest. Opening verifies every file.
std::string describe_checkpoint(const std::string& path) {
  const auto checkpoint = framework::Checkpoint::open(framework::resolve_model_folder(path));
  const auto& header = checkpoint.header();
  std::int64_t count = 0;
  std::string tensors;
  for (const auto& tensor : checkpoint.tensors()) {
    count += elements(tensor.shape);
    tensors += fmt::format("  {:<6}{:<20}{}\n", tensor.dtype, shape_text(tensor.shape), tensor.name);
  }
  std::string result =
      fmt::format("{}: {}\n", checkpoint.folder(), header.recipe.empty() ? "imported model" : "checkpoint of a run");
  const auto line = [&](const char* name, const std::string& value) {
    result += fmt::format("  {:<12}{}\n", name, value);
  };
  line("step", fmt::format("{} ({} updates)", header.step, header.optimizer_steps));
  line("parameters", fmt::format("{} in {} tensors", count, checkpoint.tensors().size()));
  line("optimizer", checkpoint.has_optimizer() ? "moments are there" : "none");
  line("tokenizer", header.tokenizer.empty() ? "none" : header.tokenizer);
  line("bos", header.bos < 0 ? "none" : std::to_string(header.bos));
  line("end", ids_text(header.end_tokens));
  line("files", "verified against the manifest: sizes and checksums are right");
  return result + option_lines(header) + tensors;
}

/// One kind of thing that can be inspected. The first that fits is taken.
struct Kind {
  bool (*fits)(const std::string& path);
  std::string (*describe)(const std::string& path);
};

bool is_checkpoint(const std::string& path) {
  return fs::is_directory(path) && (fs::exists(path + "/manifest.json") || fs::is_directory(path + "/checkpoints"));
}
bool is_model(const std::string& path) {
  return fs::is_directory(path) &&
         (fs::exists(path + "/model.safetensors") || fs::exists(path + "/model.safetensors.index.json"));
}
bool is_safetensors(const std::string& path) {
  return fs::is_regular_file(path) && fs::path(path).extension() == ".safetensors";
}
bool is_other_file(const std::string& path) { return fs::is_regular_file(path); }

constexpr Kind kinds[] = {
    {is_checkpoint, describe_checkpoint},
    {is_model, describe_model},
    {is_safetensors, describe_safetensors},
    {is_other_file, describe_token_file},  // says itself if the file is none
};

ExitCode run_inspect(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;
  const std::string& path = arguments.positional("PATH");
  std::error_code problem;  // also a name that is too long, or a folder without permission
  if (!fs::exists(path, problem))
    fail(ExitCode::io, "{}: no such file or folder{}", path, problem ? ": " + problem.message() : "");
  const auto kind = std::find_if(std::begin(kinds), std::end(kinds), [&](const Kind& one) { return one.fits(path); });
  if (kind == std::end(kinds))
    fail(ExitCode::bad_data,
         "{}: holds no model (manifest.json, model.safetensors); name a model folder, a checkpoint, a run, a "
         ".safetensors file or a token file",
         path);
  std::fputs(kind->describe(path).c_str(), stdout);
  return ExitCode::done;
}

}  // namespace

Command inspect_command() {
  Command command;
  command.syntax.command = "inspect";
  command.syntax.summary = "Shows what a model, checkpoint, run or token file holds, and checks its files.";
  command.syntax.positionals = {
      {"PATH", "model folder, checkpoint, run folder, .safetensors file or token file", true, false}};
  command.run = run_inspect;
  return command;
}

}  // namespace capstan::launch
