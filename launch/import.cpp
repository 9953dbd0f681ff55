// capstan import: a Hugging Face folder to a model folder.

#include <cstdio>
#include <filesystem>

#include "framework/checkpoint.h"
#include "framework/files.h"
#include "framework/hf_config.h"
#include "framework/hf_weights.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

namespace fs = std::filesystem;

std::string join(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

/// "1,2" as ids.
std::vector<std::int32_t> parse_ids(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  for (const std::string& word : framework::split_list(text)) {
    const bool digits = !word.empty() && word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t id = digits ? std::stoll(word) : -1;
    if (id < 0 || id >= vocabulary)
      fail(ExitCode::usage, "--end-token {}: '{}' is no token; allowed are 0 to {}", text, word, vocabulary - 1);
    ids.push_back(std::int32_t(id));
  }
  return ids;
}

/// Where the tokenizer is: as asked for ("none": nowhere), or beside the model; empty: none.
std::string find_tokenizer(const std::string& asked, const std::string& folder) {
  if (asked == "none") return "";
  if (!asked.empty()) return asked;
  for (const char* name : {"tokenizer.model", "tokenizer.json", "vocab.bpe", "merges.txt", "tokenizer"})
    if (fs::is_regular_file(join(folder, name))) return folder;
  return "";
}

framework::CheckpointHeader header_of(const std::string& folder) {
  try {
    return framework::Checkpoint::open(folder).header();
  } catch (const Error& error) {
    fail(ExitCode::io, "{}: exists and cannot be read as an earlier import ({}); remove it, or choose another --output",
         folder, error.what());
  }
}

/// Only an earlier import may be replaced: it can be made again from where it came. A checkpoint of a run cannot. True
/// if it will be.
bool check_output(const std::string& output) {
  std::error_code problem;
  if (!fs::exists(fs::symlink_status(output, problem))) return false;
  if (fs::is_directory(output, problem) && fs::exists(join(output, "manifest.json"), problem)) {
    const framework::CheckpointHeader old = header_of(output);
    if (old.recipe.empty() && old.step == 0) return true;
    fail(ExitCode::io,
         "{}: is a checkpoint of a run (step {}); only an earlier import is replaced, choose another --output", output,
         old.step);
  }
  fail(ExitCode::io, "{}: exists and is no earlier import; choose another --output, or remove it", output);
}

/// A model folder's options are also a recipe's, so their ranges must hold. Names what is out of range.
void check_ranges(const framework::ModelConfig& model, const framework::PositionConfig& position,
                  const std::string& where) {
  framework::Recipe recipe;
  recipe.model = model;
  recipe.position = position;
  for (const framework::Option& option : framework::options(recipe)) {
    try {
      option.set(option.text(), where);
    } catch (const Error& error) { throw Error(ExitCode::bad_data, error.what()); }
  }
}

struct Import {
  framework::CheckpointHeader header;
  framework::CheckpointExtras extras;
  std::unique_ptr<framework::Model> model;
  std::vector<std::string> left_out;
  std::string tokenizer;  // for people
};

void add_tokenizer(Import& import, const std::string& which, const std::string& end_tokens,
                   const framework::HfConfig& config) {
  framework::CheckpointHeader& header = import.header;
  header.end_tokens = end_tokens.empty() ? std::vector<std::int32_t>(config.eos.begin(), config.eos.end())
                                         : parse_ids(end_tokens, header.model.vocabulary);
  header.bos = config.bos;
  import.tokenizer = "none (name one with --tokenizer to use text with this model)";
  if (which.empty()) return;
  const auto tokenizer = framework::make_tokenizer(which, header.end_tokens);
  if (tokenizer->vocabulary() > header.model.vocabulary)
    fail(ExitCode::bad_data, "{}: the tokenizer has {} tokens, the model {}; give the model's own with --tokenizer",
         which, tokenizer->vocabulary(), header.model.vocabulary);
  if (header.end_tokens.empty()) header.end_tokens = tokenizer->end();
  if (header.bos < 0) header.bos = tokenizer->bos();
  framework::TokenizerFile file = framework::tokenizer_file(which);
  header.tokenizer = file.name;
  import.extras.tokenizer_model = std::move(file.bytes);
  import.tokenizer = fmt::format("{}, {} tokens", tokenizer->name(), tokenizer->vocabulary());
}

Import read_hf_folder(const std::string& folder, const std::string& tokenizer, const std::string& end_tokens) {
  const framework::HfConfig config = framework::read_hf_config(join(folder, "config.json"));
  Import import;
  import.header.model = config.model;
  import.header.position = config.position;
  framework::resolve_sizes(import.header.model, import.header.position);
  check_ranges(import.header.model, import.header.position, join(folder, "config.json"));
  import.extras.hf_config = config.json;
  add_tokenizer(import, find_tokenizer(tokenizer, folder), end_tokens, config);

  const framework::SafetensorsModel weights = framework::open_safetensors_model(folder);
  import.model = std::make_unique<framework::Model>(import.header.model, import.header.position);
  framework::Parameters& parameters = import.model->parameters();
  framework::check_hf_shapes(parameters, weights,
                             folder);  // before memory is taken for sizes that the file does not have
  parameters.allocate(kernels::Device::cpu, kernels::DType::f32, false, [](const std::string&) { return false; });
  framework::ImportedWeights read =
      framework::load_hf_weights(parameters, weights, folder, import.header.position, import.header.model.tied);
  import.extras.source = std::move(read.source);
  import.left_out = std::move(read.left_out);
  return import;
}

std::string ids_text(const std::vector<std::int32_t>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ", "));
}

