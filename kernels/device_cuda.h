#pragma once
// What this build and this machine know of GPUs. device_cuda.cu or device_cuda_absent.cpp is linked; callers hold no #if.

#include <string>

namespace capstan::kernels {

/// "CUDA 13.0, sm_80 sm_90", or "built without CUDA".
std::string cuda_build();
/// Usable devices; 0 without CUDA, a driver or a GPU.
int cuda_device_count();

}  // namespace capstan::kernels
