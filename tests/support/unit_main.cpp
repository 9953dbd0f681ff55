// main() of the unit tests. Floating-point traps are on in Debug builds and wherever CAPSTAN_FP_TRAPS=1: an invalid
// operation (inf - inf, 0/0, nan to integer), a division by zero or an overflow then ends the test where it happens.

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* wish = std::getenv("CAPSTAN_FP_TRAPS");
  const bool traps = wish ? std::strcmp(wish, "1") == 0 : CAPSTAN_FP_TRAPS_DEFAULT;
  if (traps) feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
  return RUN_ALL_TESTS();
}
