#pragma once
// Stands in for CUDA's header of this name: the emulated run time is one header.

#include "tests/support/simt/device_functions.h"
#include "tests/support/simt/runtime_api.h"
