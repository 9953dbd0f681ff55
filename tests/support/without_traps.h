#pragma once
#include <fenv.h>

namespace capstan::testing {

/// For tests that feed NaNs, or numbers such as 1e999, on purpose: on this thread, and threads that it starts, they do not trap.
class WithoutTraps {
 public:
  WithoutTraps() : before_(fedisableexcept(FE_ALL_EXCEPT)) {}
  ~WithoutTraps() {
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(before_);
  }

 private:
  int before_;
};

}  // namespace capstan::testing
