#pragma once

namespace capstan::kernels {

/// From now on the calling thread's SSE/AVX arithmetic takes subnormal operands as zero and gives zero for subnormal results
/// (a subnormal costs some 100 cycles). Every thread that computes calls this once: the setting belongs to a thread.
void flush_denormals();

}  // namespace capstan::kernels
