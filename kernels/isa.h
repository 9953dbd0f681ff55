#pragma once
// One loop, three instruction sets. The binary runs on any x86-64 machine and uses what this machine has.
//
//   on_best_isa([=]() __attribute__((always_inline)) { silu_row(y, x, n); });
//
// compiles the loop in silu_row (which must be [[gnu::always_inline]], as must everything hot below it) once per instruction
// set and picks at run time. A function that is not inlined into it stays portable code: slower, never wrong.

#include <cstdint>
#include <string>

namespace capstan::kernels {

enum class Isa : std::uint8_t { avx512, avx2, portable };

/// The widest instruction set of this machine (x86-64-v4 / v3 / whatever the compiler's default is).
Isa best_isa();
/// For tests: while one lives, best_isa() is `isa` on all threads. The machine must have it.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa);
  ~ForcedIsa();
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  Isa before_;
};
std::string name_of(Isa isa);

template <class Body> [[gnu::target("arch=x86-64-v4,prefer-vector-width=512")]] void run_avx512(const Body& body) {
  body();
}
template <class Body> [[gnu::target("arch=x86-64-v3")]] void run_avx2(const Body& body) { body(); }
template <class Body> void run_portable(const Body& body) { body(); }

template <class Body> void on_isa(Isa isa, const Body& body) {
  if (isa == Isa::avx512) return run_avx512(body);
  if (isa == Isa::avx2) return run_avx2(body);
  run_portable(body);
}

template <class Body> void on_best_isa(const Body& body) { on_isa(best_isa(), body); }

}  // namespace capstan::kernels
