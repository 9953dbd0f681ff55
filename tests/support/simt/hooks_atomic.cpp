// What the compiler calls instead of atomic instructions in sources that are built with -fsanitize=thread. Kernels have CUDA's
// atomics (device_functions.h); these are the reference counts and static variables of host code in the same files.

#include <cstdint>

namespace {
constexpr int order = __ATOMIC_SEQ_CST;
}

extern "C" {

std::uint8_t __tsan_atomic8_load(const volatile std::uint8_t* address, int) { return __atomic_load_n(address, order); }
std::uint32_t __tsan_atomic32_load(const volatile std::uint32_t* address, int) {
  return __atomic_load_n(address, order);
}
std::uint64_t __tsan_atomic64_load(const volatile std::uint64_t* address, int) {
  return __atomic_load_n(address, order);
}
void __tsan_atomic8_store(volatile std::uint8_t* address, std::uint8_t value, int) {
  __atomic_store_n(address, value, order);
}
void __tsan_atomic32_store(volatile std::uint32_t* address, std::uint32_t value, int) {
  __atomic_store_n(address, value, order);
}
void __tsan_atomic64_store(volatile std::uint64_t* address, std::uint64_t value, int) {
  __atomic_store_n(address, value, order);
}
std::uint32_t __tsan_atomic32_fetch_add(volatile std::uint32_t* address, std::uint32_t value, int) {
  return __atomic_fetch_add(address, value, order);
}
std::uint32_t __tsan_atomic32_fetch_sub(volatile std::uint32_t* address, std::uint32_t value, int) {
  return __atomic_fetch_sub(address, value, order);
}
std::uint64_t __tsan_atomic64_fetch_add(volatile std::uint64_t* address, std::uint64_t value, int) {
  return __atomic_fetch_add(address, value, order);
}
std::uint64_t __tsan_atomic64_fetch_sub(volatile std::uint64_t* address, std::uint64_t value, int) {
  return __atomic_fetch_sub(address, value, order);
}

std::uint32_t __tsan_atomic32_exchange(volatile std::uint32_t* address, std::uint32_t value, int) {
  return __atomic_exchange_n(address, value, order);
}
std::uint64_t __tsan_atomic64_exchange(volatile std::uint64_t* address, std::uint64_t value, int) {
  return __atomic_exchange_n(address, value, order);
}
int __tsan_atomic32_compare_exchange_strong(volatile std::uint32_t* address, std::uint32_t* expected,
                                            std::uint32_t value, int, int) {
  return __atomic_compare_exchange_n(address, expected, value, false, order, order);
}
int __tsan_atomic64_compare_exchange_strong(volatile std::uint64_t* address, std::uint64_t* expected,
                                            std::uint64_t value, int, int) {
  return __atomic_compare_exchange_n(address, expected, value, false, order, order);
}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(order); }

}  // extern "C"
