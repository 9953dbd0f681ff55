#pragma once
// Stands in for CUDA's header of this name when kernels are compiled for the emulator (docs/simt.md).

#include "tests/support/simt/device_functions.h"
#include "tests/support/simt/runtime_api.h"
