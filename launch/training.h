#pragma once
// What the commands that train share: options beside those of recipes, and how they change a recipe.

#include <string>
#include <utility>
#include <vector>

#include "framework/training_data.h"
#include "launch/options.h"

namespace capstan::launch {

/// --max-time, --device, --memory-report.
std::vector<CommandOption> training_options();

/// "section.key" and value, to be laid over the recipe in this order: the recipe options, then what --device and --max-time
/// stand for.
std::vector<std::pair<std::string, std::string>> training_overrides(const Arguments& arguments);

/// Opens all files that training by the recipe would read, with its checks, and fills in what the recipe leaves to them.
framework::TrainingData open_files(framework::Recipe& recipe);

/// The value of an option that names a run folder, or `otherwise` if it was not given. Error (usage): it is empty.
std::string run_folder(const Arguments& arguments, const std::string& option, const std::string& otherwise);

}  // namespace capstan::launch
