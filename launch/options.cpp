// Reads a command line with Boost.Program_options, which splits it into options and positionals; types, ranges and
// error lines are ours. The only file that sees Boost.

#include "launch/options.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <set>

#include "kernels/check.h"

namespace capstan::launch {

using framework::Option;
using framework::Recipe;
namespace po = boost::program_options;

CommandOption CommandOption::integer(std::string name, std::int64_t value, std::int64_t least, std::int64_t most,
                                     std::string unit, std::string help) {
  return {std::move(name), value, double(least), double(most), {}, std::move(unit), std::move(help), false};
}
CommandOption CommandOption::real(std::string name, double value, double least, double most, std::string unit,
                                  std::string help) {
  return {std::move(name), value, least, most, {}, std::move(unit), std::move(help), false};
}
CommandOption CommandOption::flag(std::string name, bool value, std::string help) {
  return {std::move(name), value, 0, 0, {}, "", std::move(help), false};
}
CommandOption CommandOption::text(std::string name, std::string value, std::string placeholder, std::string help) {
  return {std::move(name), std::move(value), 0, 0, {}, std::move(placeholder), std::move(help), false};
}
CommandOption CommandOption::choice(std::string name, std::string value, std::vector<std::string> choices,
                                    std::string help) {
  return {std::move(name), std::move(value), 0, 0, std::move(choices), "", std::move(help), false};
}
CommandOption CommandOption::needed() && {
  required = true;
  return std::move(*this);
}

CommandOption CommandOption::repeatable() && {
  repeated = true;
  return std::move(*this);
}

Option bind(const CommandOption& option, Value& value) {
  Option bound{"--" + option.name, {}, option.least, option.most, option.choices, option.unit, option.help, false};
  std::visit([&](auto& held) { bound.value = &held; }, value);
  return bound;
}

Arguments::Arguments(const Syntax& syntax) {
  for (const CommandOption& option : syntax.options) {
    values_[option.name] = option.value;
    if (option.repeated) texts_[option.name];
  }
  for (const Positional& positional : syntax.positionals) positionals_[positional.name];
}

template <class T> const T& Arguments::get(const std::string& option) const {
  const auto found = values_.find(option);
  CAPSTAN_CHECK(found != values_.end() && std::holds_alternative<T>(found->second),
                "--{} is not declared with this type", option);
  return std::get<T>(found->second);
}
template const std::int64_t& Arguments::get(const std::string&) const;
template const double& Arguments::get(const std::string&) const;
template const bool& Arguments::get(const std::string&) const;
template const std::string& Arguments::get(const std::string&) const;

const std::vector<std::string>& Arguments::texts(const std::string& option) const {
  const auto found = texts_.find(option);
  CAPSTAN_CHECK(found != texts_.end(), "--{} is not declared as repeatable", option);
  return found->second;
}

const std::vector<std::string>& Arguments::positionals(const std::string& name) const {
  const auto found = positionals_.find(name);
  CAPSTAN_CHECK(found != positionals_.end(), "{} is not declared", name);
  return found->second;
}

const std::string& Arguments::positional(const std::string& name) const {
  static const std::string none;
  const auto& all = positionals(name);
  return all.empty() ? none : all.front();
}

void Arguments::apply_to(Recipe& recipe) const {
  const auto all = framework::options(recipe);
  for (const auto& [name, text] : recipe_options_)
    std::find_if(all.begin(), all.end(), [&wanted = name](const Option& o) {
      return o.name == wanted;
    })->set(text, "command line");
}

namespace {
bool is_empty(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text && text->empty();
}

std::string section_of(const std::string& name) { return name.substr(0, name.find('.')); }
}  // namespace

std::vector<std::string> recipe_sections() {
  Recipe recipe;
  std::vector<std::string> sections;
  for (const Option& option : framework::options(recipe))
    if (sections.empty() || sections.back() != section_of(option.name)) sections.push_back(section_of(option.name));
  return sections;
}

class ArgumentReader {
 public:
  explicit ArgumentReader(const Syntax& syntax) : syntax_(syntax), result_(syntax) {
    for (const CommandOption& option : syntax.options) {
      bound_.push_back(bind(option, result_.values_[option.name]));
      names_.push_back(option.name);
    }
    for (Option& option : framework::options(scratch_)) {
      if (!accepts(section_of(option.name))) continue;
      names_.push_back(option.name);
      recipe_bound_.push_back(std::move(option));
    }
    names_.push_back("help");
    for (const Option& option : bound_)
      if (std::holds_alternative<bool*>(option.value)) flags_.insert(option.name.substr(2));
    for (const Option& option : recipe_bound_)
      if (std::holds_alternative<bool*>(option.value)) flags_.insert(option.name);
    flags_.insert("help");
  }

