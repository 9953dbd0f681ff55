#!/usr/bin/env bash
# Attention memory is O(T): one training step on 65,536 tokens, 4 ranks, recompute = block, within 2 GiB of peak resident memory in
# every process. A table of all scores of one head would take 17 GB. tape has a second layer, because its last layer carries no state.
# usage: long_context_test.sh CAPSTAN KIND
set -euo pipefail
capstan=$1 kind=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk 'BEGIN { srand(1); for (i = 0; i < 11000; i++) printf "%s ", 100000 + int(rand() * 800000); print "" }' > "$work/text.txt"  # 77,001 bytes
"$capstan" prepare "$work/text.txt" --tokenizer bytes --output "$work/text.h5" > "$work/prepare.log"

layers=1
[ "$kind" != tape ] || layers=2
cat > "$work/long.cfg" << TEXT
[model]
hidden_size = 8
mlp_size = 16
layers = $layers
heads = 1
[position]
kind = $kind
[data]
train = $work/text.h5
context = 65536
documents = joined
[train]
steps = 1
sequences = 1
recompute = block
TEXT
mpirun --timeout 800 -n 4 "$capstan" train "$work/long.cfg" --run "$work/run"
memory=$(sed -n 's/.*"memory":\([0-9]*\).*/\1/p' "$work/run/metrics.jsonl")
loss=$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | head -n 1)
echo "$kind: loss $loss, peak resident memory $((memory / 1048576)) MiB of the fullest process"
[ "$memory" -gt 0 ] && [ "$memory" -le $((2 * 1024 * 1024 * 1024)) ] || { echo "more than 2 GiB" >&2; exit 1; }
awk -v loss="$loss" 'BEGIN { exit !(loss > 3 && loss < 7) }' || { echo "the loss of an untrained byte model is near ln 258 = 5.55" >&2; exit 1; }
