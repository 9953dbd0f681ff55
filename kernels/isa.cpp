#include "kernels/isa.h"

#include <atomic>

#include "kernels/check.h"

namespace capstan::kernels {

namespace {

Isa detect() {
  // gcc 12 knows the micro-architecture levels only as targets, not as cpu_supports names: ask for their features.
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::avx512 : v3 ? Isa::avx2 : Isa::portable;
}

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> isa = detect();
  return isa;
}

}  // namespace

Isa best_isa() { return isa_in_use().load(std::memory_order_relaxed); }

ForcedIsa::ForcedIsa(Isa isa) : before_(best_isa()) {
  CAPSTAN_CHECK(isa >= detect(), "this machine has no {}", name_of(isa));
  isa_in_use() = isa;
}

ForcedIsa::~ForcedIsa() { isa_in_use() = before_; }

std::string name_of(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    case Isa::portable: return "portable";
  }
  return "unknown";
}

}  // namespace capstan::kernels
