#!/usr/bin/env bash
# launch/gpu_check from end to end, with the emulator's programs in place of a GPU's; and what it says where no GPU is.
# usage: gpu_check_test.sh TEST_SIMT GPU_BENCH_TOY
set -euo pipefail
command -v python3 > /dev/null || exit 77  # judges the JSON
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/emulated" "$work/none"
ln -s "$(realpath "$1")" "$work/emulated/gpu_tests"
ln -s "$(realpath "$2")" "$work/emulated/gpu_bench"
"$root/launch/gpu_check" --binaries "$work/emulated" --filter 'SimtReduce.*' --toy

python3 - "$work/emulated/gpu_report.json" << 'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
assert report["complete"] and report["card"] and report["commit"] and report["sanitizer"], report
suite = report["suites"][0]
assert suite["passed"] == 2 and suite["failed"] == suite["not_run"] == 0, suite
ids = [row["id"] for row in report["bench"]]
assert ids == ["G1", "G2", "G3", "G5", "G6", "G6", "hierarchical", "G7", "G8", "G8", "G11"], ids
for row in report["bench"]:
    assert (row["ratio"] is not None and row["seconds"] > 0) or (row["id"] == "G11" and row["missing"]), row
PYTHON

# Programs that find no GPU: one line and 78.
printf '#!/bin/sh\necho "no GPU is to be seen here" >&2\nexit 78\n' > "$work/none/gpu_bench"
cp "$work/none/gpu_bench" "$work/none/gpu_tests"
chmod +x "$work"/none/gpu_*
status=0
"$root/launch/gpu_check" --binaries "$work/none" > "$work/out" 2> "$work/err" || status=$?
if [ $status -ne 78 ] || [ -s "$work/out" ] || [ "$(wc -l < "$work/err")" -ne 1 ] || ! grep -q 'no GPU' "$work/err"; then
  echo "without a GPU: exit code $status"
  cat "$work/out" "$work/err"
  exit 1
fi
