#pragma once
#include "kernels/check.h"

namespace capstan::kernels {

/// What everything of `cuda` does in a build without CUDA.
[[noreturn]] inline void no_cuda() {
  fail(ExitCode::config,
       "this program was built without CUDA: choose the device cpu, or build it with -DCAPSTAN_CUDA=ON (preset cuda)");
}

}  // namespace capstan::kernels
