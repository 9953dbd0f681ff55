#include "framework/training_data.h"

#include "framework/files.h"
#include "framework/tokenizer.h"

namespace capstan::framework {
namespace {

std::vector<double> numbers(const std::string& list) {
  std::vector<double> out;
  for (const std::string& item : split_list(list)) out.push_back(std::stod(item));  // check_recipe has read them
  return out;
}

Dataset open_files(const DataConfig& data, const std::vector<std::string>& paths, const std::vector<double>& weights,
                   std::int64_t run) {
  return Dataset(paths, weights, data.context, data.documents == "joined", data.seed, run);
}

void check_vocabulary(const Dataset& data, std::int64_t vocabulary) {
  for (const TokenFile& file : data.files())
    if (file.info().vocabulary > vocabulary)
      fail(ExitCode::bad_data,
           "{}: its vocabulary of {} is larger than the model's {}: prepare the text with the model's tokenizer",
           file.path(), file.info().vocabulary, vocabulary);
}

/// Of a built-in, or of the tokenizer's file.
std::string hash_of(const TextConventions& text) {
  if (is_builtin_tokenizer(text.tokenizer)) return make_tokenizer(text.tokenizer)->hash();
  return hex(xxh3_of(text.tokenizer_model.data(), text.tokenizer_model.size()));
}

void require_tokenizer(const Dataset& data, const std::string& owner, const std::string& name,
                       const std::string& hash) {
  for (const TokenFile& file : data.files()) {
    const TokenFileInfo& info = file.info();
    if (info.tokenizer_hash != hash)
      fail(ExitCode::bad_data, "{}: made with tokenizer {} ({}), but {} is {} ({}): prepare the text with that one",
           file.path(), printable(info.tokenizer), printable(info.tokenizer_hash), owner, printable(name), hash);
  }
}

void require_tokenizer(const TrainingData& data, const std::string& owner, const std::string& name,
                       const std::string& hash) {
  require_tokenizer(data.train, owner, name, hash);
  if (data.validation) require_tokenizer(*data.validation, owner, name, hash);
}

/// The built-in that made these tokens; empty if none did. Told by the hash: a file may have any name.
std::string builtin_of(const TokenFileInfo& info) {
  for (const std::string& name : builtin_tokenizers())
    if (make_tokenizer(name)->hash() == info.tokenizer_hash) return name;
  return "";
}

}  // namespace

TrainingData open_training_data(Recipe& recipe) {
  const std::vector<std::string> paths = split_list(recipe.data.train);
  if (paths.empty())
    fail(ExitCode::config, "data.train is empty: name one or more token files (capstan prepare makes them)");
  const std::int64_t run = recipe.data.mix == "steps" ? recipe.train.sequences : 1;
  TrainingData data{open_files(recipe.data, paths, numbers(recipe.data.weights), run), {}};
  if (!recipe.data.validation.empty()) data.validation = open_files(recipe.data, {recipe.data.validation}, {}, 1);
  if (data.train.windows() < recipe.train.sequences)
    fail(
        ExitCode::bad_data,
        "data.train = {} holds {} tokens = {} sequences of {}, one step needs train.sequences = {}: use more text or a "
        "smaller step",
        recipe.data.train, data.train.tokens(), data.train.windows(), recipe.data.context, recipe.train.sequences);
  if (recipe.model.vocabulary == 0) recipe.model.vocabulary = data.train.vocabulary();
  check_vocabulary(data.train, recipe.model.vocabulary);
  if (data.validation) check_vocabulary(*data.validation, recipe.model.vocabulary);
  return data;
}

TextConventions text_conventions(const Recipe& recipe, const TrainingData& data, const Checkpoint* start) {
  const TokenFile& first = data.train.files()[0];
  const TokenFileInfo& info = first.info();
  require_tokenizer(data, "that of " + first.path(), info.tokenizer, info.tokenizer_hash);
  TextConventions text;
  if (start) {
    const CheckpointHeader& header = start->header();
    text = {header.tokenizer, start->extras().tokenizer_model, header.bos, header.end_tokens};
  }
  if (!text.tokenizer.empty())
    require_tokenizer(data, "that of the model " + start->folder(), text.tokenizer, hash_of(text));
  if (!recipe.data.tokenizer.empty()) {
    const auto named = make_tokenizer(recipe.data.tokenizer);
    require_tokenizer(data, "data.tokenizer = " + recipe.data.tokenizer, named->name(), named->hash());
    const TokenizerFile file = tokenizer_file(recipe.data.tokenizer);
    text.tokenizer = file.name;
    text.tokenizer_model = file.bytes;
  }
  if (text.tokenizer.empty()) text.tokenizer = builtin_of(info);  // needs no file
  if (text.bos < 0) text.bos = info.bos;
  if (text.end_tokens.empty()) text.end_tokens = info.end;
  return text;
}

}  // namespace capstan::framework
