#pragma once
// Names of checkpoint folders: step-000100.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan::framework {

std::string step_folder_name(std::int64_t step);
/// Step and name of the checkpoint folders in `parent`, the newest first.
std::vector<std::pair<std::int64_t, std::string>> step_folders(const std::string& parent);

}  // namespace capstan::framework
