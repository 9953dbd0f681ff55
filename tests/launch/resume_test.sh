#!/usr/bin/env bash
# A run that is stopped and started again, as a user does it: by a time limit, the stop file, a signal, kill -9. The
# final checkpoint and the losses equal those of the unbroken run, bit for bit, on the same ranks.
# usage: resume_test.sh CAPSTAN
# shellcheck disable=SC2154  # common.sh sets root, folder, capstan
set -euo pipefail
. "$(dirname "$0")/common.sh"
ln -s "$root/recipes" recipes
recipe_data "$capstan" smoke

steps=40
command_of() {  # command_of RANKS OPTION...: sets `command`
  command=(mpirun --timeout 120 -n "$1" "$capstan" train recipes/smoke.cfg --train.steps "$steps" --checkpoint.every 7
    --checkpoint.keep 3 "${@:2}")
}
train() {  # train RANKS OPTION...
  command_of "$@"
  "${command[@]}" < /dev/null
}
weights() { cat "$1"/checkpoints/step-*$steps/weights-*.h5 | sha256sum; }
losses() { sed -E 's/"seconds".*"samples"/"samples"/' "$1/metrics.jsonl"; }
expect_status() {  # expect_status CODE COMMAND...
  local wanted=$1 status=0
  shift
  "$@" > log 2>&1 || status=$?
  [ "$status" -eq "$wanted" ] || { cat log; echo "exit code $status, expected $wanted: $*"; exit 1; }
}
expect_line() { grep -q "$1" log || { cat log; echo "no line with: $1"; exit 1; }; }
same() {  # same RUN AS
  [ "$(weights "$1")" = "$(weights "$2")" ] || { echo "$1: other weights or moments than $2"; exit 1; }
  diff <(losses "$1") <(losses "$2") > differing || { head -n 5 differing; echo "$1: other losses than $2"; exit 1; }
  echo "$1: the same bits as $2, $(wc -l < "$1/metrics.jsonl") steps"
}
start_in_background() {  # start_in_background RUN: sets `launcher` and, once they make steps, `ranks`
  command_of 2 --run "$1"
  : > log  # the last run's lines are gone before we look for new ones
  "${command[@]}" > log 2>&1 < /dev/null &
  launcher=$!
  until grep -q '^step ' log; do
    kill -0 $launcher || { cat log; echo "$1: ended before its first step"; exit 1; }
    sleep 0.02
  done
  mapfile -t ranks < <(pgrep -P $launcher)
}

expect_status 0 train 2 --run unbroken

# --max-time that is over after the first step, again and again
expect_status 75 train 2 --run limited --max-time 0.000001
expect_status 75 train 2 --run limited --max-time 0.000001
expect_status 0 train 2 --run limited
same limited unbroken

# the stop file
mkdir -p filed && touch filed/stop
expect_status 75 train 2 --run filed
expect_line "stopped after step 1"
rm filed/stop
expect_status 0 train 2 --run filed
same filed unbroken

# Longer, so that there is something to interrupt.
steps=400
expect_status 0 train 2 --run long

# a signal to one rank stops all of them
for signal in TERM USR2; do
  start_in_background signalled
  kill -$signal "${ranks[0]}"
  status=0
  wait $launcher || status=$?
  [ $status -eq 75 ] || { cat log; echo "exit code $status after SIG$signal, expected 75"; exit 1; }
done
expect_status 0 train 2 --run signalled
same signalled long

# kill -9 of a rank or of all, at some moment; what is left never hinders the next start
for delay in 0 0.3 0.6; do
  start_in_background killed
  sleep $delay
  if [ $delay = 0 ]; then kill -9 "${ranks[0]}"; else kill -9 "${ranks[@]}"; fi || true
  wait $launcher || true
done
expect_status 0 train 2 --run killed
same killed long

# a rerun with another learning rate is refused by name; with other ranks it goes on
expect_status 78 train 2 --run long --optimizer.lr 0.5
expect_line "optimizer.lr"
steps=402
expect_status 0 train 3 --run long
expect_line "resumed"
