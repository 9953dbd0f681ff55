#pragma once
// The command line of one subcommand: what it accepts, how it is read, and its --help.
//
//   capstan SUBCOMMAND [POSITIONAL…] [--option value | --option=value | --flag | --no-flag]…
//
// Every option is declared once, with default, range, unit and help. A subcommand may also accept options of recipes, of
// the sections that it names, as --section.key. Names are never abbreviated.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "framework/config.h"

namespace capstan::launch {

using Value = std::variant<std::int64_t, double, bool, std::string>;

/// One option of a subcommand. Its value begins as the default.
struct CommandOption {
  std::string name;  ///< "window", given as --window
  Value value;
  double least = 0, most = 0;        ///< of numbers
  std::vector<std::string> choices;  ///< of texts; none: free
  std::string unit;                  ///< of numbers; of texts what stands for the value in --help: "FILE"
  std::string help;
  bool required = false;
  bool repeated = false;  ///< of texts: may be given several times; Arguments::texts has all

  static CommandOption integer(std::string name, std::int64_t value, std::int64_t least, std::int64_t most,
                               std::string unit, std::string help);
  static CommandOption real(std::string name, double value, double least, double most, std::string unit,
                            std::string help);
  static CommandOption flag(std::string name, bool value, std::string help);
  static CommandOption text(std::string name, std::string value, std::string placeholder, std::string help);
  static CommandOption choice(std::string name, std::string value, std::vector<std::string> choices, std::string help);
  CommandOption needed() &&;      ///< the same, required
  CommandOption repeatable() &&;  ///< the same, to be given as often as one likes
};

/// One argument without a name. Only the last of a subcommand may be `many`.
struct Positional {
  std::string name;  ///< "RECIPE"
  std::string help;
  bool required = true, many = false;
};

struct Syntax {
  std::string command;  ///< "eval perplexity"
  std::string summary;  ///< one sentence
  std::vector<Positional> positionals;
  std::vector<CommandOption> options;
  std::vector<std::string> sections = {};  ///< of recipes, whose options it accepts too
  bool over_model = false;                 ///< those are laid over a model's own values, not over a recipe's
};

std::vector<std::string> recipe_sections();  ///< all, in their order

/// What was given, checked: types, ranges, choices, and that everything required is there.
class Arguments {
 public:
  explicit Arguments(const Syntax& syntax);

  bool help() const { return help_; }  ///< --help was given; then nothing is required
  bool given(const std::string& option) const { return given_.count(option) > 0; }
  std::int64_t integer(const std::string& option) const { return get<std::int64_t>(option); }
  double real(const std::string& option) const { return get<double>(option); }
  bool flag(const std::string& option) const { return get<bool>(option); }
  const std::string& text(const std::string& option) const { return get<std::string>(option); }
  const std::vector<std::string>& texts(const std::string& option) const;  ///< of a repeatable one, in their order
  const std::map<std::string, Value>& values() const { return values_; }   ///< every option of the subcommand's own
  const std::string& positional(const std::string& name) const;            ///< empty if it was left out
  const std::vector<std::string>& positionals(const std::string& name) const;
  /// Sets the --section.key options over `recipe`, in their order.
  void apply_to(framework::Recipe& recipe) const;
  const std::vector<std::pair<std::string, std::string>>& recipe_options() const { return recipe_options_; }

 private:
  friend class ArgumentReader;
  template <class T> const T& get(const std::string& option) const;

  bool help_ = false;
  std::map<std::string, Value> values_;
  std::map<std::string, int> given_;  ///< option -> how often
  std::map<std::string, std::vector<std::string>> texts_;
  std::map<std::string, std::vector<std::string>> positionals_;
  std::vector<std::pair<std::string, std::string>> recipe_options_;
};

/// Reads the words after the subcommand. Errors: usage; config for a recipe option's value.
Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words);

/// `option` as the type of the recipe's options, bound to `value`, which must hold the option's type.
framework::Option bind(const CommandOption& option, Value& value);

std::string help_text(const Syntax& syntax);
std::string options_reference();
/// Every encoding under every schedule, as a Markdown table with the reasons of refusals; and docs/encodings.md.
std::string encodings_table();
std::string encodings_reference();  ///< docs/options.md

}  // namespace capstan::launch
