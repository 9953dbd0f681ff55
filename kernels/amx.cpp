#include "kernels/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace capstan::kernels {

namespace {

bool detect() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, of the state component
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

bool has_amx() {
  static const bool usable = detect();
  return usable;
}

}  // namespace capstan::kernels
