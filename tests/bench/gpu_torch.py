#!/usr/bin/env python3
"""Seconds of FlashAttention-2 as PyTorch ships it, causal, forward and backward: what row G5 of launch/gpu_check is held against.

One number on standard output, the median of ten, timed by CUDA events. Exit code 1 and a line if PyTorch or its GPU is missing.
"""
import statistics
import sys

TOKENS, HEADS, DEPTH = 16384, 16, 128  # tests/bench/gpu.cpp, beside_flash


def main():
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        sys.exit("gpu_torch: %s" % error)
    if not torch.cuda.is_available():
        sys.exit("gpu_torch: PyTorch sees no GPU")
    make = lambda: torch.randn(1, HEADS, TOKENS, DEPTH, device="cuda", dtype=torch.bfloat16)
    q, k, v = (make().requires_grad_() for _ in range(3))
    d_o = make()
    seconds = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for repeat in range(13):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(out, (q, k, v), d_o)
            end.record()
            end.synchronize()
            if repeat >= 3:
                seconds.append(begin.elapsed_time(end) / 1e3)
    print("%.6f" % statistics.median(seconds))


main()
