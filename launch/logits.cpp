// capstan logits: all logits of a text, for comparison with other programs.

#include "framework/logits.h"

#include <cstdio>

#include "framework/files.h"
#include "framework/hdf5_file.h"
#include "framework/token_file.h"
#include "launch/command.h"
#include "launch/evaluation.h"

namespace capstan::launch {
namespace {

constexpr std::int64_t most_logits = std::int64_t(1) << 30;

void write_logits(const std::string& path, const std::vector<std::int32_t>& ids, const kernels::Tensor& logits) {
  framework::write_atomically(path, [&](const std::string& temporary) {
    framework::Hdf5File file = framework::Hdf5File::create(temporary);
    file.set_text("format", "capstan-logits-1");
    file.write("tokens", std::vector<std::int64_t>(ids.begin(), ids.end()));
    file.write("logits", framework::Hdf5Type::f32, {logits.shape()[0], logits.shape()[1]}, logits.as<float>());
    file.close();
  });
}

ExitCode run_logits(const Arguments& arguments, parallel::Communicator& all_ranks) {
  check_result_path("output", arguments.text("output"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const auto grid = evaluation_grid(arguments, world);
  const framework::TokenFile data = open_same_data(world, arguments.text("data"));
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  check_same_tokenizer(data, loaded);
  const std::int64_t tokens = arguments.integer("tokens"), vocabulary = loaded.model->config().vocabulary;
  if (tokens > data.info().tokens)
    fail(ExitCode::usage, "--tokens {}: {} holds {}; ask for fewer", tokens, data.path(), data.info().tokens);
  if (tokens * vocabulary > most_logits)
    fail(ExitCode::usage, "--tokens {}: {} logits for a vocabulary of {}; at most {} are written: ask for {} or fewer",
         tokens, tokens * vocabulary, vocabulary, most_logits, most_logits / vocabulary);
  const std::vector<std::int32_t> ids = data.read(0, tokens);
  const kernels::Tensor logits = all_logits(*loaded.model, *grid.ring, ids, loaded.tile);
  if (world.rank() == 0) {
    write_logits(arguments.text("output"), ids, logits);
    std::printf("logits [%lld, %lld] saved to %s\n", (long long)tokens, (long long)vocabulary,
                arguments.text("output").c_str());
  }
  return ExitCode::done;
}

}  // namespace

Command logits_command() {
  Command command;
  command.syntax =
      model_syntax("logits", "Writes all logits of a token file's first tokens, for comparison with other programs.", 0,
                   {CommandOption::text("data", "", "FILE", "Token file (capstan prepare).").needed(),
                    CommandOption::integer("tokens", 512, 1, std::int64_t(1) << 30, "tokens",
                                           "So many, read as one sequence with positions from 0."),
                    CommandOption::text("output", "", "FILE", "HDF5: tokens [N] i64, logits [N, V] f32.").needed()});
  command.run = run_logits;
  return command;
}

}  // namespace capstan::launch
