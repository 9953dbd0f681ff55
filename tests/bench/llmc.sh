#!/usr/bin/env bash
# Prepares llm.c (https://github.com/karpathy/llm.c, measured at f1e2ace) for launch/bench --peers: random weights of GPT-2 124M's
# shape, random tokens, and its train_gpt2.c built for B=4 T=64 and for B=1 T=1024, three steps each, without sampling and validation.
#
#   tests/bench/llmc.sh FOLDER_OF_LLM.C      then: CAPSTAN_LLMC=FOLDER_OF_LLM.C launch/bench --peers
set -euo pipefail
cd "${1:?tests/bench/llmc.sh FOLDER_OF_LLM.C}"
"${PYTHON:-python3}" - << 'TEXT'
import os

import numpy

random = numpy.random.default_rng(1)


def header(*numbers):
    words = numpy.zeros(256, numpy.int32)
    words[: len(numbers)] = numbers
    return words.tobytes()


with open("gpt2_124M.bin", "wb") as file:
    file.write(header(20240326, 3, 1024, 50257, 12, 12, 768, 50304))
    file.write((random.standard_normal(124475904, dtype=numpy.float32) * 0.02).tobytes())
os.makedirs("dev/data/tinyshakespeare", exist_ok=True)
for part in ("train", "val"):
    tokens = random.integers(0, 50257, 40000).astype(numpy.uint16)
    with open(f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin", "wb") as file:
        file.write(header(20240520, 1, len(tokens)) + tokens.tobytes())
TEXT
for shape in 4x64 1x1024; do
  sed -e "s/int B = 4;/int B = ${shape%x*};/; s/int T = 64;/int T = ${shape#*x};/; s/step <= 40/step <= 2/" \
    -e "s/step % 10 == 0/0/; s/step > 0 && step % 20 == 0/0/" train_gpt2.c > "train_$shape.c"
  gcc -Ofast -march=native -mprefer-vector-width=512 -fopenmp -DOMP -Wno-unused-result -I. "train_$shape.c" -lm -o "train_gpt2_$shape"
done
