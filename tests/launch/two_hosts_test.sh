#!/usr/bin/env bash
# two_hosts_test.sh CAPSTAN: 2 simulated hosts x 2 ranks train as 4 local ranks do. Exit code 77: not run (no namespaces here).
set -euo pipefail
. "$(dirname "$0")/common.sh"
ln -s "$root/recipes" recipes

"$root/launch/two_hosts" --timeout 120 bash -c 'cat /proc/sys/kernel/hostname' > "$folder/hosts" 2> "$folder/why" || {
  status=$?
  cat "$folder/why" >&2
  [ $status -eq 78 ] && exit 77
  exit 1
}
[ "$(sort -u "$folder/hosts" | wc -l)" -eq 2 ] || { echo "not two host names:"; cat "$folder/hosts"; exit 1; }

recipe_data "$capstan" smoke
"$root/launch/two_hosts" --timeout 120 "$capstan" train recipes/smoke.cfg --run hosts-run
mpirun --timeout 120 -n 4 "$capstan" train recipes/smoke.cfg --run local-run

losses() {
  grep -o '"loss": *[-+0-9.eE]*' "$1/metrics.jsonl" || { echo "$1/metrics.jsonl: no losses" >&2; return 1; }
}
losses hosts-run > hosts-losses
losses local-run > local-losses
diff hosts-losses local-losses || { echo "losses differ between 2 hosts and 1"; exit 1; }
echo "$(wc -l < hosts-losses) losses are equal"
