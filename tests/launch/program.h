#pragma once
// The program inside a test: command lines as users write them.

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/command.h"

namespace capstan::launch {

/// A small trained model that the project ships.
inline const std::string stories = CAPSTAN_SOURCE_DIR "/recipes/models/stories260K";

/// Runs a command line on one rank; returns what it printed.
inline std::string capstan(const std::vector<std::string>& words) {
  const auto alone = parallel::make_self_communicator();
  ::testing::internal::CaptureStdout();
  try {
    run_program(commands(), words, *alone);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  std::fflush(stdout);
  return ::testing::internal::GetCapturedStdout();
}

}  // namespace capstan::launch
