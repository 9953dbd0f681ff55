#include "kernels/flush_denormals.h"

#include <immintrin.h>

namespace capstan::kernels {

void flush_denormals() {
  constexpr unsigned flush_to_zero = 0x8000;
  constexpr unsigned denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
}

}  // namespace capstan::kernels
