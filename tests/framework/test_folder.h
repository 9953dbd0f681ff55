#pragma once
// Shared by the file-format tests: a folder of its own for each test process, and a look at the error that a call
// throws.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "tests/support/without_traps.h"

namespace capstan::testing {

/// A new folder under gtest's temporary folder, unique per process and object, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    static int counter = 0;
    path_ = std::filesystem::path(::testing::TempDir()) / fmt::format("capstan-{}-{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file, with the folders on its way, and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The line of the Error that `call` must throw with `code`.
template <class Call> std::string error_of(ExitCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(int(error.code()), int(code)) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << "an error is one line: " << line;
    return line;
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

/// Expects that `text` holds every one of `parts`.
inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

/// Runs `call` on damaged input: it may succeed or throw an Error, nothing else. True if it threw.
template <class Call> bool survives(Call&& call) {
  try {
    call();
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return true;
  }
}

/// A file below tests/golden; tests run from any folder.
inline std::string golden(const std::string& name) { return std::string(CAPSTAN_SOURCE_DIR "/tests/golden/") + name; }

}  // namespace capstan::testing
