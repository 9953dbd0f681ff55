#include "kernels/device_cuda.h"

namespace capstan::kernels {

std::string cuda_build() { return "built without CUDA"; }

int cuda_device_count() { return 0; }

}  // namespace capstan::kernels
