#include "framework/result_journal.h"

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "framework/files.h"
#include "framework/json.h"

namespace capstan::framework {

namespace {

using Json = nlohmann::ordered_json;

std::string line_of(std::int64_t number, const std::string& text) {
  CAPSTAN_CHECK(!text.empty() && text.find('\n') == std::string::npos, "item {} is no line: '{}'", number, text);
  return fmt::format("{{\"number\":{},\"value\":{}}}\n", number, text);
}

/// Puts a line's text into `items`; false if it is none of ours, or cut off.
bool take_line(const std::string& line, std::vector<std::string>& items) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("number") || !json.contains("value")) return false;
  const Json& number = json["number"];
  if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= items.size()) return false;
  items[number.get<std::size_t>()] = json["value"].dump();
  return true;
}

/// The items of some lines, up to the first one that is broken; empty texts are missing.
std::vector<std::string> items_of(const std::string& lines, std::int64_t count) {
  std::vector<std::string> items(static_cast<std::size_t>(count));
  std::stringstream text(lines);
  for (std::string line; std::getline(text, line);)
    if (!take_line(line, items)) break;
  return items;
}

/// What stands under the identity; nothing if the file is of another one, or not there.
std::string noted_lines(const Journal& journal) {
  std::error_code problem;
  if (journal.path.empty() || !std::filesystem::exists(journal.path, problem)) return "";
  const std::string text = read_file(journal.path), head = journal.identity + "\n";
  if (text.starts_with(head)) return text.substr(head.size());
  fmt::print("{}: of another evaluation; starting over\n", journal.path);
  return "";
}

/// The file, from its first new item on: an evaluation that fails at once leaves none.
class JournalFile {
 public:
  JournalFile(const Journal& journal, const std::vector<std::string>& known) : journal_(journal), known_(known) {}
  ~JournalFile() {
    if (file_) std::fclose(file_);
  }
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  void append(const std::string& lines) {
    if (!file_) open();
    if (std::fputs(lines.c_str(), file_) < 0 || std::fflush(file_) != 0)
      fail(ExitCode::io, "{}: cannot be written: is the disk full?", journal_.path);
  }

 private:
  /// Without the lines that are cut off or of another evaluation.
  void open() {
    std::string text = journal_.identity + "\n";
    for (std::size_t i = 0; i < known_.size(); ++i)
      if (!known_[i].empty()) text += line_of(std::int64_t(i), known_[i]);
    write_text_atomically(journal_.path, text);
    file_ = std::fopen(journal_.path.c_str(), "a");
    if (!file_) fail(ExitCode::io, "{}: cannot be opened for writing", journal_.path);
  }

  const Journal& journal_;
  const std::vector<std::string> known_;  ///< before this run
  std::FILE* file_ = nullptr;
};

std::vector<std::int64_t> missing_of(const std::vector<std::string>& items) {
  std::vector<std::int64_t> missing;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].empty()) missing.push_back(std::int64_t(i));
  return missing;
}

void say_known(const Journal& journal, std::size_t known, std::size_t count) {
  if (known > 0) fmt::print("going on: {} of {} items are known from {}\n", known, count, journal.path);
  std::fflush(stdout);
}

}  // namespace

std::vector<std::string> collect_items(const parallel::ProcessGrid& grid, const Journal& journal, std::int64_t count,
                                       const std::function<std::string(std::int64_t)>& make) {
  const bool is_first = grid.world.rank() == 0;
  std::vector<std::string> items = items_of(grid.world.broadcast(is_first ? noted_lines(journal) : "", 0), count);
  const std::vector<std::int64_t> missing = missing_of(items);
  if (is_first) say_known(journal, items.size() - missing.size(), items.size());
  JournalFile file(journal, items);
  for (std::size_t round = 0; round < missing.size(); round += std::size_t(grid.data_size)) {
    const std::size_t mine = round + std::size_t(grid.data_rank);
    const std::vector<std::string> made = grid.data->all_gather(mine < missing.size() ? make(missing[mine]) : "");
    std::string lines;
    for (std::size_t i = 0; i < made.size() && round + i < missing.size(); ++i) {
      const std::int64_t number = missing[round + i];
      lines += line_of(number, made[i]);
      items[static_cast<std::size_t>(number)] = made[i];
    }
    if (is_first && !journal.path.empty()) file.append(lines);
  }
  return items;
}

void remove_journal(const parallel::Communicator& world, const Journal& journal) {
  if (journal.path.empty() || world.rank() != 0) return;
  std::error_code problem;
  std::filesystem::remove(journal.path, problem);
  if (problem) fail(ExitCode::io, "{}: cannot be removed: {}", journal.path, problem.message());
}

}  // namespace capstan::framework
