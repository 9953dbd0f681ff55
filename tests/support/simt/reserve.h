#pragma once
// Address space that costs nothing until it is touched.

#include <cstddef>

namespace simt {

/// Zeroed memory; a page is taken from the system when it is first written. Throws std::bad_alloc.
void* reserve(std::size_t bytes);
/// Gives whole pages back; they read as zero again.
void forget(void* begin, std::size_t bytes);
/// Whoever touches these whole pages from now on is ended by the system.
void forbid(void* begin, std::size_t bytes);
void allow(void* begin, std::size_t bytes);

}  // namespace simt
