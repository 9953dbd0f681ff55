// Texts about options: --help of a subcommand, and the reference in docs/.

#include <algorithm>

#include "framework/encoding.h"
#include "launch/options.h"
#include "parallel/ring_schedule.h"

namespace capstan::launch {

using framework::Option;

namespace {

constexpr std::size_t width = 120, indent = 2;

/// Characters of a UTF-8 text, each one column wide.
std::size_t columns(std::string_view text) {
  return std::size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// "  left   right", with `right` wrapped into its own column; its line breaks stay.
std::string row(const std::string& left, const std::string& right, std::size_t column) {
  std::string result = std::string(indent, ' ') + left, line;
  const auto flush = [&] {
    const std::size_t used = columns(result.substr(result.rfind('\n') + 1));
    result += (used + 1 < column ? std::string(column - used, ' ') : "\n" + std::string(column, ' ')) + line + '\n';
    line.clear();
  };
  for (std::size_t begin = 0; begin < right.size();) {
    const std::size_t end = std::min(right.find_first_of(" \n", begin), right.size());
    const std::string word = right.substr(begin, end - begin);
    if (!line.empty() && column + columns(line) + 1 + columns(word) > width) flush();
    line += (line.empty() ? "" : " ") + word;
    if (end < right.size() && right[end] == '\n') flush();
    begin = end + 1;
  }
  flush();
  return result;
}

/// "--window N": the option as it is typed.
std::string typed(const Option& option, const std::string& name) {
  if (std::holds_alternative<bool*>(option.value)) return "--" + name + ", --no-" + name;
  if (std::holds_alternative<std::int64_t*>(option.value)) return "--" + name + " N";
  if (std::holds_alternative<double*>(option.value)) return "--" + name + " X";
  return "--" + name + " " + (!option.choices.empty() ? "NAME" : option.unit.empty() ? "TEXT" : option.unit);
}

std::string default_of(const Option& option) {
  const std::string value = option.text();
  return value.empty() ? "" : "default " + value;
}

/// "Help. [1 to 64 tokens; default 8]", where `given` is the last part.
std::string described(const Option& option, const std::string& given) {
  const bool free_text = std::holds_alternative<std::string*>(option.value) && option.choices.empty();
  const std::string range = free_text || std::holds_alternative<bool*>(option.value) ? "" : option.allowed();
  const std::string facts = range + (range.empty() || given.empty() ? "" : "; ") + given;
  return option.help + (facts.empty() ? "" : " [" + facts + "]");
}

std::string usage_line(const Syntax& syntax) {
  std::string line = "capstan " + syntax.command;
  for (const Positional& place : syntax.positionals) {
    const std::string word = place.name + (place.many ? "…" : "");
    line += place.required ? " " + word : " [" + word + "]";
  }
  for (const CommandOption& option : syntax.options)
    if (option.required) line += fmt::format(" --{} {}", option.name, option.unit.empty() ? "VALUE" : option.unit);
  const bool more =
      std::any_of(syntax.options.begin(), syntax.options.end(), [](const CommandOption& o) { return !o.required; });
  const std::string section = syntax.sections.size() == 1 ? syntax.sections.front() : "section";
  return line + (more ? " [options]" : "") +
         (syntax.sections.empty() ? "" : fmt::format(" [--{}.key value]…", section));
}

std::string recipe_help(const Syntax& syntax) {
  framework::Recipe recipe;
  std::string result = fmt::format("\nOptions of recipes; each wins over the {}\n",
                                   syntax.over_model ? "model's own, which is its default" : "recipe's line");
  std::string section;
  for (const Option& option : framework::options(recipe)) {
    const std::string own = option.name.substr(0, option.name.find('.'));
    if (std::find(syntax.sections.begin(), syntax.sections.end(), own) == syntax.sections.end()) continue;
    if (own != section) result += fmt::format("[{}]\n", section = own);
    result += row(typed(option, option.name), described(option, syntax.over_model ? "" : default_of(option)), 34);
  }
  return result;
}

/// A cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

/// Reasons of refusals, numbered in the order in which they come up.
class Notes {
 public:
  std::string mark(const std::string& reason) {
    const auto found = std::find(reasons_.begin(), reasons_.end(), reason);
    const std::size_t number = std::size_t(found - reasons_.begin()) + 1;
    if (found == reasons_.end()) reasons_.push_back(reason);
    return fmt::format("refused ({})", number);
  }
  std::string text() const {
    std::string lines;
    for (std::size_t i = 0; i < reasons_.size(); ++i) lines += fmt::format("\n({}) {}\n", i + 1, reasons_[i]);
    return lines;
  }

 private:
  std::vector<std::string> reasons_;
};

}  // namespace

std::string encodings_table() {
  const std::vector<std::string> schedules = parallel::schedule_names();
  std::string result = "| `position.kind` | what it does | from |", rule = "|---|---|---|";
  for (const std::string& schedule : schedules) {
    result += fmt::format(" `{}` |", schedule);
    rule += "---|";
  }
  result += "\n" + rule + "\n";
  Notes notes;
  for (const framework::EncodingKind& row : framework::encoding_kinds()) {
    framework::Recipe recipe;
    recipe.position.kind = row.kind;
    for (const Option& option : framework::options(recipe))
      if (option.name == "position." + row.option) option.set(row.value, "encoding_kinds");
    result +=
        fmt::format("| `{}`{} | {} | {} |", row.kind,
                    row.option.empty() ? "" : fmt::format(", `{} = {}`", row.option, row.value), row.what, row.source);
    for (const std::string& schedule : schedules) {
      std::string reason = framework::refuse_pair(recipe.position, schedule);
      const std::string own = "position.kind = " + row.kind;  // one note serves all rows
      if (const std::size_t at = reason.find(own); at != std::string::npos)
        reason.replace(at, own.size(), "this encoding");
      result += reason.empty() ? " runs |" : fmt::format(" {} |", notes.mark(reason));
    }
    result += "\n";
  }
  return result + notes.text();
}

std::string encodings_reference() {
  return "# Encodings and schedules\n\nWritten by `capstan help-encodings`; a test keeps this page, and the README's "
         "table, equal to "
         "it. Numbers are arXiv papers.\n`ulysses` also takes groups of `grid.heads` ranks inside a ring; it needs kv "
         "heads that "
         "they divide.\n\n" +
         encodings_table();
}

std::string help_text(const Syntax& syntax) {
  std::string result = fmt::format("{}\n{}\n", usage_line(syntax), syntax.summary);
  if (!syntax.positionals.empty()) result += "\nArguments\n";
  for (const Positional& place : syntax.positionals) result += row(place.name, place.help, 26);
  if (!syntax.options.empty()) result += "\nOptions\n";
  for (const CommandOption& option : syntax.options) {
    Value value = option.value;
    const Option bound = bind(option, value);
    result += row(typed(bound, option.name), described(bound, option.required ? "required" : default_of(bound)), 26);
  }
  return result + (syntax.sections.empty() ? "" : recipe_help(syntax));
}

std::string options_reference() {
  std::string result =
      "# Recipe options\n\n"
      "Written by `capstan help-options`; a test keeps this page equal to it. A recipe holds `[section]` and `key = "
      "value`\n"
      "lines, with comments after `#`; the command line takes each option as `--section.key value` and wins over the "
      "recipe.\n"
      "*Rerun*: may differ when a started run is started again; any other difference is refused by name.\n";
  framework::Recipe recipe;
  std::string section;
  for (Option& option : framework::options(recipe)) {
    const std::size_t dot = option.name.find('.');
    if (section != option.name.substr(0, dot)) {
      section = option.name.substr(0, dot);
      result += fmt::format(
          "\n## [{}]\n\n| key | default | allowed | unit | meaning | rerun |\n|---|---|---|---|---|---|\n", section);
    }
    const std::string unit = std::exchange(option.unit, "");
    const std::string value = option.text();
    result += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", option.name.substr(dot + 1),
                          value.empty() ? "" : "`" + cell(value) + "`", cell(option.allowed()), cell(unit),
                          cell(option.help), option.may_change ? "yes" : "");
  }
  return result;
}

}  // namespace capstan::launch
