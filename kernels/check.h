#pragma once
// Errors. Everything that goes wrong is a capstan::Error: one line of text and the exit code that the program ends with.

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace capstan {

/// Exit codes of the program (docs/errors.md).
enum class ExitCode : int {
  done = 0,
  internal = 1,   ///< a defect of ours, or a failure without a better code
  usage = 2,      ///< the command line
  bad_data = 65,  ///< a file's content
  io = 74,        ///< the file system, or another rank that no longer answers
  stopped = 75,   ///< stopped on request with a saved checkpoint; rerun to go on
  config = 78,    ///< a recipe, or a value that the run cannot have
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& line) : std::runtime_error(line), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error: one line that says what, where, what is allowed, and what to do.
template <class... Args> [[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace capstan

/// Guards an assumption of the code itself. Always on. Prints the condition, the place, and the values in the message.
#define CAPSTAN_CHECK(condition, ...)                                                                               \
  do {                                                                                                              \
    if (!(condition))                                                                                               \
      ::capstan::fail(::capstan::ExitCode::internal, "{}:{}: {} does not hold: {}", __FILE__, __LINE__, #condition, \
                      ::fmt::format(__VA_ARGS__));                                                                  \
  } while (false)
