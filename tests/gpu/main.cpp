// main() of launch/gpu_check's tests: GoogleTest's, where a GPU is. Exit code 78 and one line where none is.

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/check.h"
#include "kernels/device_cuda.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests)) {
    try {
      capstan::kernels::require_device(0);
    } catch (const capstan::Error& error) {
      std::fprintf(stderr, "no GPU: %s\n", error.what());
      return static_cast<int>(error.code());
    }
  }
  return RUN_ALL_TESTS();
}
