// Recipe files. A reader of lines of our own, because the errors name the line
// (Boost's reader of INI files keeps none).
//
//   # comment
//   [section]
//   key = value   # a comment begins at the line's start or after a space
//   key = "text with # or spaces at its ends"   # in quotes, \" and \\ stand for " and \.

#include <algorithm>
#include <map>

#include "framework/config.h"
#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr std::int64_t size_limit = std::int64_t(1) << 20;
constexpr const char* blanks = " \t\r";

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(blanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

/// Index of the quote that closes the one at text[0]; npos: none.
std::size_t closing_quote(const std::string& text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    else if (text[i] == '"') return i;
  }
  return std::string::npos;
}

/// The text before its comment; a # inside the quotes that open the text is none.
std::string without_comment(const std::string& text) {
  std::size_t from = 0;
  if (!text.empty() && text[0] == '"') from = std::min(closing_quote(text), text.size() - 1) + 1;
  for (std::size_t i = from; i < text.size(); ++i)
    if (text[i] == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) return trimmed(text.substr(0, i));
  return trimmed(text);
}

/// Only what names are made of; so that error lines never repeat binary junk.
bool is_name(const std::string& text) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits);
}

std::string section_of(const std::string& name) { return name.substr(0, name.find('.')); }

class RecipeReader {
 public:
  RecipeReader(Recipe& recipe, std::string path) : options_(options(recipe)), path_(std::move(path)) {
    for (const Option& option : options_) {
      names_.push_back(option.name);
      if (sections_.empty() || sections_.back() != section_of(option.name))
        sections_.push_back(section_of(option.name));
    }
  }

  void read(const std::string& text) {
    const std::string mark = "\xEF\xBB\xBF";  // some editors write this in front of UTF-8
    for (std::size_t begin = text.compare(0, 3, mark) == 0 ? 3 : 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++line_;
      read_line(trimmed(text.substr(begin, end - begin)));
      begin = end + 1;
    }
  }

 private:
  std::string where() const { return fmt::format("{}:{}", path_, line_); }

  void read_line(const std::string& line) {
    if (line.empty() || line[0] == '#') return;
    if (line[0] == '[') return read_section(without_comment(line));
    const std::size_t equals = line.find('=');
    const std::string key = trimmed(line.substr(0, equals));
    if (equals == std::string::npos || !is_name(key))
      fail(ExitCode::config, "{}: not a line of a recipe; write [section], key = value, or a comment after #", where());
    read_key(key, without_comment(trimmed(line.substr(equals + 1))));
  }

  void read_section(const std::string& line) {
    const std::string name = line.back() == ']' ? trimmed(line.substr(1, line.size() - 2)) : "";
    if (!is_name(name)) fail(ExitCode::config, "{}: not a section; write [name] on a line of its own", where());
    if (std::find(sections_.begin(), sections_.end(), name) == sections_.end()) {
      const std::string near = nearest_name(name, sections_);
      fail(ExitCode::config, "{}: unknown section [{}]; {}", where(), name,
           near.empty() ? fmt::format("sections are {}", fmt::join(sections_, ", "))
                        : fmt::format("did you mean [{}]?", near));
    }
    section_ = name;
  }

  void read_key(const std::string& key, const std::string& value) {
    if (section_.empty())
      fail(ExitCode::config, "{}: {} stands before the first section; write [section] above it", where(), key);
    const std::string name = section_ + "." + key;
    const auto option = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
    if (option == options_.end()) unknown(key, name);
    const auto [first, is_new] = line_of_.emplace(name, line_);
    if (!is_new)
      fail(ExitCode::config, "{}: {} is given a second time (first in line {}); keep one of the two", where(), name,
           first->second);
    option->set(value, where());
  }

  /// First a slip within the section, then the right key in a wrong section, then any name.
  [[noreturn]] void unknown(const std::string& key, const std::string& name) const {
    std::vector<std::string> own;
    for (const std::string& other : names_)
      if (section_of(other) == section_) own.push_back(other.substr(section_.size() + 1));
    std::string near = nearest_name(key, own);
    if (!near.empty()) near = section_ + "." + near;
    if (near.empty()) near = nearest_name(key, names_);
    if (near.empty()) near = nearest_name(name, names_);
    fail(ExitCode::config, "{}: unknown key {}; {}", where(), name,
         near.empty() ? fmt::format("keys of [{}] are {}", section_, fmt::join(own, ", "))
                      : fmt::format("did you mean {}?", near));
  }

  std::vector<Option> options_;
  std::vector<std::string> names_, sections_;
  std::string path_, section_;
  std::map<std::string, int> line_of_;
  int line_ = 0;
};

}  // namespace

void read_recipe(Recipe& recipe, const std::string& path) {
  RecipeReader(recipe, path).read(read_file(path, size_limit));
}

std::string write_recipe(const Recipe& recipe) {
  Recipe copy = recipe;  // options bind to fields that can be set
  std::string result, section;
  for (const Option& option : options(copy)) {
    if (section != section_of(option.name)) {
      if (!section.empty()) result += '\n';
      section = section_of(option.name);
      result += fmt::format("[{}]\n", section);
    }
    const std::string value = option.text();
    result += fmt::format("# {}{}\n{} ={}\n", option.help, option.unit.empty() ? "" : " (" + option.unit + ")",
                          option.name.substr(section.size() + 1), value.empty() ? "" : " " + value);
  }
  return result;
}

}  // namespace capstan::framework
