#include "tests/support/simt/reserve.h"

#include <sys/mman.h>

#include <new>

namespace simt {

void* reserve(std::size_t bytes) {
  constexpr int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void forget(void* begin, std::size_t bytes) {
  if (madvise(begin, bytes, MADV_DONTNEED) != 0) throw std::bad_alloc();
}

void allow(void* begin, std::size_t bytes) {
  if (mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

void forbid(void* begin, std::size_t bytes) {
  if (mprotect(begin, bytes, PROT_NONE) != 0) throw std::bad_alloc();
}

}  // namespace simt
