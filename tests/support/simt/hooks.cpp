// What the compiler calls before each memory access of sources that are built with -fsanitize=thread, and for each address that
// -fsanitize=alignment finds misaligned. Neither sanitizer's own library is linked: these are ours, and their names are given.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/simt/machine.h"

namespace {

inline void check(const void* address, std::size_t size, simt::Access access, const void* code) {
  if (!simt::in_kernel) return;  // host code of an instrumented file
  simt::in_kernel = false;
  simt::machine().access(address, size, access, code);
  simt::in_kernel = true;
}

inline void reads(const void* address, std::size_t size, const void* code) {
  check(address, size, simt::Access::read, code);
}

inline void writes(const void* address, std::size_t size, const void* code) {
  check(address, size, simt::Access::write, code);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __tsan_read1(void* address) { reads(address, 1, __builtin_return_address(0)); }
void __tsan_read2(void* address) { reads(address, 2, __builtin_return_address(0)); }
void __tsan_read4(void* address) { reads(address, 4, __builtin_return_address(0)); }
void __tsan_read8(void* address) { reads(address, 8, __builtin_return_address(0)); }
void __tsan_read16(void* address) { reads(address, 16, __builtin_return_address(0)); }
void __tsan_write1(void* address) { writes(address, 1, __builtin_return_address(0)); }
void __tsan_write2(void* address) { writes(address, 2, __builtin_return_address(0)); }
void __tsan_write4(void* address) { writes(address, 4, __builtin_return_address(0)); }
void __tsan_write8(void* address) { writes(address, 8, __builtin_return_address(0)); }
void __tsan_write16(void* address) { writes(address, 16, __builtin_return_address(0)); }
void __tsan_read_range(void* address, std::size_t size) { reads(address, size, __builtin_return_address(0)); }
void __tsan_write_range(void* address, std::size_t size) { writes(address, size, __builtin_return_address(0)); }
void __tsan_vptr_update(void** address, void*) { writes(address, sizeof *address, __builtin_return_address(0)); }
void __tsan_vptr_read(void** address) { reads(address, sizeof *address, __builtin_return_address(0)); }

void* simt_memcpy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) reads(from, bytes, __builtin_return_address(0));
  if (bytes > 0) writes(to, bytes, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}

void* simt_memmove(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) reads(from, bytes, __builtin_return_address(0));
  if (bytes > 0) writes(to, bytes, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}

void* simt_memset(void* memory, int value, std::size_t bytes) {
  if (bytes > 0) writes(memory, bytes, __builtin_return_address(0));
  return std::memset(memory, value, bytes);
}

/// The beginning of what GCC passes (libsanitizer/ubsan/ubsan_handlers.h, TypeMismatchData).
struct MisalignedAccess {
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char log_alignment;
};

void __ubsan_handle_type_mismatch_v1(const MisalignedAccess* what, void* address) {
  if (simt::in_kernel) {
    simt::in_kernel = false;
    simt::machine().misaligned(address, std::size_t(1) << what->log_alignment, __builtin_return_address(0));
  }
  std::fprintf(stderr, "%s:%u: misaligned address %p\n", what->file, what->line, address);
  std::abort();
}

}  // extern "C"