  Arguments read(const std::vector<std::string>& words) {
    std::vector<std::string> plain;
    for (const po::option& part : split(words)) {
      if (part.position_key >= 0) {
        plain.push_back(part.value.front());
        refuse_dashes(plain.back());
        continue;
      }
      if (part.unregistered) unknown(part.string_key);
      // Boost takes "--model --json x" as the value "--json" of model; a forgotten value is the likelier meaning.
      const bool apart = part.original_tokens.size() > 1;
      if (apart && part.value.front().compare(0, 2, "--") == 0) missing_value(part.string_key);
      take_option(part.string_key, part.value.front());
    }
    if (result_.help_) return std::move(result_);
    take_positionals(plain);
    for (const CommandOption& option : syntax_.options)
      if (option.required && !result_.given(option.name))
        usage("{} needs --{} {}; {} shows how", full_name(), option.name, option.unit.empty() ? "VALUE" : option.unit,
              help_hint());
      else if (option.required && is_empty(result_.values_.at(option.name)))
        usage("{}: --{} is empty; give {}", full_name(), option.name, option.unit.empty() ? "a value" : option.unit);
    return std::move(result_);
  }

 private:
  template <class... Args> [[noreturn]] static void usage(fmt::format_string<Args...> text, Args&&... args) {
    fail(ExitCode::usage, text, std::forward<Args>(args)...);
  }
  std::string full_name() const { return "capstan " + syntax_.command; }
  std::string help_hint() const { return full_name() + " --help"; }

  bool accepts(const std::string& section) const {
    return std::find(syntax_.sections.begin(), syntax_.sections.end(), section) != syntax_.sections.end();
  }

  [[noreturn]] void unknown(const std::string& name) const {
    const auto sections = recipe_sections();
    const std::string section = section_of(name);
    if (section != name && std::find(sections.begin(), sections.end(), section) != sections.end() && !accepts(section))
      usage("--{} has no meaning for {}; {}", name, full_name(),
            syntax_.sections.empty()
                ? "it takes no options of recipes"
                : fmt::format("of a recipe's options it takes --{}.*", fmt::join(syntax_.sections, ".*, --")));
    const std::string near = framework::nearest_name(name, names_);
    usage("unknown option --{} of {}; {}", name, full_name(),
          near.empty() ? help_hint() + " lists them" : fmt::format("did you mean --{}?", near));
  }

  [[noreturn]] void missing_value(const std::string& name) const {
    usage("--{} needs a value; write --{} VALUE, or --{}=VALUE if the value begins with --", name, name, name);
  }

  /// Short options do not exist; a typing slip like -window must not become a file name.
  void refuse_dashes(const std::string& word) const {
    if (word.size() < 2 || word[0] != '-') return;
    const std::string near = framework::nearest_name(word.substr(1), names_);
    usage("unknown option {} of {}; {} (a file of that name is ./{})", word, full_name(),
          near.empty() ? help_hint() + " lists them" : fmt::format("did you mean --{}?", near), word);
  }

