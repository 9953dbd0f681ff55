#!/usr/bin/env bash
# The extension of a trained model as a user does it, in small: stories260K, 512 -> 1,024 tokens, by the three stories recipes with fewer
# steps, on 2 MPI ranks. Stretching hurts by about a nat; training must win most of that back, for each encoding.
# usage: stories_test.sh CAPSTAN
# shellcheck disable=SC2154  # common.sh sets root, folder, capstan
set -euo pipefail
. "$(dirname "$0")/common.sh"
ln -s "$root/recipes" recipes
recipe_data "$capstan" stories260K stories-train stories-heldout

loss() {  # loss MODEL [OPTION...]: mean NLL of the held-out stories' first 1,024 tokens
  mpirun --timeout 120 -n 2 "$capstan" eval perplexity --model "$1" --data runs/data/stories-heldout.h5 --window 1024 --documents joined \
    --max-windows 1 --ring 2 --json loss.json "${@:2}" > log 2>&1 < /dev/null || { cat log; exit 1; }
  sed -n 's/.*"mean_nll": *\([0-9.]*\).*/\1/p' loss.json | head -n 1
}
before=$(loss runs/stories260K)
stretched=$(loss runs/stories260K --position.scaling linear --position.factor 2)
for encoding in pi rope-cope tape; do
  mpirun --timeout 240 -n 2 "$capstan" train recipes/extend-stories-512-1024-$encoding.cfg --run "runs/$encoding" --train.steps 25 \
    > log 2>&1 < /dev/null || { cat log; exit 1; }
  after=$(loss "runs/$encoding")
  echo "$encoding: $before before, $stretched stretched, $after trained"
  awk -v b="$before" -v s="$stretched" -v a="$after" 'BEGIN { exit !(s - b > 0.8 && s - a > 0.75 * (s - b)) }' ||
    { echo "$encoding: training won back too little"; exit 1; }
done
