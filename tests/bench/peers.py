#!/usr/bin/env python3
"""What a user would pick instead, measured on this machine: PyTorch and llm.c. An optional client of launch/bench --peers.

PyTorch (Debian 12: python3-torch, 1.13.1), one thread, CPU time: attention with CoPE as its paper writes it (arXiv
2405.18719, listing 1) at 4,096 tokens, forward and backward; a training step of a model with the shape of GPT-2 124M, eager,
with naive attention. llm.c: its own train_gpt2 with OpenMP on two cores. docs/performance.md says how to get and build them.
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time


def cope_seconds(torch, dtype, tokens=4096, depth=64, positions=64, repeats=2):
    """CPU seconds of forward and backward of one head, the best of `repeats`."""
    generator = torch.Generator().manual_seed(1)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype).requires_grad_()
    q, k, v, table = make(tokens, depth), make(tokens, depth), make(tokens, depth), make(depth, positions)
    mask = torch.full((tokens, tokens), float("-inf")).triu(1).to(dtype)
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        scores = q @ k.t() / depth**0.5 + mask
        gates = torch.sigmoid(scores)
        place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=positions - 1)
        above, below = place.ceil().long(), place.floor().long()
        entries = q @ table
        weight = place - below
        bias = entries.gather(-1, above) * weight + entries.gather(-1, below) * (1 - weight)
        out = torch.softmax(scores + bias, -1) @ v
        out.sum().backward()
        best = min(best, time.process_time() - begin)
    return best


def gpt2_step(torch, tokens=1024, dtype=None):
    """Tokens per CPU second of one training step (forward, backward, AdamW) and the peak resident bytes."""
    import torch.nn as nn
    import torch.nn.functional as F

    width, heads, layers, vocabulary = 768, 12, 12, 50304

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, mask):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(width, 2)
            split = lambda y: y.view(b, t, heads, c // heads).transpose(1, 2)
            scores = split(q) @ split(k).transpose(2, 3) / (c // heads) ** 0.5
            y = torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ split(v)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, ids, targets):
            t = ids.shape[1]
            mask = torch.ones(t, t, dtype=torch.bool).triu(1)
            x = self.embed(ids) + self.place(torch.arange(t))
            for block in self.blocks:
                x = block(x, mask)
            logits = self.norm(x) @ self.embed.weight.t()
            return F.cross_entropy(logits.view(-1, vocabulary).float(), targets.view(-1))

    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(vocabulary, (1, tokens + 1))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    begin = time.process_time()
    step()
    seconds = time.process_time() - begin
    return tokens / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def torch_figures(part):
    import torch

    torch.set_num_threads(1)
    figures = {"torch_version": torch.__version__}
    if part == "cope":
        figures["torch_cope_f32_s"] = cope_seconds(torch, torch.float32)
        figures["torch_cope_bf16_s"] = cope_seconds(torch, torch.bfloat16)
    elif part == "f32":
        figures["torch_f32_tokens_per_cpu_s"], figures["torch_f32_peak_bytes"] = gpt2_step(torch)
    else:
        figures["torch_bf16_tokens_per_cpu_s"], figures["torch_bf16_peak_bytes"] = gpt2_step(torch, dtype="bf16")
    return figures


def llmc_tokens_per_second(folder, batch, tokens):
    """From the times that train_gpt2 prints per step; the first step is not counted."""
    program = os.path.join(folder, f"train_gpt2_{batch}x{tokens}")
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    text = subprocess.run([program], cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    seconds = [float(ms) / 1e3 for ms in re.findall(r"took ([0-9.]+) ms", text)][1:]
    return batch * tokens / min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True)
    parser.add_argument("--llmc", help="folder with train_gpt2_4x64 and train_gpt2_1x1024")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(torch_figures(arguments.part)))
        return
    figures = {}
    for part in ("cope", "f32", "bf16"):  # each in a process of its own: peak memory
        command = [sys.executable, __file__, "--output", arguments.output, "--part", part]
        figures.update(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
        print(part, figures, file=sys.stderr)
    if arguments.llmc:
        figures["llmc_4x64_tokens_per_s"] = llmc_tokens_per_second(arguments.llmc, 4, 64)
        figures["llmc_1x1024_tokens_per_s"] = llmc_tokens_per_second(arguments.llmc, 1, 1024)
    with open(arguments.output, "w") as file:
        json.dump({"figures": figures}, file, indent=1)


main()
