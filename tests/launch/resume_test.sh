#!/usr/bin/env bash
# A run that is stopped and started again, as a user does it: by the stop file's time limit, by a signal, by kill -9. The final
# checkpoint and the losses equal those of the unbroken run, bit for bit, on the same ranks.
# usage: resume_test.sh CAPSTAN
set -euo pipefail
capstan=$(realpath "${1:?the program}")
. "$(dirname "$0")/../../launch/setup.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
ln -s "$root/recipes" recipes
local_ranks
recipe_data "$capstan" smoke

train() { mpirun --timeout 120 -n 2 "$capstan" train recipes/smoke.cfg --train.steps 40 --checkpoint.every 7 --checkpoint.keep 3 "$@" < /dev/null; }
weights() { sha256sum "$1"/checkpoints/step-*40/weights-*.h5 | cut -d ' ' -f 1; }
losses() { sed -E 's/"seconds".*"samples"/"samples"/' "$1/metrics.jsonl"; }
expect_status() {  # expect_status CODE COMMAND...
  local wanted=$1 status=0
  shift
  "$@" > log 2>&1 || status=$?
  [ "$status" -eq "$wanted" ] || { cat log; echo "exit code $status, expected $wanted: $*"; exit 1; }
}
same() {  # same RUN: as the unbroken one
  [ "$(weights "$1")" = "$(weights unbroken)" ] || { echo "$1: other weights or moments"; exit 1; }
  diff <(losses "$1") <(losses unbroken) > /dev/null || { diff <(losses "$1") <(losses unbroken) | head -n 5; echo "$1: other losses"; exit 1; }
  echo "$1: the same bits as the unbroken run"
}

expect_status 0 train --run unbroken

# --max-time that is over after the first step, again and again
expect_status 75 train --run limited --max-time 0.000001
expect_status 75 train --run limited --max-time 0.000001
expect_status 0 train --run limited
same limited

# the stop file
mkdir -p filed && touch filed/stop
expect_status 75 train --run filed
rm filed/stop
expect_status 0 train --run filed
same filed

# kill -9 of every rank at some moment; what is left of it never hinders the next start
for delay in 0.4 0.6 0.8; do
  train --run killed > log 2>&1 &
  sleep "$delay"
  pkill -9 -f "train recipes/smoke.cfg.*--run killed" || true
  wait || true
done
expect_status 0 train --run killed
same killed

# a rerun with another learning rate is refused by name; with other ranks it goes on
expect_status 78 train --run unbroken --optimizer.lr 0.5
grep -q 'optimizer.lr' log || { cat log; echo "the refusal does not name optimizer.lr"; exit 1; }
expect_status 0 mpirun --timeout 120 -n 3 "$capstan" train recipes/smoke.cfg --train.steps 42 --checkpoint.every 7 --checkpoint.keep 3 --run unbroken
grep -q 'resumed' log || { cat log; exit 1; }
