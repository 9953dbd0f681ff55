#pragma once
// What kernels call of the emulator. Stand-in headers wrap it under CUDA's names.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "tests/support/simt/shadow.h"

namespace simt {

using Where = std::source_location;

/// What each lane brought to a warp operation, nullptr for lanes outside of its mask. Runs once, when all lanes have come.
using WarpStep = void (*)(void* const (&of_lane)[32], std::uint32_t mask);
/// Waits until all lanes of `mask` have come with the same mask and name, and `step` has run.
void warp_operation(const char* name, std::uint32_t mask, void* data, WarpStep step, bool orders_memory, Where where);

enum class Combine : std::uint8_t { none, count, all, any };
/// Waits until all threads of the block have come to the same line. The combination of all `value != 0`.
int block_barrier(const char* name, int value, Combine combine, Where where);

/// The lane that a shuffle gives `bits` of; its own where source is outside of its mask or segment.
std::uint64_t shuffle(const char* name, std::uint32_t mask, std::uint64_t bits, int source, Where where);
std::uint32_t ballot(const char* name, std::uint32_t mask, bool predicate, Where where);
std::uint32_t match_any(std::uint32_t mask, std::uint64_t bits, Where where);
int lane_of_thread();
std::uint32_t active_lanes();  ///< of the warp, that have not ended

/// The running thread's access, for what the compiler does not instrument: called by warp operations, not by kernels.
void check_access(const void* address, std::size_t size, std::size_t alignment, Access access, const void* code);

/// A kernel is about to change these bytes atomically.
void check_atomic(const void* address, std::size_t size, const void* code);

/// The block's shared memory, which must be at least that large.
void* shared_memory(std::size_t bytes);

// Asynchronous copies of 16 bytes; see kernels/ptx.cuh.
void copy_async_16(void* shared, const void* global, bool valid);
void copy_async_commit();
void copy_async_wait(int groups);

}  // namespace simt
