"""Writes frequencies.json: inverse frequencies of the RoPE scalings, from the papers' and Meta's published formulas, in plain Python.

Run: python3 tests/golden/rotary/make.py > tests/golden/rotary/frequencies.json
Sources: arXiv 2309.00071 (NTK-aware, dynamic, YaRN), the rope section of Llama 3.1's model card code (llama3 rule).
"""

import json
import math


def base(theta, d):
    return [1.0 / theta ** (i / d) for i in range(0, d, 2)]


def yarn(theta, d, factor, original, fast, slow):
    def dimension(rotations):
        return d * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), d - 1)
    if low == high:
        high += 0.001
    out = []
    for i, w in enumerate(base(theta, d)):
        keep = 1 - min(1.0, max(0.0, (i - low) / (high - low)))
        out.append(w / factor * (1 - keep) + w * keep)
    return out, 0.1 * math.log(factor) + 1.0


def llama3(theta, d, factor, original, low, high):
    out = []
    for w in base(theta, d):
        wavelength = 2 * math.pi / w
        if wavelength < original / high:
            out.append(w)
        elif wavelength > original / low:
            out.append(w / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * w / factor + smooth * w)
    return out


def dynamic(theta, d, factor, original, length):
    if length > original:
        theta = theta * (factor * length / original - (factor - 1)) ** (d / (d - 2))
    return base(theta, d)


cases = []


def case(frequencies, amplitude=1.0, **config):
    cases.append({"config": config, "frequency": frequencies, "amplitude": amplitude})


case(base(1e4, 16), scaling="none", theta=1e4, head_size=16, factor=1, original=512, total=512)
case([w / 4 for w in base(5e5, 128)], scaling="linear", theta=5e5, head_size=128, factor=4, original=8192, total=32768)
case(base(1e4 * 4 ** (64 / 62), 64), scaling="ntk", theta=1e4, head_size=64, factor=4, original=4096, total=16384)
for total in (4096, 4097, 8192, 32768):
    case(dynamic(1e4, 128, 2, 4096, total), scaling="dynamic", theta=1e4, head_size=128, factor=2, original=4096, total=total)
for factor, original, d in ((4, 4096, 128), (2, 512, 8), (16, 8192, 64)):
    f, a = yarn(1e4, d, factor, original, 32, 1)
    case(f, a, scaling="yarn", theta=1e4, head_size=d, factor=factor, original=original, total=factor * original)
case(llama3(5e5, 128, 8, 8192, 1, 4), scaling="llama3", theta=5e5, head_size=128, factor=8, original=8192, total=131072)
case(llama3(1e4, 8, 2, 512, 1, 4), scaling="llama3", theta=1e4, head_size=8, factor=2, original=512, total=1024)
print(json.dumps(cases, indent=1))
