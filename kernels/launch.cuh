#pragma once
// How every kernel is started.

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "kernels/check_cuda.h"

namespace capstan::kernels {

/// Bytes of dynamic shared memory that hold a Shared; none for void.
template <class Shared> constexpr std::size_t shared_bytes() {
  if constexpr (std::is_void_v<Shared>) return 0;
  else return sizeof(Shared);
}

/// Starts kernel(args...) on the stream, each block with so many bytes of shared memory. Nothing happens where the grid has no
/// block. Throws where the device refuses the launch; what goes wrong inside the kernel is told by a later call that waits for it.
template <class... Parameters, class... Args>
void launch_with(std::size_t bytes, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                 Args&&... args) {
  constexpr std::size_t without_asking =
      48 * 1024;  // beyond it a kernel must opt in (CUDA guide, "Shared Memory 8.x, 9.0")
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (bytes > without_asking)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               "cudaFuncSetAttribute of " + std::to_string(bytes) + " bytes of shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), "cudaLaunchKernelEx");
}

/// The same, each block with a Shared of its own (ptx::shared<Shared>() in the kernel; void: without shared memory).
template <class Shared, class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Args&&... args) {
  launch_with(shared_bytes<Shared>(), kernel, grid, block, stream, std::forward<Args>(args)...);
}

}  // namespace capstan::kernels
