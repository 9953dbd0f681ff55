// capstan export: a model folder, checkpoint or run to a Hugging Face folder.

#include <cstdio>
#include <filesystem>

#include "framework/checkpoint.h"
#include "framework/files.h"
#include "framework/hf_config.h"
#include "framework/hf_weights.h"
#include "framework/json.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;
using framework::Checkpoint;
using Json = nlohmann::ordered_json;

std::string join(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

/// The position as config.json said it. An import writes out what was left to a rule (the length before scaling); as
/// long as the rule still gives the same, it is left to it again, so that an unchanged model has an unchanged
/// config.json.
framework::PositionConfig position_to_export(const framework::CheckpointHeader& header, const std::string& original) {
  framework::PositionConfig position = header.position;
  if (original.empty()) return position;
  const framework::HfConfig before = framework::parse_hf_config(original, "hf_config.json");
  const bool by_rule = before.position.original_length == 0 && before.model.max_length == header.model.max_length;
  if (by_rule && before.position.scaling == position.scaling && position.original_length == before.model.max_length)
    position.original_length = 0;
  return position;
}

/// config.json of the model as it is now. Hugging Face casts to torch_dtype when it loads, so that must be the file's
/// type.
std::string config_text(const Checkpoint& checkpoint, const std::string& dtype) {
  const framework::CheckpointHeader& header = checkpoint.header();
  const std::string& original = checkpoint.extras().hf_config;
  const std::string updated =
      framework::updated_hf_config(original, header.model, position_to_export(header, original), 0);
  Json config = Json::parse(updated);
  const std::string torch_type = dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
  for (const char* key : {"torch_dtype", "dtype"})
    if (config.contains(key) && config[key] != torch_type) config[key] = torch_type;
  if (original.empty()) {
    if (header.bos >= 0) config["bos_token_id"] = header.bos;
    if (header.end_tokens.size() == 1) config["eos_token_id"] = header.end_tokens.front();
    if (header.end_tokens.size() > 1) config["eos_token_id"] = header.end_tokens;
  }
  return config == Json::parse(updated) ? updated : config.dump(2) + "\n";
}

/// The output as the next reader sees it: same tensors, same bytes; a configuration that describes them.
void verify(const std::string& folder, const std::vector<framework::SafetensorToWrite>& tensors,
            const framework::CheckpointHeader& header) {
  const auto written = framework::open_safetensors_model(folder);
  CAPSTAN_CHECK(written.file_of.size() == tensors.size(), "{}: {} tensors written, {} read", folder, tensors.size(),
                written.file_of.size());
  for (const auto& tensor : tensors) {
    const auto& file = written.files.at(written.file_of.at(tensor.name));
    const auto& info = file.header().tensors.at(tensor.name);
    if (info.dtype != tensor.dtype || info.shape != tensor.shape || file.raw(tensor.name) != tensor.bytes)
      fail(ExitCode::io, "{}: tensor '{}' reads back other than it was written; is the disk sound?", file.path(),
           tensor.name);
  }
  const framework::HfConfig config = framework::read_hf_config(join(folder, "config.json"));
  const auto same = config.model.hidden_size == header.model.hidden_size &&
                    config.model.layers == header.model.layers && config.model.vocabulary == header.model.vocabulary &&
                    config.model.tied == header.model.tied && config.model.norm == header.model.norm &&
                    config.model.bias == header.model.bias && config.model.mlp == header.model.mlp &&
                    config.position.kind == header.position.kind && config.position.scaling == header.position.scaling;
  CAPSTAN_CHECK(same, "{}/config.json does not describe the model", folder);
}

/// In the metadata of an export, so that it may be replaced by a later one and nobody's only copy of a model is.
const std::pair<const std::string, std::string> export_mark{"writer", "capstan export"};

bool is_export(const std::string& path) {
  try {
    const auto metadata = framework::SafetensorsFile::open(path).header().metadata;
    const auto found = metadata.find(export_mark.first);
    return found != metadata.end() && found->second == export_mark.second;
  } catch (const Error&) {  // then it is not one that was finished
    return false;
  }
}

/// Only the files of an earlier export may be there.
void check_output(const std::string& output) {
  std::error_code problem;
  if (!fs::exists(fs::symlink_status(output, problem))) return;
  if (!fs::is_directory(output, problem)) fail(ExitCode::io, "{}: is not a folder; choose another --output", output);
  for (const std::string& name : framework::list_folder(output))
    if (name != "config.json" && name != "model.safetensors" && !framework::is_tokenizer_file(name) &&
        name != "tokenizer")
      fail(ExitCode::io, "{}: holds {}, which no export writes; choose another --output, or an empty folder", output,
           framework::printable(name));
  const std::string model = join(output, "model.safetensors");
  if (fs::exists(model, problem) && !is_export(model))
    fail(ExitCode::io, "{}: holds a model that no export wrote; choose another --output, or remove it", output);
}

ExitCode run_export(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;  // one rank's work; the others wait for it at the program's end
  const std::string& output = arguments.text("output");
  check_output(output);
  const Checkpoint checkpoint = Checkpoint::open(framework::resolve_model_folder(arguments.positional("MODEL")));
  const std::vector<framework::SafetensorToWrite> tensors = framework::hf_tensors(checkpoint, arguments.text("type"));
  std::string dtype = "F32";
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (tensor.name == "model.embed_tokens.weight") dtype = tensor.dtype;
    bytes += std::int64_t(tensor.bytes.size());
  }

  framework::require_free_bytes(output, bytes);
  std::error_code problem;
  fs::create_directories(output, problem);
  if (problem) fail(ExitCode::io, "{}: cannot be made: {}; choose another --output", output, problem.message());
  // config.json comes last: without it no reader takes the folder for a model.
  fs::remove(join(output, "config.json"), problem);
  for (const char* name : {framework::tokenizer_model_name, framework::tokenizer_json_name, "tokenizer"})
    fs::remove(join(output, name), problem);
  framework::write_safetensors(join(output, "model.safetensors"), tensors,
                               {{"format", "pt"}, export_mark});  // Hugging Face refuses a file without it
  const std::string& tokenizer = checkpoint.header().tokenizer;
  if (framework::is_builtin_tokenizer(tokenizer))
    framework::write_text_atomically(join(output, "tokenizer"), tokenizer + "\n");
  if (framework::is_tokenizer_file(tokenizer))
    framework::write_text_atomically(join(output, tokenizer), checkpoint.extras().tokenizer_model);
  framework::write_text_atomically(join(output, "config.json"), config_text(checkpoint, dtype));
  verify(output, tensors, checkpoint.header());

  fmt::print("exported    {} (step {})\n", checkpoint.folder(), checkpoint.header().step);
  fmt::print("tensors     {} of type {}, {} bytes, read back and equal\n", tensors.size(), dtype, bytes);
  for (const auto& tensor : checkpoint.tensors())
    if (tensor.dtype == "f64") {
      fmt::print("rounded     the model is in double precision, the file in {}\n", dtype);
      break;
    }
  fmt::print("tokenizer   {}\n", checkpoint.header().tokenizer.empty() ? "none" : checkpoint.header().tokenizer);
  fmt::print("output      {}\n", output);
  const auto note = [](const std::string& what) {
    fmt::print("note        Hugging Face's library refuses the folder: its Llama does not know {}\n", what);
  };
  const framework::CheckpointHeader& header = checkpoint.header();
  if (header.position.kind != "rope") note("the encoding " + header.position.kind);
  if (header.model.norm != "pre" || !header.model.gated())
    note(fmt::format("a block with norm = {}, mlp = {}", header.model.norm, header.model.mlp));
  return ExitCode::done;
}

}  // namespace

Command export_command() {
  Command command;
  command.syntax.command = "export";
  command.syntax.summary = "Turns a model into a Hugging Face folder.";
  command.syntax.positionals = {
      {"MODEL", "model folder, checkpoint, or run folder (its newest checkpoint)", true, false}};
  command.syntax.options = {
      CommandOption::text("output", "", "HF_DIR", "Folder to write. An earlier export there is replaced.").needed(),
      CommandOption::choice(
          "type", "auto", {"auto", "f32", "bf16"},
          "Of the tensors. auto: f32, or what was imported if it still holds every value; bf16: rounded "
          "to the nearest."),
  };
  command.run = run_export;
  return command;
}

}  // namespace capstan::launch