void print(const Import& import, const std::string& from, const std::string& to, bool replaced) {
  const auto& [header, extras, model, left_out, tokenizer] = import;
  const framework::ModelConfig& m = header.model;
  fmt::print("imported    {}\n", from);
  fmt::print("parameters  {} in {} tensors\n", model->parameters().elements(), model->parameters().all().size());
  fmt::print("shape       {} layers, width {} (mlp {}), {} heads of {}, {} kv heads, vocabulary {}{}\n", m.layers,
             m.hidden_size, m.mlp_size, m.heads, m.head_size, m.kv_heads, m.vocabulary, m.tied ? ", tied" : "");
  fmt::print("block       norm {}, mlp {}, bias {}\n", m.norm, m.mlp, m.bias);
  fmt::print("position    {}, theta {}, trained length {}", header.position.kind, header.position.theta, m.max_length);
  fmt::print("{}\n", header.position.scaling == "none"
                         ? ""
                         : fmt::format(", {} scaling x{}", header.position.scaling, header.position.factor));
  fmt::print("tokenizer   {}; bos {}, end {}\n", tokenizer, header.bos < 0 ? "none" : std::to_string(header.bos),
             ids_text(header.end_tokens));
  if (!left_out.empty())
    fmt::print("left out    {} tensors that repeat rope_theta ({}, …)\n", left_out.size(), left_out.front());
  fmt::print("output      {}{}\n", to, replaced ? " (an earlier import was replaced)" : "");
}

ExitCode run_import(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;  // one rank's work; the others wait for it at the program's end
  const std::string& from = arguments.positional("HF_DIR");
  fs::path output = fs::path(arguments.text("output")).lexically_normal();
  if (!output.has_filename()) output = output.parent_path();  // "model/"
  const bool replaces = check_output(output.string());
  const Import import = read_hf_folder(from, arguments.text("tokenizer"), arguments.text("end-token"));
  const auto alone = parallel::make_self_communicator();
  const std::string parent = output.has_parent_path() ? output.parent_path().string() : ".";
  const std::string saved = framework::save_checkpoint(*alone, parent, output.filename().string(), import.header,
                                                       import.extras, import.model->parameters(), {});
  print(import, from, saved, replaces);
  return ExitCode::done;
}

}  // namespace

Command import_command() {
  Command command;
  command.syntax.command = "import";
  command.syntax.summary = "Turns a Hugging Face folder (Llama, Mistral without window) into a model folder.";
  command.syntax.positionals = {
      {"HF_DIR", "folder with config.json and model.safetensors (or its index and shards)", true, false}};
  command.syntax.options = {
      CommandOption::text("output", "", "DIR", "Model folder to write. An earlier import of this name is replaced.")
          .needed(),
      CommandOption::text(
          "tokenizer", "", "bytes|none|MODEL",
          "SentencePiece .model file, tokenizer.json (byte-level BPE), or bytes. Empty: tokenizer.model in HF_DIR, "
          "else tokenizer.json, if there is one. none: the model knows ids only."),
      CommandOption::text("end-token", "", "ID,ID", "Token ids that end a text. Empty: eos_token_id of config.json."),
  };
  command.run = run_import;
  return command;
}

}  // namespace capstan::launch