  /// Gives every option exactly one value: --flag becomes --flag=true, --no-flag --flag=false, and --x= an empty word.
  std::vector<std::string> with_values(const std::vector<std::string>& words) const {
    std::vector<std::string> result;
    for (const std::string& word : words) {
      if (word == "--" || word.compare(0, 3, "--=") == 0)
        usage("{} is no option of {}; {} lists them", word, full_name(), help_hint());
      const std::string name = word.compare(0, 2, "--") == 0 ? word.substr(2) : word == "-h" ? "help" : "";
      if (flags_.count(name) > 0) result.push_back("--" + name + "=true");
      else if (name.compare(0, 3, "no-") == 0 && flags_.count(name.substr(3)) > 0)
        result.push_back("--" + name.substr(3) + "=false");
      else if (name.size() > 1 && name.find('=') == name.size() - 1)
        result.insert(result.end(), {word.substr(0, word.size() - 1), ""});
      else result.push_back(word);
    }
    return result;
  }

  std::vector<po::option> split(const std::vector<std::string>& words) const {
    using namespace po::command_line_style;
    po::options_description described;
    for (const std::string& name : names_) described.add_options()(name.c_str(), po::value<std::string>());
    described.add_options()("a positional", po::value<std::string>());  // a space: no option can be called so
    po::positional_options_description places;
    places.add("a positional", -1);
    try {
      return po::command_line_parser(with_values(words))
          .options(described)
          .positional(places)
          .allow_unregistered()
          .style(allow_long | long_allow_adjacent | long_allow_next)
          .run()
          .options;
    } catch (const po::error_with_option_name& error) {
      const std::string name = error.get_option_name();
      missing_value(name.substr(std::min(name.find_first_not_of('-'), name.size())));
    } catch (const po::error& error) { usage("{}: {}; {} shows how", full_name(), error.what(), help_hint()); }
  }

  void take_option(const std::string& name, const std::string& value) {
    if (name == "help") {
      result_.help_ = true;
      return;
    }
    const auto repeated = result_.texts_.find(name);
    if (++result_.given_[name] > 1 && repeated == result_.texts_.end())
      usage("--{} is given twice; keep one of the two", name);
    const auto named = [](const std::vector<Option>& all, const std::string& wanted) {
      return std::find_if(all.begin(), all.end(), [&](const Option& o) { return o.name == wanted; });
    };
    const auto from_recipe = named(recipe_bound_, name);
    if (from_recipe != recipe_bound_.end()) {
      from_recipe->set(value, "command line");
      result_.recipe_options_.emplace_back(name, value);
      return;
    }
    const auto own = named(bound_, "--" + name);
    CAPSTAN_CHECK(own != bound_.end(), "Boost reports --{}, which is not declared", name);
    try {
      own->set(value, full_name());
    } catch (const Error& error) { throw Error(ExitCode::usage, error.what()); }
    if (repeated != result_.texts_.end()) repeated->second.push_back(value);
  }

  void take_positionals(const std::vector<std::string>& words) {
    std::size_t next = 0;
    for (const Positional& place : syntax_.positionals) {
      auto& held = result_.positionals_[place.name];
      while (next < words.size() && (place.many || held.empty())) held.push_back(words[next++]);
      if (place.required && held.empty())
        usage("{} needs {} ({}); {} shows how", full_name(), place.name, place.help, help_hint());
      for (const std::string& word : held)
        if (word.empty()) usage("{}: {} is empty; give a name", full_name(), place.name);
    }
    if (next < words.size())
      usage("{} has no place for {}; {} shows what it takes", full_name(), words[next], help_hint());
  }

  const Syntax& syntax_;
  Arguments result_;
  Recipe scratch_;  ///< checks the values of recipe options before the recipe is read
  std::vector<Option> bound_, recipe_bound_;
  std::vector<std::string> names_;
  std::set<std::string> flags_;
};

Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words) {
  return ArgumentReader(syntax).read(words);
}

}  // namespace capstan::launch
